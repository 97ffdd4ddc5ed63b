"""The HTTP server: lets requests in, answers them, and streams watches. All on one event loop."""

import asyncio
import ssl
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
from aiohttp import web

from tests.kubeapi import verbs
from tests.kubeapi.access import Access
from tests.kubeapi.answers import Answer, of_error
from tests.kubeapi.faults import Dropped, Fault
from tests.kubeapi.registry import Registry
from tests.kubeapi.request import Ask, parse
from tests.kubeapi.status import (
    ApiError,
    GroupResource,
    PlainTextError,
    no_such_path,
    unauthorized,
)
from tests.kubeapi.watch import Watch

HOST: Final = "127.0.0.1"


class Stream:
    """A watch and the connection that it goes out on."""

    def __init__(self, ask: Ask, watch: Watch, request: web.BaseRequest) -> None:
        self.ask = ask
        self.watch = watch
        self._request = request

    def say(self, line: bytes) -> None:
        """Send bytes as they are: half a line, nonsense, an event of one's own."""
        self.watch.say(line)

    def finish(self) -> None:
        """End it in good order once everything is sent."""
        self.watch.finish()

    def abort(self) -> None:
        """Reset the connection."""
        if self._request.transport is not None:
            self._request.transport.abort()


class Server:
    """Serves a registry; nothing is sent to anyone while `flowing` is not set."""

    def __init__(self, registry: Registry, access: Access, port: int) -> None:
        self.registry = registry
        self.access = access
        self.faults: list[Fault] = []
        self.requests: list[Ask] = []
        self.streams: list[Stream] = []
        self.heard: list[Callable[[Ask], None]] = []
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.drip: tuple[int, float] | None = None  # bytes a write, seconds between writes
        self.port = port
        self._listener: asyncio.Server | None = None
        self._http: web.Server | None = None
        registry.withdrawn.append(self._withdrawn)

    async def start(self, context: ssl.SSLContext | None = None) -> None:
        """Listen on 127.0.0.1."""
        loop = asyncio.get_running_loop()
        self._http = web.Server(self._handle, handler_cancellation=True, access_log=None)
        self._listener = await loop.create_server(self._http, HOST, self.port, ssl=context)

    async def stop(self) -> None:
        """Reset every connection and listen no more."""
        assert self._listener is not None
        assert self._http is not None
        self._listener.close()
        for _ in range(3):  # until those that were just accepted are connections, too
            await asyncio.sleep(0)
        self.drop_connections()
        await self._http.shutdown(timeout=1)
        await self._listener.wait_closed()

    def drop_connections(self) -> None:
        assert self._http is not None
        for connection in self._http.connections:
            if connection.transport is not None:
                connection.transport.abort()

    def _withdrawn(self, resource: GroupResource) -> None:
        for stream in self.streams:
            if stream.watch.target.kind.resource == resource:
                stream.finish()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        ask = parse(request.method, request.path, dict(request.query))
        try:
            ask, done = await self._admitted(ask, request)
            if done is None and ask.verb == "watch":
                return await self._watch(ask, request)
            answer = done if done is not None else await self._answer(ask, request)
        except (ApiError, PlainTextError) as error:
            answer = of_error(error)
        except Dropped:
            if request.transport is not None:
                request.transport.abort()
            answer = Answer()
        return await self._send(request, answer)

    async def _admitted(self, ask: Ask, request: web.BaseRequest) -> tuple[Ask, Answer | None]:
        """Faults first, as they lie before everything; then who asks, then whether they may."""
        try:
            who = self.access.identify(request.headers, _certificate(request))
        except ApiError:
            who = None
        ask = msgspec.structs.replace(ask, user=who.name if who else "")
        self.requests.append(ask)
        for heard in tuple(self.heard):
            heard(ask)
        await self.flowing.wait()
        for fault in self.faults:
            if fault.takes(ask) and (answer := await fault.effect(ask)) is not None:
                return ask, answer
        if who is None:
            raise unauthorized()
        self.access.authorize(who, ask)
        return ask, None

    async def _answer(self, ask: Ask, request: web.BaseRequest) -> Answer:
        if not ask.is_resource:
            raise no_such_path()
        call = verbs.Call(
            registry=self.registry,
            access=self.access,
            ask=ask,
            target=verbs.target_of(self.registry, ask),
            body=await request.read(),
            media=request.headers.get("Content-Type", "").partition(";")[0].strip().lower(),
        )
        return verbs.answer(call)

    async def _send(self, request: web.BaseRequest, answer: Answer) -> web.StreamResponse:
        await self.flowing.wait()
        response = web.StreamResponse(status=answer.code, headers=_headers(answer))
        response.content_length = len(answer.body)
        with suppress(ConnectionResetError):  # who asked may be gone
            await response.prepare(request)
            if request.method != "HEAD":
                await self._write(response, answer.body)
            await response.write_eof()
        return response

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        if self.drip is None:
            await response.write(data)
            return
        size, pause = self.drip
        for start in range(0, len(data), size):
            await response.write(data[start : start + size])
            await asyncio.sleep(pause)

    async def _watch(self, ask: Ask, request: web.BaseRequest) -> web.StreamResponse:
        target = verbs.target_of(self.registry, ask)
        watch = Watch(self.registry.store, target, ask.query)
        stream = Stream(ask, watch, request)
        self.streams.append(stream)
        try:
            response = web.StreamResponse(headers=_headers(Answer()))
            response.enable_chunked_encoding()
            await response.prepare(request)
            with suppress(ConnectionResetError):
                async for batch in watch.batches():
                    await self.flowing.wait()
                    await self._write(response, batch)
                await response.write_eof()
        finally:
            self.streams.remove(stream)
            watch.close()
        return response


def _certificate(request: web.BaseRequest) -> dict[str, object] | None:
    found: dict[str, object] | None = request.get_extra_info("peercert")
    return found or None


def _headers(answer: Answer) -> dict[str, str]:
    fixed = {"Audit-Id": str(uuid.uuid4()), "Cache-Control": "no-cache, private"}
    return fixed | {"Content-Type": answer.content_type} | answer.headers
