"""Keeps an engine's LoRA adapters in step with a file, such as a mounted ConfigMap's.

The file is read again every POLL_SECONDS. A ConfigMap changes when its link is turned to another
folder, which a poll notices. An invalid file changes nothing.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from model_server.adapters import Adapter, InvalidAdapters, Load, Step, Unload, Wanted, read, steps
from model_server.client import Client, Unanswered
from model_server.standing import AdapterState, Standing

POLL_SECONDS = 1.0
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0


def read_adapters(file: Path, served: str) -> Wanted:
    """Return what the file asks for. Raises `InvalidAdapters`, which names the file."""
    try:
        return read(file.read_text(encoding="utf-8"), served)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidAdapters(f"{file}: {error}") from error
    except InvalidAdapters as error:
        raise InvalidAdapters(f"{file}: {error}") from error


class _Failure(msgspec.Struct, frozen=True):
    step: Step
    tries: int
    again_at: float
    error: str


class AdapterSync:
    """The adapters of one engine; call `round` again and again.

    `say` is called with every change, and with every error that differs from the last one.
    """

    def __init__(self, file: Path, served: str, client: Client, say: Callable[[str], None]) -> None:
        self._file = file
        self._served = served
        self._client = client
        self._say = say
        self._wanted = Wanted()
        self._own: set[str] = set()
        self._failures: dict[str, _Failure] = {}

    async def follow(self, standing: Standing) -> None:
        """Run forever; `standing` says what is loaded and what failed."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await self.round(standing)

    async def round(self, standing: Standing) -> None:
        """Try everything that is due once; return when the engine has answered."""
        complaint = self._look()
        try:
            loaded = (await self._client.models()).adapters
            for step in steps(self._wanted, loaded, self._own):
                await self._try(step)
            loaded = (await self._client.models()).adapters
            self._own |= loaded.keys() & self._wanted.present.keys()
            standing.adapters = {
                name: self._state(adapter, loaded) for name, adapter in self._wanted.present.items()
            }
        except Unanswered as error:
            complaint = complaint or str(error)
        if complaint and complaint != standing.adapters_error:
            self._say(f"adapters: {complaint}")
        standing.adapters_error = complaint

    def _look(self) -> str:
        """Read the file; return why it cannot be read."""
        try:
            self._wanted = read_adapters(self._file, self._served)
        except InvalidAdapters as error:
            return str(error)
        return ""

    def _state(self, adapter: Adapter, loaded: dict[str, str]) -> AdapterState:
        failure = self._failures.get(adapter.name)
        if loaded.get(adapter.name) == adapter.path:
            return AdapterState(adapter.path, loaded=True)
        if failure is None:
            return AdapterState(adapter.path, loaded=False)
        return AdapterState(adapter.path, loaded=False, tries=failure.tries, error=failure.error)

    async def _try(self, step: Step) -> None:
        name = step.name if isinstance(step, Unload) else step.adapter.name
        now = asyncio.get_running_loop().time()
        before = self._failures.get(name)
        if before is not None and before.step != step:
            before = None  # what is asked for has changed
        if before is not None and now < before.again_at:
            return
        try:
            await self._client.take(step)
        except Unanswered as error:
            self._note(name, step, before, str(error))
            return
        self._failures.pop(name, None)
        if isinstance(step, Load):
            self._own.add(name)
            self._say(f"adapter {name}: loaded from {step.adapter.path}")
        else:
            self._own.discard(name)
            self._say(f"adapter {name}: unloaded")

    def _note(self, name: str, step: Step, before: _Failure | None, error: str) -> None:
        tries = 1 if before is None else before.tries + 1
        pause = min(FIRST_PAUSE_SECONDS * 2 ** (tries - 1), LONGEST_PAUSE_SECONDS)
        again_at = asyncio.get_running_loop().time() + pause
        self._failures[name] = _Failure(step, tries, again_at, error)
        if before is None or before.error != error:
            self._say(f"adapter {name}: {error}; trying again, soon and then every minute")
