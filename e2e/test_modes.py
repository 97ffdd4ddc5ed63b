"""Every way in which a gateway may be set up carries the same requests to the same end."""

import asyncio
import functools
import json

import msgspec
import pytest
import pytest_asyncio

from e2e.corridor import CHAT, WATCHED, Plan, chat, corridor, decision
from e2e.echo import HELD, PIECES, event

OUTCOMES = "warmpick_exchange_outcomes_total"
BUFFER_BYTES = 1 << 20
"""What Envoy holds of a buffered body by default."""
PLANS = {
    "override host": Plan(),
    "original destination": Plan(routing="original_dst"),
    "streamed response": Plan(response_body_mode="STREAMED", picker_flags=WATCHED),
    "buffered": Plan(request_body_mode="BUFFERED", response_body_mode="BUFFERED"),
    "buffered, original destination": Plan(
        request_body_mode="BUFFERED", response_body_mode="BUFFERED", routing="original_dst"
    ),
    "streamed": Plan(
        request_body_mode="STREAMED", response_body_mode="STREAMED", picker_flags=WATCHED
    ),
    "no bodies": Plan(request_body_mode="NONE", response_body_mode="NONE"),
    "no bodies, original destination": Plan(
        request_body_mode="NONE", response_body_mode="NONE", routing="original_dst"
    ),
    "TLS": Plan(tls=True),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=PLANS)
async def gateway(request, echo, second_echo, tmp_path_factory):
    others = (echo.target, second_echo.target)
    plan = msgspec.structs.replace(PLANS[request.param], others=others)
    async with corridor(plan, tmp_path_factory.mktemp("modes")) as made:
        yield made


@functools.cache
def body_of(size):
    """A chat of exactly that many bytes, in a form that no JSON library would write again."""
    words = "".join(f"{number} \u00e9 " for number in range(size // 8))
    text = words.encode()[: size - 120].decode(errors="ignore").encode()
    start = b'{ "model" :"sim-model","messages": [{"content":"' + text
    end = b'", "role": "user"}],\t"odd": 1.50e+1 }'
    return start + b" " * (size - len(start) - len(end)) + end


@pytest.mark.parametrize("size", [2_000, 220_000, 20_000_000])
async def test_bodies_arrive_and_return_byte_for_byte(gateway, echo, second_echo, size):
    body = body_of(size)
    answer = await gateway.post(CHAT, body)
    if gateway.plan.request_body_mode == "BUFFERED" and size > BUFFER_BYTES:
        assert (answer.status, answer.body) == (413, b"Payload Too Large")  # Envoy's own
        return
    assert answer.status == 200
    assert answer.body == body
    served = answer.headers["x-echo"]
    assert decision(answer)["endpoint"] == served
    server = next(each for each in (echo, second_echo) if each.target == served)
    assert server.seen[-1].body == body


async def test_bodies_that_are_not_shown_are_logged_once(gateway):
    for _ in range(2):
        assert (await gateway.post(CHAT, chat("hello"))).status == 200
    told = [line for line in gateway.log_lines() if line["event"] == "request_bodies.unseen"]
    mode = gateway.plan.request_body_mode
    assert [line["mode"] for line in told] == [mode] * (mode in {"STREAMED", "NONE"})


async def test_a_long_stream_arrives_byte_for_byte(gateway):
    async with gateway.stream(CHAT, chat("go"), **{PIECES: "1500"}) as response:
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream"
        assert await response.read() == b"".join(map(event, range(1500)))


async def test_a_stream_is_passed_on_while_it_grows(gateway, echo, second_echo):
    buffered = gateway.plan.response_body_mode == "BUFFERED"  # whole or nothing
    releases = [server.release for server in (echo, second_echo)]
    for release in releases:
        (release.set if buffered else release.clear)()
    async with gateway.stream(CHAT, chat("go"), **{PIECES: "3", HELD: "1"}) as response:
        first = await response.content.readexactly(len(event(0)))
        for release in releases:
            release.set()
        assert first + await response.read() == b"".join(map(event, range(3)))


async def test_requests_without_a_body_go_through(gateway):
    answer = await gateway.get("/v1/models")
    assert answer.status == 200
    assert answer.headers["x-echo"] == decision(answer)["endpoint"]


async def test_many_requests_on_many_connections(gateway):
    bodies = [json.dumps(chat(f"{number} " * 1_000)).encode() for number in range(40)]
    answers = await asyncio.gather(*(gateway.post(CHAT, body) for body in bodies))
    assert [answer.status for answer in answers] == [200] * len(bodies)
    assert [answer.body for answer in answers] == bodies
    assert len({answer.headers["x-echo"] for answer in answers}) == 2


async def test_the_metrics_page_counts_what_passed(gateway):
    # Requests whose model the picker does not see are not shown as running: that no other is
    # under way, the outcomes tell.
    before = await gateway.metric("llm_d_epp_request_total")
    await gateway.metric_becomes(before, OUTCOMES, outcome="completed")
    aborted = await gateway.metric(OUTCOMES, outcome="aborted")  # a body that Envoy refused itself
    for _ in range(3):
        assert (await gateway.post(CHAT, chat("count me"))).status == 200
    await gateway.metric_becomes(before + 3, "llm_d_epp_request_total")
    await gateway.metric_becomes(before + 3, OUTCOMES, outcome="completed")
    assert await gateway.metric(OUTCOMES, outcome="unobserved") == 0
    assert await gateway.metric(OUTCOMES, outcome="aborted") == aborted
    await gateway.metric_becomes(0, "llm_d_epp_request_running")
    await gateway.metric_becomes(2, "llm_d_epp_ready_endpoints")
