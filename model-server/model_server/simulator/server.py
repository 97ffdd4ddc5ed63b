"""The HTTP server: routes, errors, and the life of a call from body to last byte."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from model_server.simulator import orca
from model_server.simulator.adapters import Adapters
from model_server.simulator.bodies import (
    ChatBody,
    Common,
    CompletionBody,
    EmbeddingBody,
    Generation,
    ResponsesBody,
    StreamOptions,
    TokenizeBody,
    decode,
)
from model_server.simulator.completions import (
    ChatChunks,
    Head,
    TextChunks,
    whole_chat,
    whole_embeddings,
    whole_text,
)
from model_server.simulator.engine import Engine
from model_server.simulator.errors import ApiError, InvalidBody, Overloaded, error_body
from model_server.simulator.faults import Fault, Gone, before_answer, fault_of
from model_server.simulator.intake import Intake
from model_server.simulator.metrics import Metrics
from model_server.simulator.responses import ResponseEvents, whole_response
from model_server.simulator.scheduler import Finish, Request
from model_server.simulator.settings import Settings
from model_server.simulator.stream import Form, collect, stream

if TYPE_CHECKING:
    from model_server.simulator.kv_publisher import KvPublisher

VERSION = "0.32.0+simulator"
_MAX_BODY_BYTES = 512 * 1024 * 1024
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Whole = Callable[[Head, Sequence[str], Sequence[Finish | None]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Api:
    """One generating API: its body, how it becomes requests, and how answers are worded."""

    body: type[Generation]
    requests: Callable[[Intake, Any], list[Request]]
    prefix: str
    events: Callable[[Head], Form]
    whole: Whole
    reports_load: bool = True


APIS = {
    "/v1/chat/completions": Api(ChatBody, Intake.chat, "chatcmpl-", ChatChunks, whole_chat),
    "/v1/completions": Api(CompletionBody, Intake.completion, "cmpl-", TextChunks, whole_text),
    "/v1/responses": Api(
        ResponsesBody,
        Intake.responses,
        "resp_",
        ResponseEvents,
        whole_response,
        reports_load=False,
    ),
}


class Server:
    """The endpoints over one engine. `engine.run()` must be running while they are used."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics(settings)
        self._publisher = _publisher(settings)
        publish = None if self._publisher is None else self._publisher.publish
        self.engine = Engine(settings, self.metrics, publish)
        self.adapters = Adapters(settings.lora_modules, settings.served_model_name)
        self._intake = Intake(settings, self.adapters.paths)
        self._started = int(time.time())
        self._came = 0

    def application(self) -> web.Application:
        """Build the aiohttp application."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[self._guard])
        app.on_response_prepare.append(self._sign)
        app.cleanup_ctx.append(self._publishing)
        for path, api in APIS.items():
            app.router.add_post(path, self._generating(api))
        stored, one = self._intake.stored, "/v1/responses/{id}"
        app.router.add_get(one, self._of_response(stored.response))
        app.router.add_post(one + "/cancel", self._of_response(stored.cancel))
        app.router.add_post("/v1/chat/completions/render", self._render_chat)
        app.router.add_post("/v1/completions/render", self._render_texts)
        app.router.add_post("/v1/embeddings", self._embeddings)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/reset_prefix_cache", self._reset)
        if self.settings.runtime_loras:
            app.router.add_post("/v1/load_lora_adapter", self._adapter(self.adapters.load))
            app.router.add_post("/v1/unload_lora_adapter", self._adapter(self.adapters.unload))
        app.router.add_get("/kv_event_sources", self._sources)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def _publishing(self, _: web.Application) -> AsyncIterator[None]:
        """Publish KV events, if wanted, while the server runs."""
        if self._publisher is None:
            yield
        else:
            async with self._publisher.open():
                yield

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turn every error into OpenAI's form."""
        try:
            response = await handler(request)
        except ApiError as error:
            response = _encoded(error.body(), error.status)
            response.headers.update(error.headers)
        except web.HTTPException as error:
            body = error_body(error.reason, error.reason, error.status)
            response = _encoded(body, error.status)
        except web.RequestPayloadError as error:
            response = _encoded(InvalidBody(str(error)).body(), InvalidBody.status)
        except Gone:
            response = web.Response()
        return response

    async def _sign(self, http: web.Request, response: web.StreamResponse) -> None:
        """Add a header that says which of several simulators answered."""
        if self.settings.name:
            response.headers["x-sim-name"] = self.settings.name

    def _generating(self, api: Api) -> Handler:
        async def handle(http: web.Request) -> web.StreamResponse:
            fault = fault_of(http) if self.settings.faults else Fault()
            faulty = await before_answer(http, fault)
            if faulty is not None:
                return faulty
            body = decode(await http.read(), api.body)
            requests = api.requests(self._intake, body)
            await self._admit()
            call = self.engine.submit(requests)
            head = self._head(http, api.prefix, body, requests)
            try:
                if body.stream:
                    # A client that is gone is not an error, and nobody is left to tell.
                    form = api.events(head)
                    if isinstance(form, ResponseEvents):
                        form.keep = partial(self._keep, body)
                    with suppress(ConnectionResetError):
                        return await stream(http, call, form, fault.chunks)
                    raise Gone
                texts, finishes = await collect(call)
                whole = api.whole(head, texts, finishes)
                self._keep(body, whole)
                return self._whole(http, api, whole)
            finally:
                self.engine.abort(call)

        return handle

    def _keep(self, body: Generation, whole: dict[str, Any]) -> None:
        """Keep a response for requests that go on from it."""
        if isinstance(body, ResponsesBody) and body.store:
            self._intake.stored.keep(self._intake.response_turns(body), whole)

    def _of_response(self, read: Callable[[str], Mapping[str, Any]]) -> Handler:
        async def handle(http: web.Request) -> web.StreamResponse:
            return _json(read(http.match_info["id"]))

        return handle

    async def _admit(self) -> None:
        """Delay a request, or refuse it, as the settings' `strain` says."""
        strain, before = self.settings.strain, self._came
        if strain.sheds(self.engine.unfinished):
            raise Overloaded(retry_after=strain.shed_retry_after)
        self._came += 1
        if seconds := strain.wait_seconds(before):
            await asyncio.sleep(seconds)

    def _head(
        self, http: web.Request, prefix: str, body: Common, requests: Sequence[Request]
    ) -> Head:
        options = body.stream_options if isinstance(body, Generation) else None
        options = options or StreamOptions()
        return Head(
            id=prefix + (http.headers.get("X-Request-Id") or uuid.uuid4().hex),
            model=self._intake.model_name(body),
            created=int(time.time()),
            requests=requests,
            details=self.settings.prompt_tokens_details,
            include_usage=bool(options.include_usage),
            continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        )

    def _whole(self, http: web.Request, api: Api, body: dict[str, Any]) -> web.Response:
        response = _json(body)
        wanted = http.headers.get(orca.REQUEST_HEADER)
        if wanted and api.reports_load:
            response.headers.update(orca.report(wanted, self.metrics.load))
        return response

    async def _embeddings(self, http: web.Request) -> web.Response:
        body = decode(await http.read(), EmbeddingBody)
        requests = self._intake.pooling(body, self._intake.prompts(body.input))
        call = self.engine.submit(requests)
        try:
            await collect(call)
        finally:
            self.engine.abort(call)
        head = self._head(http, "embd-", body, requests)
        base64 = body.encoding_format == "base64"
        return _json(whole_embeddings(head, base64=base64))

    def _adapter(self, change: Callable[[bytes], str]) -> Handler:
        async def handle(http: web.Request) -> web.StreamResponse:
            return web.Response(text=change(await http.read()))

        return handle

    async def _render_chat(self, http: web.Request) -> web.Response:
        (made,) = self._intake.chat(decode(await http.read(), ChatBody))
        return _json({"token_ids": made.tokens.tolist()})

    async def _render_texts(self, http: web.Request) -> web.Response:
        made = self._intake.completion(decode(await http.read(), CompletionBody))
        return _json([{"token_ids": each.tokens.tolist()} for each in made])

    async def _tokenize(self, http: web.Request) -> web.Response:
        ids = self._intake.tokenize(decode(await http.read(), TokenizeBody)).tolist()
        length = self._intake.context_len
        body = {"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": None}
        return _json(body)

    async def _reset(self, http: web.Request) -> web.Response:
        return _json({"success": self.engine.scheduler.pool.reset()})

    async def _sources(self, http: web.Request) -> web.Response:
        config = None if self._publisher is None else self._publisher.config
        return _json({} if config is None else {0: config})

    async def _models(self, http: web.Request) -> web.Response:
        base = self.settings.served_model_name
        models = [self._model(base, base, None)]
        models += [self._model(*pair, base) for pair in self.adapters.paths.items()]
        return _json({"object": "list", "data": models})

    def _model(self, name: str, path: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._started,
            "owned_by": "vllm",
            "root": path,
            "parent": parent,
            "max_model_len": self._intake.context_len if parent is None else None,
        }

    async def _health(self, http: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, http: web.Request) -> web.Response:
        return _json({"version": VERSION})

    async def _metrics(self, http: web.Request) -> web.Response:
        strain = self.settings.strain
        if strain.no_page:
            raise web.HTTPNotFound
        if seconds := strain.page_seconds(self.engine.unfinished):
            await asyncio.sleep(seconds)
        return web.Response(body=self.metrics.render(), headers={"Content-Type": _METRICS_TYPE})


def _publisher(settings: Settings) -> "KvPublisher | None":
    """Build the publisher of KV events, the only part that needs pyzmq."""
    if not settings.kv_events.publishes:
        return None
    from model_server.simulator.kv_publisher import KvPublisher  # noqa: PLC0415 (an extra)

    return KvPublisher(settings.kv_events, settings.host)


def _json(value: object) -> web.Response:
    return _encoded(msgspec.json.encode(value))


def _encoded(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
