"""A server that fails, or whose answer is not a prompt: text stays text, for a cause."""

import asyncio

import pytest
from structlog.testing import capture_logs

from epp.adapters.tokens.fallback import FallbackCause
from epp.adapters.tokens.render.circuit_breaker import CircuitBreaker
from tests.adapters.tokens.bodies import chat, completions, ids
from tests.adapters.tokens.rendering import (
    CHAT,
    COMPLETIONS,
    DEEP,
    REFUSAL,
    Clock,
    image,
    prompts_of,
    serving,
)
from tests.held_port import held_port


def featured(**features):
    return {"token_ids": [1, 2], "features": features}


def at(length):
    return [{"offset": 0, "length": length}]


UNLIKE_PROMPTS = (
    *(b"", b"hello", b"<html>", DEEP, b'{"token_ids":' + DEEP),
    b'{"token_ids":[1],"more":' + DEEP,
    b'{"token_ids":[1],"features":{"mm_hashes":{"\xff":["\xff"]}}}',
    b'{"token_ids":[' + b"1," * (5 << 20) + b"1]}",
    b'{"token_ids":[1]}' + b" " * (1 << 20),
    *({"token_ids": [each]} for each in (99999999999999999999, 1 << 40, -1, 1.5)),
    *({"token_ids": "no"}, []),
    featured(mm_hashes={"image": ["a"]}, mm_placeholders={"image": at(9)}),
    featured(mm_hashes={"a": ["x", "y"]}, mm_placeholders={"a": at(2) * 2}),
    featured(mm_hashes={"a": ["x"], "b": ["y"]}, mm_placeholders={"a": at(2), "b": at(2)}),
)


@pytest.mark.parametrize(
    ("status", "content", "cause"),
    [
        (400, REFUSAL, FallbackCause.REFUSED),
        (404, REFUSAL, FallbackCause.REFUSED),
        (413, b"too long", FallbackCause.REFUSED),
        (500, {}, FallbackCause.REFUSED),
        (501, REFUSAL, FallbackCause.REFUSED),
        (502, b"", FallbackCause.UNAVAILABLE),
        (503, b"", FallbackCause.UNAVAILABLE),
        (200, featured(mm_placeholders={"image": at(1)}), FallbackCause.MEDIA),
        (
            200,
            featured(mm_hashes={"image": [None]}, mm_placeholders={"image": at(1)}),
            FallbackCause.MEDIA,
        ),
        *((200, each, FallbackCause.FAILED) for each in UNLIKE_PROMPTS),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_text_stays_text_for_a_cause(server, ask, status, content, cause):
    server.answers[CHAT] = (status, content)
    tokenizer, asked = ask(server), chat("hello")
    assert await prompts_of(tokenizer, asked) is asked.prompts
    assert tokenizer.counts == {cause: 1}


async def test_fewer_prompts_than_were_sent(server, ask):
    server.answers[COMPLETIONS] = (200, [{"token_ids": [1]}])
    tokenizer, asked = ask(server), completions(["a", "b"])
    assert await prompts_of(tokenizer, asked) is asked.prompts
    assert tokenizer.counts == {FallbackCause.FAILED: 1}


@pytest.mark.parametrize("media", [False, True])
async def test_a_server_that_does_not_answer_in_time(server, ask, media):
    """Text that is late has others wait, but not media, which come from other servers."""
    server.answers[CHAT] = (200, asyncio.Event())
    limits = {"timeout": 30, "media_timeout": 0.01} if media else {"timeout": 0.01}
    tokenizer = ask(server, now=Clock(), **limits)
    asked = chat(image("a") if media else "hello")
    for _ in range(2):
        assert await prompts_of(tokenizer, asked) is asked.prompts
    assert tokenizer.counts == {FallbackCause.SLOW: 2}
    assert (tokenizer.ready(asked) is None) == media


async def test_an_unreachable_server_is_retried_after_a_pause(ask):
    with held_port() as port, capture_logs() as logged:
        async with serving(port) as server:
            tokenizer, asked = ask(server), chat("hello")
        for _ in range(2):
            assert tokenizer.ready(asked) is None
            assert await tokenizer.tokenize(asked) is asked.prompts
        assert tokenizer.ready(asked) is asked.prompts  # without asking
        assert tokenizer.counts == {FallbackCause.UNAVAILABLE: 3}
        async with serving(port) as server, asyncio.timeout(30):
            server.answers[CHAT] = (200, {"token_ids": [1]})
            while (found := await prompts_of(tokenizer, asked)) is asked.prompts:
                await asyncio.sleep(0.05)  # until the pause is over
    assert ids(found[0]) == [1]
    assert [each["event"] for each in logged] == ["tokens.text_instead", "tokens.render_recovered"]


@pytest.mark.parametrize(("status", "pauses"), [(500, 0), (501, 0), (504, 0), (502, 1), (503, 1)])
@pytest.mark.parametrize("said", ["hello", image("a")], ids=["text", "media"])
async def test_only_a_server_that_is_not_there_has_others_wait(server, ask, status, pauses, said):
    server.answers[CHAT] = (status, REFUSAL)
    clock = Clock()
    tokenizer, asked = ask(server, now=clock), chat(said)
    for _ in range(3):
        await prompts_of(tokenizer, asked)
        clock.now += 0.1
    assert len(server.heard) == 3 - pauses


async def test_requests_that_fail_together_are_one_failure(server, ask):
    server.answers[CHAT] = (503, b"")
    clock = Clock()
    tokenizer = ask(server, now=clock)
    tasks = [asyncio.create_task(tokenizer.tokenize(chat("hello"))) for _ in range(5)]
    await asyncio.sleep(0)  # they are sent
    clock.now += 0.1
    await asyncio.gather(*tasks)
    assert tokenizer.counts == {FallbackCause.UNAVAILABLE: 5}
    assert tokenizer.ready(chat("hello")) is None


def test_the_pause_doubles_up_to_a_limit_and_ends_with_an_answer():
    breaker = CircuitBreaker()
    breaker.record_failure(0, 0)
    assert not breaker.is_open(0)
    now, pauses = 0.0, []
    for _ in range(8):
        breaker.record_failure(now, now)
        pauses.append(next(second for second in range(100) if not breaker.is_open(now + second)))
        now += pauses[-1]
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    assert breaker.record_success()
    assert not breaker.record_success()
    breaker.record_failure(now, now)
    assert not breaker.is_open(now)


async def test_prompts_go_nowhere_else(server, ask):
    async with serving() as other:
        server.headers = {"location": other.url + CHAT}
        server.answers[CHAT] = (307, b"")
        tokenizer, asked = ask(server), chat("hello")
        assert await prompts_of(tokenizer, asked) == asked.prompts
        assert other.heard == []
    assert tokenizer.counts == {FallbackCause.REFUSED: 1}
