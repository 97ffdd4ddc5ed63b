"""Tokenization by the endpoints of a pool in turn, with TLS, and with what goes beside a prompt."""

import asyncio
import json
import ssl
from contextlib import AsyncExitStack

import aiohttp
import pytest
from structlog.testing import capture_logs

from epp.adapters.scrape.client_tls import ClientTlsSettings, client_tls
from epp.adapters.tokens.fallback import FallbackCause
from epp.adapters.tokens.render.render_server import RenderSettings, ask_for_one_token
from epp.adapters.tokens.render.render_tokenizer import RenderTokenizer
from epp.gateway.processes import free_port
from epp.values import replaced
from tests.adapters.self_signed import self_signed
from tests.adapters.tokens.bodies import chat, completions, ids
from tests.adapters.tokens.rendering import (
    CHAT,
    COMPLETIONS,
    NOT_FOUND,
    TOKENIZE,
    Clock,
    prompts_of,
    serving,
)

TOKENS = (200, {"token_ids": [1]})


@pytest.fixture
async def pool():
    """Two servers, in the order of their turns, and a tokenizer that they were added to."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving()) for _ in range(2)]
        servers.sort(key=lambda each: each.url)
        for each in servers:
            each.answers[CHAT] = TOKENS
        yield servers


def tokenizing(servers, now=None, **settings):
    tokenizer = RenderTokenizer(RenderSettings(**settings), *([now] if now else []))
    for number, each in enumerate(servers):
        tokenizer.add(f"pod-{number}", each.url)
    return tokenizer


async def asked_of(tokenizer):
    (prompt,) = await prompts_of(tokenizer, chat("hello"))
    return ids(prompt) if prompt.exact else None


async def test_servers_take_turns(pool):
    tokenizer = tokenizing(pool)
    for _ in range(6):
        assert await asked_of(tokenizer) == [1]
    assert [len(each.heard) for each in pool] == [3, 3]
    await tokenizer.close()


@pytest.mark.parametrize(
    ("status", "turns"), [(408, 4), (429, 4), (500, 4), (502, 2), (503, 2)], ids=str
)
async def test_another_server_is_asked_for_one_that_could_not_answer(pool, status, turns):
    """One that is not there loses its turns for a while."""
    broken, whole = pool
    broken.answers[CHAT] = (status, b"")
    tokenizer = tokenizing(pool, Clock())
    for _ in range(8):
        assert await asked_of(tokenizer) == [1]
    assert [len(each.heard) for each in (broken, whole)] == [turns, 8]
    assert tokenizer.counts == {}
    await tokenizer.close()


async def test_a_server_that_refuses_the_request_is_believed(pool):
    for each in pool:
        each.answers[CHAT] = (400, {"error": {"message": "too long"}})
    tokenizer = tokenizing(pool)
    assert await asked_of(tokenizer) is None
    assert sum(len(each.heard) for each in pool) == 1
    assert tokenizer.counts == {FallbackCause.REFUSED: 1}
    await tokenizer.close()


async def test_a_server_that_is_gone_is_passed_over(pool):
    clock = Clock()
    tokenizer = tokenizing(pool, clock)
    async with serving() as gone:
        tokenizer.add("pod-2", gone.url)
    for _ in range(9):
        assert await asked_of(tokenizer) == [1]
        clock.now += 0.01
    assert sum(len(each.heard) for each in pool) == 9
    await tokenizer.close()


async def test_another_server_is_asked_for_one_that_is_late(pool):
    pool[0].answers[CHAT] = (200, asyncio.Event())
    tokenizer = tokenizing(pool, attempt_timeout=0.05)
    assert await asked_of(tokenizer) == [1]
    assert [len(each.heard) for each in pool] == [1, 1]
    await tokenizer.close()


async def test_each_server_has_its_own_endpoints(pool):
    older, newer = pool
    older.answers[CHAT] = NOT_FOUND
    older.answers[TOKENIZE] = (200, {"tokens": [2]})
    tokenizer = tokenizing(pool)
    assert [await asked_of(tokenizer) for _ in range(4)] == [[2], [1], [2], [1]]
    tokenizer.add("pod-2", newer.url)  # what is known of the others stays
    assert await asked_of(tokenizer) == [2]
    assert [path for path, _ in older.heard] == [CHAT, *[TOKENIZE] * 3]
    assert [path for path, _ in newer.heard] == [CHAT, CHAT]
    await tokenizer.close()


async def test_without_a_server_prompts_stay_text(pool):
    tokenizer = tokenizing(pool)
    assert await asked_of(tokenizer) == [1]
    tokenizer.remove("pod-0")
    tokenizer.remove("pod-1")
    tokenizer.remove("never there")
    asked = chat("hello")
    assert tokenizer.ready(asked) is asked.prompts
    assert await tokenizer.tokenize(asked) is asked.prompts
    assert tokenizer.counts == {FallbackCause.UNAVAILABLE: 2}
    tokenizer.add("pod-0", pool[0].url)
    assert await asked_of(tokenizer) == [1]
    await tokenizer.close()


def chat_of(**headers):
    return replaced(chat("hello"), headers=headers)


async def test_a_clients_authorization_goes_with_its_prompt(pool):
    tokenizer = tokenizing(pool[:1])
    for each in (chat_of(authorization="Bearer sk", cookie="a=b"), chat_of()):
        (prompt,) = await prompts_of(tokenizer, each)
        assert ids(prompt) == [1]
    assert pool[0].authorized == ["Bearer sk"]
    await tokenizer.close()


async def test_a_url_with_a_password_has_an_authorization_of_its_own(pool):
    tokenizer = RenderTokenizer(RenderSettings(url=pool[0].url.replace("://", "://user:word@")))
    (prompt,) = await prompts_of(tokenizer, chat_of(authorization="Bearer sk"))
    assert ids(prompt) == [1]
    assert pool[0].authorized == [aiohttp.encode_basic_auth("user", "word")]
    await tokenizer.close()


async def test_no_log_has_the_password_of_a_url():
    url = f"http://user:word@127.0.0.1:{free_port()}"
    tokenizer = RenderTokenizer(RenderSettings(url=url))
    with capture_logs() as logs:
        for _ in range(5):
            await prompts_of(tokenizer, chat("hello"))
    await tokenizer.close()
    assert logs
    assert not [each for each in logs if "word" in str(each)]


async def test_a_prompt_may_be_rendered_as_if_for_one_token(pool):
    pool[0].answers[COMPLETIONS] = (200, [{"token_ids": [1]}])
    tokenizer = tokenizing(pool[:1], prefill_only=True)
    asked = completions("hello", max_tokens=90_000, min_tokens=5, seed=7)
    (prompt,) = await prompts_of(tokenizer, asked)
    assert ids(prompt) == [1]
    ((_, body),) = pool[0].heard
    assert body == json.loads(asked.body) | {"max_tokens": 1, "min_tokens": 0}
    await tokenizer.close()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"a":{"z":1,"y":[2]}}', b'{"a":{"z":1,"y":[2]},"max_tokens":1}'),
        (b'{"max_completion_tokens":9}', b'{"max_completion_tokens":1,"max_tokens":1}'),
        (b'{"truncate_prompt_tokens":null}', b'{"truncate_prompt_tokens":null,"max_tokens":1}'),
        (b'{"truncate_prompt_tokens":-1,"max_tokens":9}', None),
        (b"[1]", None),
        (b"{", None),
    ],
)
def test_what_asks_for_one_token(body, expected):
    assert ask_for_one_token(body) == (body if expected is None else expected)


async def test_servers_over_tls_are_verified(tmp_path, monkeypatch):
    key, cert = self_signed("EC")
    (tmp_path / "both.pem").write_bytes(key + cert)
    (tmp_path / "ca.pem").write_bytes(cert)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "both.pem")
    trusting = client_tls(ClientTlsSettings(verify=True, authorities=str(tmp_path / "ca.pem")))
    careless = client_tls(ClientTlsSettings())
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))  # as the system's authorities
    system = client_tls(ClientTlsSettings(verify=True))
    async with serving(tls=context) as server:
        server.answers[CHAT] = TOKENS
        for tls, found in ((trusting, [1]), (careless, [1]), (system, [1]), (None, None)):
            tokenizer = tokenizing([server], tls=tls)
            assert await asked_of(tokenizer) == found
            await tokenizer.close()
