"""Tokenization by a vLLM server over HTTP.

It uses `.../render`, which `vllm launch render` and `vllm serve --enable-scale-out` serve, or
`/tokenize` if the server has no such endpoint.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec
import structlog

from epp.adapters.tokens.anthropic_chat import as_chat
from epp.adapters.tokens.fallback import FallbackCause, FallbackCounts, TextFallback
from epp.adapters.tokens.local.chat_messages import ContentFormat, conversation
from epp.adapters.tokens.render.circuit_breaker import CircuitBreaker
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
    Api.MESSAGES: "/v1/messages/render",
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
_NOT_SERVED = {HTTPStatus.FORBIDDEN, HTTPStatus.METHOD_NOT_ALLOWED}
_NOT_SERVED_WITHOUT_ERROR = {HTTPStatus.NOT_FOUND, HTTPStatus.NOT_IMPLEMENTED}
"""With an `error` vLLM answers the request: an unknown model, input that it cannot take."""
_OUTAGE = {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE}
_UNSERVED_SECONDS = 30.0
"""How long a path that is not served is not requested: a proxy may have answered for the server."""
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


class _NotServed(TextFallback):
    """The server has no such endpoint."""


class RenderTokenizer:
    """Tokenizes by one server, with a `CircuitBreaker`. `now` is a monotonic clock, in seconds."""

    def __init__(self, settings: RenderSettings, now: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._now = now
        self._url = settings.url.rstrip("/")
        self._fallbacks = FallbackCounts()
        self._breaker = CircuitBreaker()
        self._unserved: dict[str, float] = {}  # until when each path is not requested
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
        if self._breaker.is_open(self._now()):
            return TextFallback(FallbackCause.UNAVAILABLE, self._url)
        return None

    async def tokenize(self, request: InferenceRequest) -> tuple[Prompt, ...]:
        """Request the prompts; return those of text after a failure."""
        media = any(word in request.body for word in _MEDIA_WORDS)
        settings, sent = self._settings, self._now()
        try:
            async with asyncio.timeout(settings.media_timeout if media else settings.timeout):
                prompts = await self._request_prompts(request, media=media)
        except TextFallback as reason:
            self._fallbacks.add(reason)
        except TimeoutError as error:
            self._fallbacks.add(TextFallback(FallbackCause.SLOW, self._url))
            # Media come from other servers, which may be what is slow.
            if not media or isinstance(error, aiohttp.ClientError):
                self._breaker.record_failure(sent, self._now())
        except (aiohttp.ClientError, OSError) as error:
            detail = f"{self._url}: {type(error).__name__}"
            self._fallbacks.add(TextFallback(FallbackCause.UNAVAILABLE, detail))
            self._breaker.record_failure(sent, self._now())
        else:
            if self._breaker.record_success():
                _log.info("tokens.render_recovered", url=self._url)
            return prompts
        return request.prompts

    async def _request_prompts(
        self, request: InferenceRequest, *, media: bool
    ) -> tuple[Prompt, ...]:
        try:
            return await self._render(request, media=media)
        except _NotServed:
            if request.api is Api.MESSAGES:  # vLLM before 0.32
                return await self._request_prompts(as_chat(request), media=media)
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
        if self._now() < self._unserved.get(path, 0.0):
            raise _NotServed(FallbackCause.UNAVAILABLE, path)
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
        status, explained = response.status, b'"error"' in content
        if status in _NOT_SERVED or (status in _NOT_SERVED_WITHOUT_ERROR and not explained):
            self._set_unserved(path)
            raise _NotServed(FallbackCause.UNAVAILABLE, f"{path}: HTTP status {status}")
        if status in _OUTAGE:
            raise aiohttp.ClientResponseError(
                response.request_info, (), status=status, message="no tokens"
            )
        raise TextFallback(FallbackCause.REFUSED, f"HTTP status {status}")

    def _set_unserved(self, path: str) -> None:
        if path not in {_TOKENIZE, _RENDER[Api.MESSAGES], *self._unserved}:
            _log.warning(
                "tokens.no_render_endpoint",
                url=self._url + path,
                instead=_TOKENIZE,
                remedy="vllm launch render, or vllm serve --enable-scale-out",
            )
        self._unserved[path] = self._now() + _UNSERVED_SECONDS

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
