"""Tokenization by a vLLM server over HTTP.

It uses `.../render`, which `vllm launch render` and `vllm serve --enable-scale-out` serve, or
`/tokenize` if the server has no such endpoint.
"""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec
import structlog

from epp.adapters.tokens.anthropic_chat import as_chat
from epp.adapters.tokens.fallback import FallbackCause, FallbackCounts, TextFallback
from epp.adapters.tokens.local.chat_messages import ContentFormat, conversation
from epp.adapters.tokens.render.rendered import (
    UNREADABLE,
    Rendered,
    Tokenized,
    exact,
    prompt_of,
    read,
)
from epp.model.request import Api, InferenceRequest, Prompt
from epp.protocol.bodies.model_rewrite import replace_model

_log = structlog.get_logger(__name__)

_RENDER = {
    Api.CHAT: "/v1/chat/completions/render",
    Api.COMPLETIONS: "/v1/completions/render",
    Api.RESPONSES: "/v1/responses/render",
    Api.MESSAGES: "/v1/chat/completions/render",
}
_TOKENIZE = "/tokenize"
_MEDIA_WORDS = (b'"image', b'"input_image', b'"video', b'"audio', b'"input_audio')
_HASHES_ONLY = b'{"mm_payload":"none",'
"""Requests the hashes of media, without their processed inputs to the model."""
_HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}
"""Without compression: a few bytes may become as many as there is memory for."""
_CHAT_FIELDS = (
    "messages",
    "tools",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
)
_NOT_SERVED = {HTTPStatus.FORBIDDEN, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}
_MAX_RESPONSE_BYTES = 8 << 20
"""A million tokens and more. It is read on the event loop, for which others wait 0.1 s."""
_TEMPLATE_BYTES, _BYTES_PER_BYTE = 256 << 10, 8
"""What a response to text has at most: the template's tokens, and one for each byte of the request.
"""
_CONNECTIONS = 64
_CONNECT_SECONDS = 1.0
_IDLE_SECONDS = 4.0
"""How long a connection is kept: vLLM closes one that is idle for 5 s (envs.py
`VLLM_HTTP_TIMEOUT_KEEP_ALIVE`), and a request that meets that fails."""
_TOLERATED_FAILURES = 2
"""Failures in a row after which requests pause."""
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 30.0


class RenderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The server and the limits of requests to it.

    A `model` that is not empty replaces the request's own. `timeout` is for requests of text,
    `media_timeout` for those with media, both in seconds. Requests with a body of more than
    `most_bytes` bytes are not tokenized.
    """

    url: str
    model: str = ""
    timeout: float = 5.0
    media_timeout: float = 30.0
    most_bytes: int = 4 << 20


class _NotServed(Exception):
    """The server has no such endpoint."""


class CircuitBreaker:
    """Stops requests to a server for some time after failures in a row.

    The pause doubles with each further failure. Times are seconds of any monotonic clock.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0

    def is_open(self, now: float) -> bool:
        """Whether no request may be sent."""
        return now < self._until

    def record_failure(self, now: float) -> None:
        """Record a request without a response."""
        self._failures += 1
        beyond = self._failures - _TOLERATED_FAILURES
        if beyond >= 0:
            self._until = now + min(
                _MAX_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(beyond, 10)
            )

    def record_success(self) -> bool:
        """Record a response; return whether it ends an outage."""
        outage = self._failures >= _TOLERATED_FAILURES
        self._failures = 0
        return outage


