"""The launcher's requests to the engine that it started, over HTTP on this machine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec

from model_server.adapters import Load, Step

ASK_SECONDS = 2.0
"""For an answer that is at hand; a probe waits no longer."""
LOAD_SECONDS = 600.0
"""For an adapter, which may have to be downloaded."""
CONNECTION_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)


class Unanswered(Exception):
    """The engine refused, or did not answer; the message is its own."""


class _Card(msgspec.Struct, frozen=True):
    id: str
    root: str | None = None
    parent: str | None = None


class _Cards(msgspec.Struct, frozen=True):
    data: list[_Card]


class Models(msgspec.Struct, frozen=True):
    """What the engine serves: names of models, and paths of adapters by name."""

    bases: frozenset[str]
    adapters: dict[str, str]


class Client:
    """A session with one engine; `opened` makes it. Every method raises `Unanswered`."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def health(self) -> None:
        """Return if `/health` answers 200: then the engine behind the API server is alive."""
        await self._say("GET", "/health", ASK_SECONDS)

    async def models(self) -> Models:
        """Return what is served."""
        try:
            cards = msgspec.json.decode(
                await self._say("GET", "/v1/models", ASK_SECONDS), type=_Cards
            )
        except msgspec.DecodeError as error:
            raise Unanswered(f"/v1/models: {error}") from error
        bases = frozenset(card.id for card in cards.data if card.parent is None)
        adapters = {card.id: card.root or "" for card in cards.data if card.parent is not None}
        return Models(bases, adapters)

    async def take(self, step: Step) -> None:
        """Load or unload an adapter."""
        if isinstance(step, Load):
            body: dict[str, object] = {"lora_name": step.adapter.name}
            body |= {"lora_path": step.adapter.path, "load_inplace": step.replace}
            await self._say("POST", "/v1/load_lora_adapter", LOAD_SECONDS, body)
        else:
            await self._say(
                "POST", "/v1/unload_lora_adapter", LOAD_SECONDS, {"lora_name": step.name}
            )

    async def _say(
        self, method: str, path: str, seconds: float, body: dict[str, object] | None = None
    ) -> bytes:
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._session.request(method, path, json=body, timeout=timeout) as response:
                said = await response.read()
                status = response.status
        except CONNECTION_ERRORS as error:
            raise Unanswered(f"{path}: {str(error) or type(error).__name__}") from error
        if status != 200:
            raise Unanswered(f"{path}: {status} {_message(said)}".rstrip())
        return said


class _Error(msgspec.Struct, frozen=True):
    message: str = ""


class _Reply(msgspec.Struct, frozen=True):
    error: _Error = _Error()


def _message(said: bytes) -> str:
    """Return the message of an error in OpenAI's form."""
    try:
        return msgspec.json.decode(said, type=_Reply).error.message
    except msgspec.DecodeError:
        return said[:200].decode(errors="replace")


@asynccontextmanager
async def opened(url: str, api_key: str | None) -> AsyncIterator[Client]:
    """Open a session with the engine at `url`; on this machine any certificate is accepted."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else None
    connector = aiohttp.TCPConnector(ssl=False)
    async with aiohttp.ClientSession(url, headers=headers, connector=connector) as session:
        yield Client(session)
