"""A picker that leaves responses to Envoy once they have begun: no byte is lost, nothing is left.

Streams come in bursts, where pieces are in flight as the picker goes, and one piece at a time,
each sent once the client has the one before. Half of the bursts hold their end back until the
client has read something: by then the picker has seen the response begin and not end, so that it
leaves each of these, however loaded the machine is. 10,000 streams in all.
"""

import asyncio
import hashlib

import pytest
import pytest_asyncio
from msgspec.structs import replace

from e2e.corridor import CHAT, Plan, chat
from e2e.spool import HOLD, NUMBER, STEP, digest_of, pieces_of, spooling

OUTCOMES = "warmpick_exchange_outcomes_total"
RUNNING = "llm_d_epp_request_running"
IMPOSSIBLE = "observe_responses.impossible"
WARNED_OF = {"endpoint.metrics_unknown", "endpoint.unreachable", "event_loop.late"}
"""What is warned of: the spool has no metrics, and a machine that stalls is late."""
AT_ONCE = 48
HELD, BURSTS, STEPS = range(2_000), range(2_000, 4_000), range(4_000, 5_000)
LEAVABLE = Plan(response_body_mode="STREAMED", picker_flags=("--observe-responses=first",))
TRANSPORTS = ("native", "grpcio")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def spool():
    async with spooling() as server:
        yield server


def planned(spool, plan, *flags):
    return replace(plan, others=(spool.target,), picker_flags=(*plan.picker_flags, *flags))


async def fetch(gateway, number, **headers):
    """Read one stream; return whether it is what it should be."""
    sent = {NUMBER: str(number), **headers}
    body = chat(f"stream {number}", stream=True, max_tokens=8)
    async with gateway.stream(CHAT, body, **sent) as response:
        return response.status == 200 and await read(response) == digest_of(number)


async def read(response):
    return hashlib.sha256(await response.read()).digest()


async def fetch_held(gateway, spool, number):
    """Read one stream whose last piece comes when the first bytes are here."""
    body = chat(f"stream {number}", stream=True, max_tokens=8)
    async with gateway.stream(CHAT, body, **{NUMBER: str(number), HOLD: "1"}) as response:
        first = await response.content.readany()
        spool.taken(number)
        return first + await response.read() == b"".join(pieces_of(number))


async def fetch_stepping(gateway, spool, number):
    """Read one stream, and let each piece come only when the one before is here."""
    body = chat(f"stream {number}", stream=True, max_tokens=8)
    async with gateway.stream(CHAT, body, **{NUMBER: str(number), STEP: "1"}) as response:
        for piece in pieces_of(number):
            if await response.content.readexactly(len(piece)) != piece:
                return False
            spool.taken(number)
        return await response.content.read() == b""


async def all_of(numbers, fetching):
    """Fetch streams, some at a time; return those that were not what they should be."""
    left = iter(numbers)

    async def work():
        return [number for number in left if not await fetching(number)]

    lost = await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return [number for some in lost for number in some]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_no_byte_is_lost(start, spool, transport):
    plan = planned(spool, LEAVABLE, f"--transport={transport}")
    async with start(plan) as gateway:
        assert await all_of(HELD, lambda number: fetch_held(gateway, spool, number)) == []
        assert await all_of(STEPS, lambda number: fetch_stepping(gateway, spool, number)) == []
        left = len(HELD) + len(STEPS)
        await gateway.metric_becomes(left, OUTCOMES, outcome="unobserved")
        assert await gateway.metric(OUTCOMES, outcome="completed") == 0
        # A burst may come in one piece, end and all: those are seen to their end.
        assert await all_of(BURSTS, lambda number: fetch(gateway, number)) == []
        await gateway.metric_becomes(left + len(BURSTS), OUTCOMES)
        completed = await gateway.metric(OUTCOMES, outcome="completed")
        unobserved = await gateway.metric(OUTCOMES, outcome="unobserved")
        assert completed + unobserved == left + len(BURSTS)
        assert await gateway.metric(OUTCOMES, outcome="aborted") == 0
        await gateway.metric_becomes(0, RUNNING)
        warned = [line for line in gateway.log_lines() if line["level"] in {"warning", "error"}]
        assert {line["event"] for line in warned} <= WARNED_OF


@pytest.mark.parametrize("request_mode", ["BUFFERED", "STREAMED", "NONE"])
async def test_however_the_request_came(start, spool, request_mode):
    plan = replace(planned(spool, LEAVABLE), request_body_mode=request_mode)
    async with start(plan) as gateway:
        assert await all_of(range(100), lambda number: fetch(gateway, number)) == []
        assert await all_of(range(9), lambda n: fetch_stepping(gateway, spool, n)) == []
        await gateway.metric_becomes(109, OUTCOMES)
        assert await gateway.metric(OUTCOMES, outcome="unobserved") >= 9
        assert await gateway.metric(OUTCOMES, outcome="aborted") == 0


async def test_a_sample_is_observed_to_the_end(start, spool):
    plan = planned(spool, replace(LEAVABLE, picker_flags=("--observe-responses=sample:1/4",)))
    async with start(plan) as gateway:
        count = 200
        assert await all_of(range(count), lambda n: fetch_stepping(gateway, spool, n)) == []
        await gateway.metric_becomes(count, OUTCOMES)
        observed = await gateway.metric("llm_d_epp_request_output_tokens_count")
        assert count / 4 / 3 < observed < count / 4 * 2
        assert await gateway.metric(OUTCOMES, outcome="completed") == observed
        assert await gateway.metric(OUTCOMES, outcome="unobserved") == count - observed


async def test_by_default_it_leaves_what_teaches_nothing(start, spool):
    async with start(planned(spool, replace(LEAVABLE, picker_flags=()))) as gateway:
        count = 1_000
        assert await all_of(range(count), lambda n: fetch_stepping(gateway, spool, n)) == []
        await gateway.metric_becomes(count, OUTCOMES)
        observed = await gateway.metric(OUTCOMES, outcome="completed")
        assert 8 <= observed < count / 2
        assert await gateway.metric(OUTCOMES, outcome="unobserved") == count - observed
        assert await gateway.metric("llm_d_epp_request_output_tokens_count") == observed


async def test_by_default_it_stays_in_full_duplex_and_says_nothing(start, spool):
    plan = Plan(response_body_mode="FULL_DUPLEX_STREAMED")
    async with start(planned(spool, plan)) as gateway:
        assert await all_of(range(100), lambda n: fetch_stepping(gateway, spool, n)) == []
        await gateway.metric_becomes(100, OUTCOMES, outcome="completed")
        assert IMPOSSIBLE not in {line["event"] for line in gateway.log_lines()}


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_in_full_duplex_it_stays_and_says_so_once(start, spool, transport):
    plan = replace(LEAVABLE, response_body_mode="FULL_DUPLEX_STREAMED")
    async with start(planned(spool, plan, f"--transport={transport}")) as gateway:
        assert await all_of(range(100), lambda number: fetch(gateway, number)) == []
        assert await all_of(range(9), lambda n: fetch_stepping(gateway, spool, n)) == []
        await gateway.metric_becomes(109, OUTCOMES, outcome="completed")
        said = [line for line in gateway.log_lines() if line["event"] == IMPOSSIBLE]
        assert len(said) == 1
        assert "full duplex" in said[0]["reason"]
        assert "response_body_mode: STREAMED" in said[0]["remedy"]