class RenderTokenizer:
    """Tokenizes by one server, with a `CircuitBreaker`."""

    def __init__(self, settings: RenderSettings) -> None:
        self._settings = settings
        self._url = settings.url.rstrip("/")
        self._fallbacks = FallbackCounts()
        self._breaker = CircuitBreaker()
        self._renders = True
        self._session: aiohttp.ClientSession | None = None

    @property
    def counts(self) -> Mapping[FallbackCause, int]:
        """Requests that were not tokenized, by cause."""
        return self._fallbacks.counts

    def ready(self, request: InferenceRequest) -> tuple[Prompt, ...] | None:
        """Return the prompts if the server is not needed, or cannot be used."""
        if all(prompt.exact for prompt in request.prompts):
            return request.prompts
        reason = self._reason_not_to(request)
        if reason is None:
            return None
        self._fallbacks.add(reason)
        return request.prompts

    def _reason_not_to(self, request: InferenceRequest) -> TextFallback | None:
        if request.api not in _RENDER:
            return TextFallback(FallbackCause.API, request.api.value)
        if not request.body:
            return TextFallback(FallbackCause.BODY)
        if len(request.body) > self._settings.most_bytes:
            return TextFallback(FallbackCause.LARGE, f"{self._settings.most_bytes} bytes")
        if self._breaker.is_open(asyncio.get_running_loop().time()):
            return TextFallback(FallbackCause.UNAVAILABLE, self._url)
        return None

    async def tokenize(self, request: InferenceRequest) -> tuple[Prompt, ...]:
        """Request the prompts; return those of text after a failure."""
        media = any(word in request.body for word in _MEDIA_WORDS)
        settings = self._settings
        try:
            async with asyncio.timeout(settings.media_timeout if media else settings.timeout):
                prompts = await self._request_prompts(request, media=media)
        except TimeoutError:
            self._failed(TextFallback(FallbackCause.SLOW, self._url))
        except (aiohttp.ClientError, OSError, _NotServed) as error:
            self._failed(
                TextFallback(FallbackCause.UNAVAILABLE, f"{self._url}: {type(error).__name__}")
            )
        except TextFallback as reason:
            self._fallbacks.add(reason)
        else:
            if self._breaker.record_success():
                _log.info("tokens.render_recovered", url=self._url)
            return prompts
        return request.prompts

    def _failed(self, reason: TextFallback) -> None:
        self._fallbacks.add(reason)
        self._breaker.record_failure(asyncio.get_running_loop().time())

    async def _request_prompts(
        self, request: InferenceRequest, *, media: bool
    ) -> tuple[Prompt, ...]:
        request = as_chat(request)
        if self._renders:
            try:
                return await self._render(request, media=media)
            except _NotServed:
                self._renders = False
                _log.warning(
                    "tokens.no_render_endpoint",
                    url=self._url,
                    instead=_TOKENIZE,
                    remedy="vllm launch render, or vllm serve --enable-scale-out",
                )
        return await self._tokenize_texts(request)

    async def _render(self, request: InferenceRequest, *, media: bool) -> tuple[Prompt, ...]:
        body, model = request.body, self._settings.model or request.target_model
        if model != request.model:
            body = replace_model(body, model)
        if media:
            body = _HASHES_ONLY + body[body.index(b"{") + 1 :]
        content = await self._post(_RENDER[request.api], body)
        if request.api is not Api.COMPLETIONS:
            return (prompt_of(read(content, Rendered)),)
        prompts = [prompt_of(each) for each in read(content, list[Rendered])]
        if len(prompts) != len(request.prompts):
            raise TextFallback(FallbackCause.FAILED, "not as many prompts as were sent")
        return tuple(prompts)

    async def _tokenize_texts(self, request: InferenceRequest) -> tuple[Prompt, ...]:
        try:
            body = msgspec.json.decode(request.body, type=dict[str, Any])
        except UNREADABLE as error:
            raise TextFallback(FallbackCause.MALFORMED, type(error).__name__) from error
        model = self._settings.model or request.target_model
        if request.api is Api.CHAT:
            messages = body.get("messages")
            if not isinstance(messages, list):
                raise TextFallback(FallbackCause.MALFORMED, "`messages` is not a list")
            conversation(messages, ContentFormat.PARTS)  # media raise: no hashes
            fields = {key: body[key] for key in _CHAT_FIELDS if body.get(key) is not None}
            return (await self._ids({"model": model} | fields),)
        if request.api is not Api.COMPLETIONS:
            raise TextFallback(FallbackCause.API, request.api.value)
        prompt, sent = body.get("prompt"), request.prompts
        items = prompt if isinstance(prompt, list) else [prompt]
        if len(items) != len(sent):
            raise TextFallback(FallbackCause.MALFORMED, "a prompt is neither text nor token ids")
        special = body.get("add_special_tokens", True)
        common = {"model": model, "add_special_tokens": special}
        return tuple(
            [
                await self._ids(common | {"prompt": item}) if isinstance(item, str) else each
                for item, each in zip(items, sent, strict=True)
            ]
        )

    async def _ids(self, fields: Mapping[str, Any]) -> Prompt:
        content: Tokenized = read(
            await self._post(_TOKENIZE, msgspec.json.encode(fields)), Tokenized
        )
        return exact(content.tokens)

    async def _post(self, path: str, body: bytes) -> bytes:
        """Send a body; return the response's. Raises `TextFallback` if the server refuses it."""
        most = _MAX_RESPONSE_BYTES
        if not body.startswith(_HASHES_ONLY):
            most = min(most, _TEMPLATE_BYTES + _BYTES_PER_BYTE * len(body))
        # Prompts go nowhere else, whatever the server says.
        request = self._client().post(self._url + path, data=body, allow_redirects=False)
        async with request as response:
            content = bytearray()
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > most:
                    raise TextFallback(FallbackCause.FAILED, f"more than {most} bytes")
        if response.status == HTTPStatus.OK:
            return bytes(content)
        # vLLM answers 404 with an `error` for an unknown model, without one for an unknown path.
        unknown = response.status == HTTPStatus.NOT_FOUND and b'"error"' not in content
        if unknown or response.status in _NOT_SERVED:
            raise _NotServed
        if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise aiohttp.ClientResponseError(
                response.request_info, (), status=response.status, message="no tokens"
            )
        raise TextFallback(FallbackCause.REFUSED, f"HTTP status {response.status}")

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
