"""Tokens asked of vLLM over HTTP.

Of `.../render`, which `vllm launch render` and `vllm serve --enable-scale-out` have; of
`/tokenize` where a server has no such endpoint.
"""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec
import structlog

from epp.adapters.tokens.fallback import FallbackCause, FallbackCounts, TextFallback
from epp.adapters.tokens.local.chat_messages import ContentFormat, conversation
from epp.adapters.tokens.render.rendered import Rendered, Tokenized, exact, prompt_of, read
from epp.errors import MalformedRequest
from epp.model.request import Api, InferenceRequest, Prompt
from epp.protocol.openai.model_rewrite import replace_model

_log = structlog.get_logger(__name__)

_RENDER = {
    Api.CHAT: "/v1/chat/completions/render",
    Api.COMPLETIONS: "/v1/completions/render",
    Api.RESPONSES: "/v1/responses/render",
}
_TOKENIZE = "/tokenize"
_MEDIA_WORDS = (b'"image', b'"input_image', b'"video', b'"audio', b'"input_audio')
_LIGHT = b'{"mm_payload":"none",'
"""Asks for hashes of media without what the model computes from them."""
_CHAT_FIELDS = (
    "messages",
    "tools",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
)
_NOT_SERVED = {HTTPStatus.FORBIDDEN, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}
_MOST_ANSWER = 64 << 20
_CONNECTIONS = 64
_CONNECT_SECONDS = 1.0
_TOLERATED = 2
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


class RenderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where to ask. `model` goes in the place of the request's own where it is not empty.

    `timeout` is for text, `media_timeout` for what has media in it, both in seconds. Bodies
    beyond `most_bytes` stay text.
    """

    url: str
    model: str = ""
    timeout: float = 5.0
    media_timeout: float = 30.0
    most_bytes: int = 4 << 20


class _NotServed(Exception):
    """The server has no such endpoint."""


class CircuitBreaker:
    """Open for a while after failures in a row; each time that one more is tried, twice as long.

    Times are seconds of any steady clock.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0

    def open(self, now: float) -> bool:
        """Whether nothing should be asked."""
        return now < self._until

    def failed(self, now: float) -> None:
        """Take note that nothing came back."""
        self._failures += 1
        beyond = self._failures - _TOLERATED
        if beyond >= 0:
            self._until = now + min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(beyond, 10))

    def answered(self) -> bool:
        """Take note of an answer; return whether it ends an outage."""
        outage = self._failures >= _TOLERATED
        self._failures = 0
        return outage


