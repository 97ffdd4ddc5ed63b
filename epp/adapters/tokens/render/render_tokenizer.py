"""Tokenization by vLLM servers over HTTP: by one, or by the endpoints of the pool in turn."""

import asyncio
import time
from collections.abc import Callable

import aiohttp

from epp.adapters.tokens.fallback import FallbackCause, TextFallback
from epp.adapters.tokens.prompt_tokenizer import PromptTokenizer
from epp.adapters.tokens.render.render_server import (
    RENDER,
    Busy,
    RenderServer,
    RenderSettings,
)
from epp.model.request import InferenceRequest, Prompt
from epp.printable import without_user
from epp.system.logs import Log

_log = Log(__name__)

_MEDIA_WORDS = (b'"image', b'"input_image', b'"video', b'"audio', b'"input_audio')
_HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}
"""Without compression: a few bytes may become as many as there is memory for."""
_CONNECTIONS = 64
_CONNECT_SECONDS = 1.0
_IDLE_SECONDS = 4.0
"""How long a connection is kept: vLLM closes one that is idle for 5 s (envs.py
`VLLM_HTTP_TIMEOUT_KEEP_ALIVE`), and a request that meets that fails."""
_FAILURES = (aiohttp.ClientError, OSError)


class RenderTokenizer(PromptTokenizer):
    """Tokenizes by one server, or in turn by those that are added, each with a `CircuitBreaker`.

    A server that fails has another one asked in its place, once. `now` is a monotonic clock, in
    seconds.
    """

    def __init__(self, settings: RenderSettings, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._settings = settings
        self._now = now
        self._urls = {"": settings.url} if settings.url else {}
        self._servers: tuple[RenderServer, ...] = ()
        self._stale = True  # the servers are not those of the URLs
        self._turn = 0
        self._session: aiohttp.ClientSession | None = None

    def add(self, key: str, url: str) -> None:
        """Add a server, in place of the one with the same key."""
        self._urls[key], self._stale = url, True

    def remove(self, key: str) -> None:
        """Remove a server."""
        self._stale |= self._urls.pop(key, None) is not None

    def _at_once(self, request: InferenceRequest) -> None:
        if request.api not in RENDER:
            raise TextFallback(FallbackCause.API, request.api.value)
        if not request.body:
            raise TextFallback(FallbackCause.BODY)
        if len(request.body) > self._settings.most_bytes:
            raise TextFallback(FallbackCause.LARGE, f"{self._settings.most_bytes} bytes")
        self._first()

    def _first(self) -> RenderServer:
        """Return the server whose turn it is. Raises `TextFallback` if none can be used."""
        server = self._next()
        if server is None:
            raise TextFallback(FallbackCause.UNAVAILABLE, without_user(self._settings.url))
        return server

    def _next(self, but: RenderServer | None = None) -> RenderServer | None:
        """Return the server whose turn it is, without those that are out of order; None: none."""
        if self._stale:
            known = {each.url: each for each in self._servers}
            urls = sorted({url.rstrip("/") for url in self._urls.values()})
            more = (self._settings, self._now, self._client)
            self._servers = tuple([known.get(url) or RenderServer(url, *more) for url in urls])
            self._stale = False
        now, turn = self._now(), self._turn
        for position in range(turn, turn + len(self._servers)):
            server = self._servers[position % len(self._servers)]
            if server is not but and not server.breaker.is_open(now):
                self._turn = position
                return server
        return None

    async def _tokenized(self, request: InferenceRequest) -> tuple[Prompt, ...]:
        media = any(word in request.body for word in _MEDIA_WORDS)
        limit = self._settings.media_timeout if media else self._settings.timeout
        server, sent = self._first(), self._now()
        self._turn += 1
        try:
            async with asyncio.timeout(limit):
                try:
                    prompts = await self._asked(server, request, media=media)
                except (Busy, *_FAILURES) as error:
                    other = self._next(but=server)
                    if other is None:
                        raise
                    self._failed(server, error, sent, media=media)
                    server, sent = other, self._now()
                    prompts = await self._asked(server, request, media=media)
        except _FAILURES as error:
            self._failed(server, error, sent, media=media)
            slow = isinstance(error, TimeoutError)
            cause = FallbackCause.SLOW if slow else FallbackCause.UNAVAILABLE
            raise TextFallback(cause, f"{server.name}: {type(error).__name__}") from error
        if server.breaker.record_success():
            _log.info("tokens.render_recovered", url=server.name)
        return prompts

    async def _asked(
        self, server: RenderServer, request: InferenceRequest, *, media: bool
    ) -> tuple[Prompt, ...]:
        async with asyncio.timeout(self._settings.attempt_timeout):
            return await server.prompts(request, media=media)

    def _failed(self, server: RenderServer, error: Exception, sent: float, *, media: bool) -> None:
        """Note a failure, if the server is to blame."""
        # Media come from other servers, which may be what is slow.
        late = isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ClientError)
        if not isinstance(error, Busy) and not (late and media):
            server.breaker.record_failure(sent, self._now())

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS, keepalive_timeout=_IDLE_SECONDS),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=_HEADERS,
                auto_decompress=False,
            )
        return self._session

    async def close(self) -> None:
        """Close the connections; requests in flight fail."""
        if self._session is not None:
            await self._session.close()
