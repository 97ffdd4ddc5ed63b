"""The LoRA adapters that are served, and how they come and go while the server runs.

Names and paths alone: nothing is read from a path, but one that is absolute must be a folder.
"""

from pathlib import Path

import msgspec

from model_server.simulator.bodies import decode
from model_server.simulator.errors import ApiError, UnknownModel


class LoadBody(msgspec.Struct, frozen=True):
    """The body of /v1/load_lora_adapter."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadBody(msgspec.Struct, frozen=True):
    """The body of /v1/unload_lora_adapter."""

    lora_name: str


class InvalidInput(ApiError):
    """An adapter that cannot be loaded as asked."""

    kind = "InvalidUserInput"


class Adapters:
    """Paths by name, as vLLM 0.32 keeps them (`entrypoints/openai/models/serving.py`)."""

    def __init__(self, modules: tuple[str, ...], base: str) -> None:
        """`modules` are NAME or NAME=PATH, `base` is the model's own name."""
        pairs = (module.partition("=") for module in modules)
        self.paths = {name: path or name for name, _, path in pairs}
        self._base = base

    def load(self, body: bytes) -> str:
        """Serve one more, or another one under the same name."""
        wanted = decode(body, LoadBody)
        name, path = wanted.lora_name, wanted.lora_path
        if not name or not path:
            raise InvalidInput("Both 'lora_name' and 'lora_path' must be provided.")
        if name == self._base:
            raise InvalidInput(f"The lora adapter '{name}' conflicts with a served base model.")
        if name in self.paths and not wanted.load_inplace:
            raise InvalidInput(
                f"The lora adapter '{name}' has already been loaded. If you want to load the"
                " adapter in place, set 'load_inplace' to True."
            )
        if path.startswith("/") and not Path(path).is_dir():
            raise UnknownModel(f"Loading lora {name} failed: No adapter found for {path}")
        self.paths[name] = path
        return f"Success: LoRA adapter '{name}' added successfully."

    def unload(self, body: bytes) -> str:
        """Serve one less."""
        name = decode(body, UnloadBody).lora_name
        if not name:
            raise InvalidInput("'lora_name' needs to be provided to unload a LoRA adapter.")
        if name not in self.paths:
            raise UnknownModel(f"The lora adapter '{name}' cannot be found.")
        del self.paths[name]
        return f"Success: LoRA adapter '{name}' removed successfully."
