"""The LoRA adapters that are served; they may be loaded and unloaded while the server runs.

Only names and paths: nothing is read from a path, but an absolute one must be a folder.
"""

from collections.abc import Mapping, Sequence
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


class _Module(msgspec.Struct, frozen=True):
    name: str
    path: str


def parse_modules(texts: Sequence[str]) -> dict[str, str]:
    """Return paths by name, of NAME, NAME=PATH or JSON with `name` and `path`, as vLLM takes it.

    Raises ValueError for other JSON.
    """
    paths = {}
    for text in texts:
        if text.startswith("{"):
            try:
                module = msgspec.json.decode(text, type=_Module)
            except msgspec.DecodeError as error:
                raise ValueError(f"{text}: {error}") from error
            paths[module.name] = module.path
        else:
            name, _, path = text.partition("=")
            paths[name] = path or name
    return paths


class InvalidInput(ApiError):
    """An adapter that cannot be loaded as asked."""

    kind = "InvalidUserInput"


class Adapters:
    """Paths by name, as vLLM 0.32 keeps them (`entrypoints/openai/models/serving.py`)."""

    def __init__(self, modules: Mapping[str, str], base: str) -> None:
        """`modules` are paths by name, `base` is the model's own name."""
        self.paths = dict(modules)
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