class RenderTokenizer:
    """Asks one server. After failures in a row it is left alone for a while."""

    def __init__(self, settings: RenderSettings) -> None:
        self._settings = settings
        self._url = settings.url.rstrip("/")
        self._regrets = FallbackCounts()
        self._breaker = CircuitBreaker()
        self._renders = True
        self._session: aiohttp.ClientSession | None = None

    @property
    def counts(self) -> Mapping[FallbackCause, int]:
        """Requests that were left as text, by cause."""
        return self._regrets.counts

    def ready(self, request: InferenceRequest) -> tuple[Prompt, ...] | None:
        """Return the prompts where the server need not or cannot be asked."""
        if all(prompt.exact for prompt in request.prompts):
            return request.prompts
        reason = self._reason_not_to(request)
        if reason is None:
            return None
        self._regrets.note(reason)
        return request.prompts

    def _reason_not_to(self, request: InferenceRequest) -> TextFallback | None:
        if request.api not in _RENDER:
            return TextFallback(FallbackCause.API, request.api.value)
        if not request.body:
            return TextFallback(FallbackCause.BODY)
        if len(request.body) > self._settings.most_bytes:
            return TextFallback(FallbackCause.LARGE, f"{self._settings.most_bytes} bytes")
        if self._breaker.open(asyncio.get_running_loop().time()):
            return TextFallback(FallbackCause.UNAVAILABLE, self._url)
        return None

    async def tokenize(self, request: InferenceRequest) -> tuple[Prompt, ...]:
        """Ask for the prompts; return those of text where there is a reason."""
        media = any(word in request.body for word in _MEDIA_WORDS)
        settings = self._settings
        try:
            async with asyncio.timeout(settings.media_timeout if media else settings.timeout):
                prompts = await self._asked(request, media=media)
        except TimeoutError:
            self._failed(TextFallback(FallbackCause.SLOW, self._url))
        except (aiohttp.ClientError, OSError, _NotServed) as error:
            self._failed(
                TextFallback(FallbackCause.UNAVAILABLE, f"{self._url}: {type(error).__name__}")
            )
        except (TextFallback, MalformedRequest) as reason:
            instead = (
                reason
                if isinstance(reason, TextFallback)
                else TextFallback(FallbackCause.MALFORMED)
            )
            self._regrets.note(instead)
        else:
            if self._breaker.answered():
                _log.info("tokens.render_recovered", url=self._url)
            return prompts
        return request.prompts

    def _failed(self, reason: TextFallback) -> None:
        self._regrets.note(reason)
        self._breaker.failed(asyncio.get_running_loop().time())

    async def _asked(self, request: InferenceRequest, *, media: bool) -> tuple[Prompt, ...]:
        if self._renders:
            try:
                return await self._rendered(request, media=media)
            except _NotServed:
                self._renders = False
                _log.warning(
                    "tokens.no_render_endpoint",
                    url=self._url,
                    instead=_TOKENIZE,
                    remedy="vllm launch render, or vllm serve --enable-scale-out",
                )
        return await self._tokenized(request)

    async def _rendered(self, request: InferenceRequest, *, media: bool) -> tuple[Prompt, ...]:
        body, model = request.body, self._settings.model or request.target_model
        if model != request.model:
            body = replace_model(body, model)
        if media:
            body = _LIGHT + body[body.index(b"{") + 1 :]
        answer = await self._post(_RENDER[request.api], body)
        if request.api is not Api.COMPLETIONS:
            return (prompt_of(read(answer, Rendered)),)
        prompts = [prompt_of(each) for each in read(answer, list[Rendered])]
        if len(prompts) != len(request.prompts):
            raise TextFallback(FallbackCause.FAILED, "not as many prompts as were sent")
        return tuple(prompts)

    async def _tokenized(self, request: InferenceRequest) -> tuple[Prompt, ...]:
        body: dict[str, Any] = msgspec.json.decode(request.body, type=dict[str, Any])
        model = self._settings.model or request.target_model
        if request.api is Api.CHAT:
            conversation(body.get("messages") or [], ContentFormat.PARTS)  # media raise: no hashes
            asked = {key: body[key] for key in _CHAT_FIELDS if body.get(key) is not None}
            return (await self._ids({"model": model} | asked),)
        if request.api is not Api.COMPLETIONS:
            raise TextFallback(FallbackCause.API, request.api.value)
        items = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        special = body.get("add_special_tokens", True)
        common = {"model": model, "add_special_tokens": special}
        pairs = zip(items, request.prompts, strict=True)
        return tuple(
            [
                await self._ids(common | {"prompt": item}) if isinstance(item, str) else came
                for item, came in pairs
            ]
        )

    async def _ids(self, asked: Mapping[str, Any]) -> Prompt:
        answer: Tokenized = read(await self._post(_TOKENIZE, msgspec.json.encode(asked)), Tokenized)
        return exact(answer.tokens)

    async def _post(self, path: str, body: bytes) -> bytes:
        """Send a body; return the answer. Raises `TextFallback` where the server refuses it."""
        headers = {"content-type": "application/json"}
        async with self._open().post(self._url + path, data=body, headers=headers) as response:
            answer = bytearray()
            async for chunk in response.content.iter_any():
                answer += chunk
                if len(answer) > _MOST_ANSWER:
                    raise TextFallback(
                        FallbackCause.FAILED, f"an answer of more than {_MOST_ANSWER} bytes"
                    )
        if response.status == HTTPStatus.OK:
            return bytes(answer)
        unknown = response.status == HTTPStatus.NOT_FOUND and b'"error"' not in answer
        if unknown or response.status in _NOT_SERVED:
            raise _NotServed
        if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise aiohttp.ClientResponseError(
                response.request_info, (), status=response.status, message="no tokens"
            )
        raise TextFallback(FallbackCause.REFUSED, f"HTTP status {response.status}")

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
