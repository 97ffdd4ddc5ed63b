"""One vLLM server that renders and tokenizes, over HTTP.

It is asked for `.../render`, which `vllm launch render` and `vllm serve --enable-scale-out` serve,
or for `/tokenize` if it has no such endpoint.
"""

import ssl
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec

from epp.adapters.tokens.anthropic_chat import as_chat
from epp.adapters.tokens.fallback import (
    FallbackCause,
    TextFallback,
    fields_of,
    without_changed_tokens,
)
from epp.adapters.tokens.local.chat_messages import ContentFormat, conversation, variables_of
from epp.adapters.tokens.render.circuit_breaker import CircuitBreaker
from epp.adapters.tokens.render.rendered import Rendered, Tokenized, exact, prompt_of, read
from epp.model.request import Api, InferenceRequest, Prompt
from epp.printable import without_user
from epp.protocol.bodies.coercion import UNREADABLE
from epp.protocol.bodies.model_rewrite import replace_model
from epp.system.logs import Log

_log = Log(__name__)

RENDER = {
    Api.CHAT: "/v1/chat/completions/render",
    Api.COMPLETIONS: "/v1/completions/render",
    Api.RESPONSES: "/v1/responses/render",
    Api.MESSAGES: "/v1/messages/render",
}
_TOKENIZE = "/tokenize"
_HASHES_ONLY = b'{"mm_payload":"none","return_mm_kwargs":false,'
"""Requests the hashes of media, without their processed inputs to the model.

vLLM 0.32 calls it by the first name, llm-d's render servers by the second.
"""
_CHAT_FIELDS = (
    "tools",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
)
"""Fields of a chat that `/tokenize` knows too. Others that reach a template are sent among its
variables (vLLM 0.32 `TokenizeChatRequest`).
"""
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
_BUSY = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
_FIRST_SERVER_ERROR = 500
_PASSED_ON = ("authorization",)
"""Headers of a request that go with its prompt: a server with `--api-key` renders for clients."""


class RenderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The servers and the limits of requests to them."""

    url: str = ""
    """The server; empty: those that are added."""
    model: str = ""
    """What is asked for in place of the request's own model, unless empty."""
    timeout: float = 5.0
    """Seconds for a request of text."""
    media_timeout: float = 30.0
    """Seconds for one with media."""
    attempt_timeout: float | None = None
    """Seconds after which another server is asked, if there is one; None: no limit but these."""
    most_bytes: int = 4 << 20
    """Bytes of a body; a longer one is not tokenized."""
    prefill_only: bool = False
    """Whether a prompt is rendered as if one token were to be generated."""
    tls: Callable[[], ssl.SSLContext] | None = None
    """Returns what a connection over TLS is made with; None: the system's authorities."""


class _NotServed(TextFallback):
    """The server has no such endpoint."""


class Busy(TextFallback):
    """The server could not answer, and another may."""


