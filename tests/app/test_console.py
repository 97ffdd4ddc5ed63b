"""The data that the console shows each second."""

import asyncio
import itertools
import json
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.adapters.telemetry.debug_pages import QueryRefused
from epp.app.console.columns import fleet_columns
from epp.app.console.pages import Console, ConsoleSources
from epp.app.console.picker_parts import PickerParts
from epp.app.console.views import ConsolePage
from epp.app.flow.held_requests import HeldRequests
from epp.app.observing.fleet_view import EndpointView
from epp.app.observing.shadow import Shadow
from epp.config.file import load
from epp.model.endpoint import Load
from epp.model.events import (
    Ejected,
    EjectionReason,
    EndpointRemoved,
    LoadReported,
    ScrapeFailed,
    ScrapeFailure,
)
from epp.model.listeners import reraise
from tests.app.replica_rig import two
from tests.app.test_decision_ring import Kept
from tests.app.watched import DISAGGREGATED
from tests.policy.flow.flow_rig import CAPACITY, FlowRig
from tests.tasks import running

STATE, PREFIXES = b"/debug/console", b"/debug/prefixes"
MARKUP = "<script>alert(1)</script>\"'&"
MAX_BYTES = 300_000
BEGAN = 1_795_000_000.0
"""The time of day at which clocks began."""


class Shown(Kept):
    """A picker with a console."""

    def __init__(self, policy="least-ttft", pods=3, most=1024, **more):
        super().__init__(policy, pods, most)
        self.parts = PickerParts(self.flow, self.director.held, **more)
        self.console = Console(
            ConsoleSources(
                pool="chat",
                ring=self.ring,
                fleet=self.fleet,
                clock=self.clock,
                reuse=self.telemetry.reuse,
                parts=self.parts,
                time_of_day=lambda: BEGAN + self.clock(),
            )
        )

    def serve_of(self, model, name):
        exchange, _ = self.ask("x", model=model, **{"x-request-id": name})
        return self.answer(exchange)

    async def page(self, page=STATE, /, **query):
        asked = {key: str(value) for key, value in query.items()}
        return await self.console.pages[page].answer(asked)

    async def state(self, **query):
        return msgspec.json.decode(await self.page(**query))


async def test_the_fleet_comes_in_columns_of_one_length():
    shown = Shown()
    shown.serve()
    record = shown.serve(cached=480)
    state = await shown.state()
    endpoints = state["endpoints"]
    assert endpoints.keys() == {*EndpointView.__struct_fields__, "room"}
    assert {len(column) for column in endpoints.values()} == {3}
    at = endpoints["endpoint"].index(record.decision.endpoint.id)
    assert endpoints["cached_prompt_tokens"][at] == 480
    room_of_one = record.decision.prompt_tokens + 16  # both have the same prompt
    assert 512 <= endpoints["cached_tokens"][at] <= room_of_one
    assert (state["pool"], state["decisions"], state["totals"]["responses"]) == ("chat", 2, 2)
    totals = state["totals"]
    assert totals["delivered"] == totals["cached"] == 480
    predicted = record.decision.predicted_cached_tokens  # of the first one nothing was
    assert totals["captured"] == totals["predicted"] == predicted
    assert totals["prompt"] == 2 * record.usage.prompt_tokens
    assert totals["error"] == abs(predicted - 480)
    last = {name: column[-1] for name, column in state["recent"].items()}
    assert last["at_ms"] == pytest.approx(1e3 * (BEGAN + record.decided_at), abs=1, rel=0)
    ttft_ms = 1e3 * record.decision.predicted_ttft
    assert last["predicted_ttft_ms"] == pytest.approx(ttft_ms, abs=0.1, rel=0)


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (lambda name: LoadReported(name, Load()), "ready"),
        (lambda name: LoadReported(name, Load(awake=False)), "asleep"),
        (lambda name: ScrapeFailed(name, ScrapeFailure.REFUSED), "unreachable"),
        (lambda name: Ejected(name, EjectionReason.STALL, 30.0), "ejected"),
    ],
)
async def test_an_endpoint_that_is_left_out_says_why(event, state):
    shown = Shown()
    (first, *_) = shown.fleet.pods.values()
    shown.fleet.apply(event(first.endpoint.id), shown.clock())
    told = await shown.state()
    assert told["endpoints"]["state"] == [state, "ready", "ready"]


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        (ScrapeFailure.LATE, "asleep"),
        (ScrapeFailure.BROKEN, "asleep"),
        (ScrapeFailure.REFUSED, "unreachable"),
    ],
)
async def test_an_endpoint_that_sleeps_may_be_gone_by_now(reason, state):
    shown = Shown()
    (first, *_) = shown.fleet.pods.values()
    shown.fleet.apply(LoadReported(first.endpoint.id, Load(awake=False)), shown.clock())
    shown.fleet.apply(ScrapeFailed(first.endpoint.id, reason), shown.clock())
    told = await shown.state()
    assert told["endpoints"]["state"] == [state, "ready", "ready"]


