"""Asks a demonstration's questions and times the answers."""

import asyncio
import time

import aiohttp
import msgspec
from stand import MODEL
from texts import Demonstration, Reader

PATH = "/v1/chat/completions"
DECISION = "x-warmpick-decision"
REQUEST_SECONDS = 300.0


class Setting(msgspec.Struct, frozen=True):
    """The conditions of a run: prefix caching on or off, and one server or two."""

    caching: bool
    servers: int

    def __str__(self) -> str:
        behind = "one server" if self.servers == 1 else "two behind the picker"
        return f"caching {'on' if self.caching else 'off'}, {behind}"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One question as it was answered.

    Times are in seconds, `at` from the start of the demonstration; tokens are the server's own.
    `server` and `predicted` cached tokens are what the picker decided, empty and None without it.
    """

    demonstration: str
    setting: Setting
    reader: int
    question: int
    at: float
    ttft: float
    seconds: float
    prompt: tuple[int, ...]
    generated: tuple[int, ...]
    text: str
    cached: int
    server: str = ""
    predicted: int | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    token_ids: tuple[int, ...] | None = None


class _Event(msgspec.Struct):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    prompt_token_ids: tuple[int, ...] | None = None


class _Decision(msgspec.Struct):
    endpoint: str = ""
    predicted_cached_tokens: int | None = None


_event = msgspec.json.Decoder(_Event)
_decision = msgspec.json.Decoder(_Decision)


class _Stream:
    """An answer, as far as it has arrived."""

    def __init__(self) -> None:
        self.prompt: tuple[int, ...] = ()
        self.generated: tuple[int, ...] = ()
        self.text = ""
        self.cached = 0
        self.first_at = 0.0

    def feed(self, line: bytes) -> None:
        """Read a line of the event stream."""
        if not line.startswith(b"data: {"):
            return
        event = _event.decode(line[6:])
        self.prompt = event.prompt_token_ids or self.prompt
        for choice in event.choices:
            if choice.token_ids:
                self.first_at = self.first_at or time.monotonic()
                self.generated += choice.token_ids
            self.text += choice.delta.content or ""
        if event.usage and event.usage.prompt_tokens_details:
            self.cached = event.usage.prompt_tokens_details.cached_tokens or 0


class Asker:
    """Asks one URL under one setting. Caches of different settings have nothing in common."""

    def __init__(self, url: str, setting: Setting, client: aiohttp.ClientSession) -> None:
        self._url = url + PATH
        self._setting = setting
        self._client = client
        self._started = 0.0

    async def ask_all(self, demonstration: Demonstration) -> list[Asked]:
        """Let all readers ask at once, each one question after the other."""
        self._started = time.monotonic()
        readers = (
            self._read(demonstration, number, reader)
            for number, reader in enumerate(demonstration.readers, start=1)
        )
        return [asked for answers in await asyncio.gather(*readers) for asked in answers]

    async def _read(self, demonstration: Demonstration, number: int, reader: Reader) -> list[Asked]:
        answers: list[Asked] = []
        for question in range(len(reader.questions)):
            messages = demonstration.prompt(reader, [answer.text for answer in answers])
            body = {
                "model": MODEL,
                "messages": messages,
                "max_tokens": demonstration.answer,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
                "return_token_ids": True,
                "cache_salt": f"{demonstration.name}, {self._setting}",
            }
            sent, stream = time.monotonic(), _Stream()
            async with self._client.post(self._url, json=body) as response:
                response.raise_for_status()
                decision = _decision.decode(response.headers.get(DECISION, "{}"))
                async for line in response.content:
                    stream.feed(line)
            answers.append(
                Asked(
                    demonstration=demonstration.name,
                    setting=self._setting,
                    reader=number,
                    question=question + 1,
                    at=sent - self._started,
                    ttft=stream.first_at - sent,
                    seconds=time.monotonic() - sent,
                    prompt=stream.prompt,
                    generated=stream.generated,
                    text=stream.text,
                    cached=stream.cached,
                    server=decision.endpoint,
                    predicted=decision.predicted_cached_tokens,
                )
            )
        return answers


def client() -> aiohttp.ClientSession:
    """Make a client that waits for a slow processor."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS))
