"""The models of all servers in one list, however these answer."""

import asyncio
import contextlib
import json
from collections import Counter

import aiohttp
import pytest

from epp.gateway.processes import free_port
from epp.up.model_list import ModelList, merged
from epp.up.pages import ServerPages
from epp.up.servers import Address, model_servers


def page(*names, **more):
    cards = [{"id": name, "object": "model", "owned_by": "vllm", **more} for name in names]
    return json.dumps({"object": "list", "data": cards}).encode()


def names(body):
    return [card["id"] for card in json.loads(body)["data"]]


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        ([page("a", "b"), page("b", "c"), page()], ["a", "b", "c"]),
        ([page("a"), b"[]", b'{"data": [{}]}', b"\xff", b"[" * 100_000, page("b")], ["a", "b"]),
        ([page("a"), page("a")], ["a"]),
    ],
)
def test_each_model_is_listed_once(pages, expected):
    status, body = merged([(500, b"down"), *((200, each) for each in pages)])
    assert (status, names(body)) == (200, expected)


def test_a_model_is_listed_as_its_server_does():
    _, body = merged([(200, page("a", max_model_len=8)), (200, page("a", "b", root="x"))])
    assert json.loads(body)["data"] == [
        {"id": "a", "object": "model", "owned_by": "vllm", "max_model_len": 8},
        {"id": "b", "object": "model", "owned_by": "vllm", "root": "x"},
    ]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([(200, b'{"models": []}')], (200, b'{"models": []}')),
        ([(401, b"key?"), (200, page("a")), (401, b"key?")], (200, page("a"))),
        ([(401, b"key?"), (500, b"")], (401, b"key?")),
        ([(200, b"<html>"), (200, page("a"))], (200, page("a"))),
    ],
)
def test_a_single_answer_stays_as_it_is(answers, expected):
    assert merged(answers) == expected


def test_no_answer_is_an_error_that_says_so():
    status, body = merged([])
    assert (status, json.loads(body)["error"]["code"]) == (503, 503)


class Servers:
    """Model servers that answer only those who bring the key."""

    def __init__(self, *models, key="Bearer k"):
        self.models, self.key = models, key
        self.asked = Counter[str]()
        self.held = dict[str, asyncio.Event]()

    @contextlib.asynccontextmanager
    async def listed(self):
        """Serve their list; yield what asks for it."""
        async with contextlib.AsyncExitStack() as stack:
            ports = [await stack.enter_async_context(self._serving(model)) for model in self.models]
            urls = [f"http://127.0.0.1:{port}" for port in ports]
            servers = model_servers([*urls, f"http://127.0.0.1:{free_port()}"])
            addresses = [Address(each.authority, each.host, each.port) for each in servers]
            models = ModelList(
                ServerPages(servers, None, "", 5), lambda: addresses, port := free_port()
            )
            await models.start()
            stack.push_async_callback(models.close)
            client = await stack.enter_async_context(aiohttp.ClientSession())

            async def ask(key):
                url = f"http://127.0.0.1:{port}/v1/models"
                async with client.get(url, headers={"authorization": key}) as response:
                    return response.status, await response.read()

            yield ask

    @contextlib.asynccontextmanager
    async def _serving(self, model):
        async def answer(reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            known = f"authorization: {self.key}".encode() in head.replace(b"Auth", b"auth")
            self.asked[model] += 1
            if model in self.held:
                await self.held[model].wait()
            status, body = (b"200 OK", page(model)) if known else (b"401 No", b"{}")
            writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            yield server.sockets[0].getsockname()[1]


async def test_servers_are_asked_with_the_clients_key_and_those_away_are_left_out():
    async with Servers("a", "b").listed() as ask:
        status, body = await ask("Bearer k")
        assert (status, names(body)) == (200, ["a", "b"])
        assert await ask("Bearer other") == (401, b"{}")


async def test_clients_with_one_key_share_a_list():
    servers = Servers("a", "b")
    async with servers.listed() as ask:
        found = await asyncio.gather(*(ask("Bearer k") for _ in range(100)))
        assert {status for status, _ in found} == {200}
    assert servers.asked == {"a": 1, "b": 1}


async def test_keys_without_end_do_not_make_lists_without_end():
    servers = Servers("a")
    async with servers.listed() as ask:
        found = await asyncio.gather(*(ask(f"Bearer {number}") for number in range(200)))
    assert {status for status, _ in found} == {401, 503}
    assert servers.asked["a"] < 200


async def test_a_server_that_does_not_answer_holds_up_no_list_of_another_key():
    servers = Servers("a", "b")
    servers.held["b"] = asyncio.Event()
    async with servers.listed() as ask:
        asking = [asyncio.create_task(ask(f"Bearer {number}")) for number in range(3)]
        while servers.asked["b"] < 3:
            assert not any(each.done() for each in asking)
            await asyncio.sleep(0)
        servers.held["b"].set()
        assert await asyncio.gather(*asking) == [(401, b"{}")] * 3