class RenderServer:
    """A server at a URL, with a `CircuitBreaker`; `client` returns the connections to it."""

    def __init__(
        self,
        url: str,
        settings: RenderSettings,
        now: Callable[[], float],
        client: Callable[[], aiohttp.ClientSession],
    ) -> None:
        self.url = url.rstrip("/")
        self.name = without_user(self.url)
        self.breaker = CircuitBreaker()
        # A URL with a password is one client's own authorization, and aiohttp sends no two.
        authority = self.url.partition("://")[2].partition("/")[0]
        self._passed_on = () if "@" in authority else _PASSED_ON
        self._settings = settings
        self._now = now
        self._client = client
        self._unserved: dict[str, float] = {}  # until when each path is not requested

    async def prompts(self, request: InferenceRequest, *, media: bool) -> tuple[Prompt, ...]:
        """Request the prompts. Raises `TextFallback`, and what aiohttp raises."""
        try:
            return await self._render(request, media=media)
        except _NotServed:
            if request.api is Api.MESSAGES:  # vLLM before 0.32
                return await self.prompts(as_chat(request), media=media)
        return await self._tokenize_texts(request)

    async def _render(self, request: InferenceRequest, *, media: bool) -> tuple[Prompt, ...]:
        body, model = request.body, self._settings.model or request.target_model
        if model != request.model:
            body = replace_model(body, model)
        if self._settings.prefill_only:
            body = ask_for_one_token(body)
        if media:
            body = _HASHES_ONLY + body[body.index(b"{") + 1 :]
        content = await self._post(RENDER[request.api], body, request)
        if request.api is not Api.COMPLETIONS:
            return (prompt_of(read(content, Rendered)),)
        prompts = [prompt_of(each) for each in read(content, list[Rendered])]
        if len(prompts) != len(request.prompts):
            raise TextFallback(FallbackCause.FAILED, "not as many prompts as were sent")
        return tuple(prompts)

    async def _tokenize_texts(self, request: InferenceRequest) -> tuple[Prompt, ...]:
        body = fields_of(request.body)
        without_changed_tokens(body)
        model = self._settings.model or request.target_model
        if request.api is Api.CHAT:
            messages = body.get("messages")
            if not isinstance(messages, list):
                raise TextFallback(FallbackCause.MALFORMED, "`messages` is not a list")
            conversation(messages, ContentFormat.PARTS)  # media raise: no hashes
            fields = {key: body[key] for key in _CHAT_FIELDS if body.get(key) is not None}
            fields |= {"model": model, "messages": list(map(_with_reasoning, messages))}
            fields["chat_template_kwargs"] = variables_of(body)
            return (await self._ids(fields, request),)
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
                await self._ids(common | {"prompt": item}, request)
                if isinstance(item, str)
                else each
                for item, each in zip(items, sent, strict=True)
            ]
        )

    async def _ids(self, fields: Mapping[str, Any], request: InferenceRequest) -> Prompt:
        content = await self._post(_TOKENIZE, msgspec.json.encode(fields), request)
        tokenized: Tokenized = read(content, Tokenized)
        return exact(tokenized.tokens)

    async def _post(self, path: str, body: bytes, of: InferenceRequest) -> bytes:
        """Send a body; return the response's. Raises `TextFallback` if the server refuses it."""
        if self._now() < self._unserved.get(path, 0.0):
            raise _NotServed(FallbackCause.UNAVAILABLE, path)
        most = _MAX_RESPONSE_BYTES
        if not body.startswith(_HASHES_ONLY):
            most = min(most, _TEMPLATE_BYTES + _BYTES_PER_BYTE * len(body))
        # Prompts go nowhere else, whatever the server says.
        request = self._client().post(
            self.url + path,
            data=body,
            headers={name: of.headers[name] for name in self._passed_on if name in of.headers},
            allow_redirects=False,
            ssl=True if self._settings.tls is None else self._settings.tls(),
        )
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
        kind = Busy if status in _BUSY or status >= _FIRST_SERVER_ERROR else TextFallback
        raise kind(FallbackCause.REFUSED, f"HTTP status {status}")

    def _set_unserved(self, path: str) -> None:
        if path not in {_TOKENIZE, RENDER[Api.MESSAGES], *self._unserved}:
            _log.warning(
                "tokens.no_render_endpoint",
                url=self.name + path,
                instead=_TOKENIZE,
                remedy="vllm launch render, or vllm serve --enable-scale-out",
            )
        self._unserved[path] = self._now() + _UNSERVED_SECONDS


def _with_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message with its reasoning under the only name that `/tokenize` reads."""
    # vLLM 0.32 `ChatCompletionRequest._normalize_messages_before`, which is not for `/tokenize`.
    if message.get("reasoning") is not None or message.get("reasoning_content") is None:
        return message
    return {**message, "reasoning": message["reasoning_content"]}


def ask_for_one_token(body: bytes) -> bytes:
    """Return a body that asks for one token, so that the whole context is left to its prompt.

    One that has its prompt truncated stays: by how much depends on what it asks for.
    """
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except UNREADABLE:
        return body
    if bytes(fields.get("truncate_prompt_tokens", b"null")) != b"null":
        return body
    fields["max_tokens"] = msgspec.Raw(b"1")
    for name, value in (("max_completion_tokens", b"1"), ("min_tokens", b"0")):
        if name in fields:
            fields[name] = msgspec.Raw(value)
    return msgspec.json.encode(fields)