async def test_the_fields_of_the_page_are_those_of_its_type():
    shown = Shown()
    shown.serve()
    found = msgspec.json.decode(await shown.page(), type=ConsolePage)
    assert (found.waiting.requests, found.replicas, found.shadow) == (0, None, None)


async def test_decisions_come_once_and_again_when_they_have_ended():
    shown = Shown()
    exchange, _ = shown.ask(**{"x-request-id": "mine"})
    recent = (await shown.state())["recent"]
    assert (recent["number"], recent["outcome"], recent["client_id"]) == ([1], [None], ["mine"])
    assert (await shown.state(since=1))["recent"]["number"] == []
    shown.answer(exchange, cached=16)
    recent = (await shown.state(since=0))["recent"]
    assert (recent["outcome"], recent["cached"], recent["status"]) == (["completed"], [16], [200])
    assert recent["ttft_ms"] == [pytest.approx(200)]


async def test_an_ending_is_told_however_many_were_decided_on_since():
    shown = Shown()
    exchange, _ = shown.ask()
    asked, other = (await shown.state())["at_ms"], (await shown.state())["at_ms"]
    for _ in range(250):
        shown.ask("x")
    shown.now += 1
    between = await shown.state(since=251, ended=asked)
    assert (between["recent"]["number"], between["ended"]["number"]) == ([], [])
    shown.answer(exchange, cached=16)
    for moment in (between["at_ms"], other):  # two who look at it
        ended = (await shown.state(since=251, ended=moment))["ended"]
        assert (ended["number"], ended["outcome"], ended["cached"]) == ([1], ["completed"], [16])
    shown.now += 1
    last = await shown.state()
    assert last["ended"]["number"] == []  # nobody who has not asked before waits for any
    shown.now += 1
    assert (await shown.state(ended=last["at_ms"]))["ended"]["number"] == []


async def test_endings_on_one_page_are_bounded_and_those_of_the_newest():
    shown = Shown()
    asked = (await shown.state())["at_ms"]
    for _ in range(700):
        shown.serve("x")
    ended = (await shown.state(since=700, ended=asked))["ended"]
    assert ended["number"] == list(range(101, 701))


async def test_an_ending_is_told_after_a_clock_was_set_back(monkeypatch):
    shown = Shown()
    exchange, _ = shown.ask()
    asked = (await shown.state())["at_ms"]
    began = time.time()
    monkeypatch.setattr(time, "time", lambda: began - 3600)
    await shown.state()
    shown.answer(exchange)
    assert (await shown.state(ended=asked))["ended"]["number"] == [1]


async def test_the_last_decisions_are_shown_where_there_are_more():
    shown = Shown()
    for _ in range(30):
        shown.serve("x")
    assert (await shown.state(since=3, limit=4))["recent"]["number"] == [27, 28, 29, 30]
    assert len((await shown.state())["recent"]["number"]) == 30


@pytest.mark.parametrize("policy", ["least-ttft", DISAGGREGATED], ids=["together", "apart"])
async def test_a_decision_is_in_brief_what_it_was_before_its_endpoint_went(policy):
    shown = Shown(policy)
    # With prefill elsewhere, some are warmer where they are decoded.
    *_, record = [shown.serve() for _ in range(3)]
    before = (await shown.state())["recent"]
    totals = (await shown.state())["totals"]
    shown.fleet.apply(EndpointRemoved(record.decision.endpoint.id), shown.now)
    (kept,) = shown.ring.last(1)
    async with running(shown.ring.run()), asyncio.timeout(10):
        while kept.decision is not None:
            await asyncio.sleep(0.01)
    shown.now += 1
    after = await shown.state()
    for page in (after["recent"], before):
        del page["at_ms"]  # the time of day goes on, and this clock stands
    assert after["recent"] == before
    assert after["totals"] == totals
    assert len(after["endpoints"]["endpoint"]) == 2


async def test_a_start_is_told_from_another():
    assert (await Shown().state())["started"] != (await Shown().state())["started"]


async def test_a_picker_without_endpoints_has_empty_columns():
    endpoints = (await Shown(pods=0).state())["endpoints"]
    assert set(map(tuple, endpoints.values())) == {()}


