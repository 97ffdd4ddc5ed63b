"""The models of all servers in one list, with which `GET /v1/models` is answered."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus

import aiohttp
import msgspec
from aiohttp import web

from epp.up.pages import MAX_MODELS_BYTES, ServerPages
from epp.up.servers import Address

PATH = "/v1/models"
LIST_SECONDS = 5.0
"""How long all servers together have to answer."""
_REST_SECONDS = 2.0
"""How long the others have once one has answered; the list is without those that take longer."""
_KEPT_SECONDS = 1.0
_SECONDS_PER_SERVER = 0.002
"""The pause before a list is made: constant requests for it take only a part of this process."""
_MAX_ASKED, _MAX_LISTS, _MAX_AT_ONCE = 64, 16, 16
_AWAY = b'{"error": {"message": "no model server lists its models", "type": "%s", "code": 503}}' % (
    b"ServiceUnavailableError"
)

Page = tuple[int, bytes]


class _Card(msgspec.Struct, frozen=True):
    id: str


class _Listed(msgspec.Struct, frozen=True):
    data: list[msgspec.Raw]


_decode_list = msgspec.json.Decoder(_Listed).decode
_decode_card = msgspec.json.Decoder(_Card).decode


class ModelList:
    """Serves the list at `port` of 127.0.0.1, made from the lists of `addresses`.

    Servers are asked with the client's authorization. Clients with the same authorization share a
    list for a second. If there are too many different ones, the answer is 503.
    """

    def __init__(
        self, pages: ServerPages, addresses: Callable[[], Sequence[Address]], port: int
    ) -> None:
        self._pages = pages
        self._addresses = addresses
        self._port = port
        self._asked: dict[str, asyncio.Task[Page]] = {}
        self._turn = asyncio.Lock()
        self._lists = asyncio.Semaphore(_MAX_LISTS)
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen."""
        app = web.Application()
        app.router.add_get(PATH, self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()

    async def close(self) -> None:
        """Stop listening."""
        for task in self._asked.values():
            task.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
        await self._pages.close()

    async def _answer(self, request: web.Request) -> web.Response:
        authorization = request.headers.get("authorization", "")
        task = self._asked.get(authorization)
        if task is None:
            if len(self._asked) >= _MAX_ASKED:
                return _response((HTTPStatus.SERVICE_UNAVAILABLE, _AWAY))
            task = self._asked[authorization] = asyncio.create_task(self._list(authorization))
            task.add_done_callback(lambda _: self._forget_later(authorization))
        return _response(await asyncio.shield(task))

    def _forget_later(self, authorization: str) -> None:
        asyncio.get_running_loop().call_later(_KEPT_SECONDS, self._asked.pop, authorization, None)

    async def _list(self, authorization: str) -> Page:
        async with self._lists:  # a server that does not answer holds up its own list alone
            addresses = self._addresses()
            async with self._turn:
                await asyncio.sleep(_SECONDS_PER_SERVER * len(addresses))
            limit = asyncio.Semaphore(_MAX_AT_ONCE)
            asking = [
                asyncio.create_task(self._page(each, authorization, limit)) for each in addresses
            ]
            try:
                await _answered(asking)
            finally:
                for task in asking:
                    task.cancel()
        found = [each.result() for each in asking if each.done() and not each.cancelled()]
        return merged(page for page in found if page is not None)

    async def _page(
        self, address: Address, authorization: str, limit: asyncio.Semaphore
    ) -> Page | None:
        async with limit:
            try:
                return await self._pages.get(address, PATH, MAX_MODELS_BYTES, authorization)
            except (aiohttp.ClientError, TimeoutError, OSError):
                return None


async def _answered(asking: Sequence[asyncio.Task[Page | None]]) -> None:
    """Wait until all have answered, or the time for the others is over."""
    loop, waiting = asyncio.get_running_loop(), set(asking)
    end = loop.time() + LIST_SECONDS
    while waiting and (left := end - loop.time()) > 0:
        done, waiting = await asyncio.wait(
            waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED
        )
        if any(each.result() is not None for each in done):
            end = min(end, loop.time() + _REST_SECONDS)


def merged(pages: Iterable[Page]) -> Page:
    """Return the lists of several servers as one, which has each model once.

    A single list stays as it is. If there is none, the first answer is returned, such as 401.
    """
    answers = list(pages)
    lists = [body for status, body in answers if status == HTTPStatus.OK]
    cards: dict[str, msgspec.Raw] = {}
    readable = []
    for body in lists:
        try:
            listed = [(_decode_card(card).id, card) for card in _decode_list(body).data]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        readable.append(body)
        for name, card in listed:
            cards.setdefault(name, card)
    if len(readable) > 1:
        return 200, msgspec.json.encode({"object": "list", "data": list(cards.values())})
    if lists:
        return 200, (readable or lists)[0]
    return answers[0] if answers else (HTTPStatus.SERVICE_UNAVAILABLE, _AWAY)


def _response(page: Page) -> web.Response:
    status, body = page
    return web.Response(status=status, body=body, content_type="application/json")