@given(model=st.text(max_size=300), name=st.text(st.characters(codec="latin-1"), max_size=300))
def test_what_a_client_sends_comes_back_as_text_of_a_bounded_length(model, name):
    shown = Shown()
    shown.serve_of(model or "m", name)
    state = asyncio.run(shown.page())
    recent = json.loads(state)["recent"]
    assert recent["client_id"] == [name[:120]]
    assert [len(each) <= 120 for each in recent["model"]] == [True]


async def test_a_thousand_pods_fit_and_ask_little_of_the_loop():
    shown = Shown(pods=1000)
    for _ in range(200):
        shown.serve_of("<m>" * 100, MARKUP * 100)
    data = await shown.page()
    assert len(data) < MAX_BYTES
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    shown.now += 10
    async with running(other()):
        await shown.page()
    assert turns > 50  # others ran between the pieces


async def test_readers_within_half_a_second_share_the_endpoints():
    shown = Shown()
    (first, *_) = shown.fleet.pods.values()
    ready = (await shown.state())["endpoints"]
    shown.fleet.apply(Ejected(first.endpoint.id, EjectionReason.STALL, 30.0), shown.clock())
    assert (await shown.state())["endpoints"] == ready
    shown.now += 1
    assert (await shown.state())["endpoints"]["state"] == ["ejected", "ready", "ready"]


async def test_a_reader_that_goes_away_leaves_the_others_what_is_made():
    shown = Shown(pods=100)
    gone = asyncio.create_task(shown.page())
    stays = asyncio.create_task(shown.page())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gone.cancel()
    assert json.loads(await stays)["pool"] == "chat"


@pytest.mark.parametrize(
    "query",
    [
        {"since": "-1"},
        {"since": "x"},
        {"since": str(1 << 63)},
        {"limit": "0"},
        {"limit": "201"},
        {"ended": "now"},
        {"file": "/etc/passwd"},
    ],
)
async def test_a_query_without_sense_is_refused(query):
    with pytest.raises(QueryRefused):
        await Shown().page(**query)
    with pytest.raises(QueryRefused):
        await Shown().page(PREFIXES, since="1")


async def test_a_shadow_is_compared():
    policy = load("plugins:\n- {type: random-picker}\n")
    kept = Kept()
    shadow = Shadow("random", policy, kept.fleet)
    shadow.tally.agreed, shadow.tally.differed = 3, 1
    shown = Shown(shadow=shadow)
    found = (await shown.state())["shadow"]
    assert (found["policy"], found["agreed"], found["differed"]) == ("random", 3, 1)


async def test_what_waits_is_counted_by_priority_and_room_by_its_fullest_axis():
    rig = FlowRig(pods=2)
    held = HeldRequests(rig.flow, lambda: rig.now, lambda *_: None, reraise)
    parts = PickerParts(rig.flow, held)
    rig.come("a", CAPACITY)
    rig.come("b", CAPACITY)
    rig.come("c", 10, size=70)
    rig.come("d", 10, size=30, priority=2)
    found = parts.waiting_view()
    assert (found.holds, found.gated, found.requests, found.bytes) == (True, False, 2, 100)
    assert [(each.priority, each.requests) for each in found.bands] == [(2, 1), (0, 1)]
    assert sum(found.no_room.values()) == 2
    assert found.prefill_seconds > 0
    pod, _ = rig.fleet.pods.values()
    used = rig.flow.rooms.ratios(pod, rig.now)
    assert parts.room_used(pod, rig.now) == max(used.values()) >= 1
    assert parts.room_used(pod, rig.now + 1000) is None  # its load is stale by then


async def test_replicas_are_shown_as_they_are_heard():
    async with two() as (one, _):
        found = Shown(replicas=one.replicas).parts.replicas_view(one.now)
        assert found is not None
    assert (found.heard, found.known, found.reached) == (1, 1, 1)
    assert found.warm is one.replicas.warm
    (peer,) = found.peers
    assert (peer.present, peer.missing, peer.silent_seconds) == (True, 0, 0.0)
    assert len(peer.name) == 14


async def test_a_page_is_made_in_pieces_that_are_short():
    """No bound on time, which another process may take: at most so many pods in one piece."""
    shown = Shown(pods=200)
    pieces = []
    pods = list(shown.fleet.pods.values())

    def room(*_):
        pieces.append(time.monotonic())

    columns = fleet_columns(pods, shown.ring.tallies, shown.now, room)
    task = asyncio.create_task(columns)
    seen = [0]
    while not task.done():
        await asyncio.sleep(0)
        seen.append(len(pieces))
    assert max(b - a for a, b in itertools.pairwise(seen)) <= 20
