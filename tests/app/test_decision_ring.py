"""The decisions that are kept, and the pages that show them."""

import json
import time
from datetime import datetime

import msgspec
import pytest

from epp.adapters.telemetry.debug_pages import QueryRefused, is_local, read_query
from epp.app.observing.decision_ring import DecisionRing
from epp.app.observing.fleet_view import EndpointsPage
from epp.app.observing.pages import DebugPages
from epp.app.observing.views import DecisionsPage
from epp.model.endpoint import Endpoint, EndpointId, Load
from epp.model.events import EndpointRemoved, EndpointUpserted, LoadReported
from epp.policy.explanations.ranking import measures
from epp.values import replaced
from tests.app.watched import Watched
from tests.plugin_packages import install
from tests.tasks import running, until

SESSIONS = """
plugins:
- {type: session-affinity-scorer, name: sticky}
- {type: max-score-picker}
"""
DECISIONS, ENDPOINTS, STATES = b"/debug/decisions", b"/debug/endpoints", b"/debug/plugins/state"


class Kept(Watched):
    def __init__(self, policy="least-ttft", pods=3, most=8):
        super().__init__(policy, pods)
        scheduling = self.settings.scheduling
        self.ring = DecisionRing(self.fleet, measures(scheduling.profiles), most)
        self.observe(self.ring.observer)
        self.pages = DebugPages("chat", self.ring, self.fleet, scheduling, self.clock).pages

    async def read(self, page, /, **query):
        return await self.pages[page].answer({key: str(value) for key, value in query.items()})

    async def decisions(self, **query):
        data = await self.read(DECISIONS, **query)
        return msgspec.json.decode(data, type=DecisionsPage)


async def test_a_decision_is_found_by_either_id_with_what_came_of_it():
    kept = Kept()
    kept.serve()
    record = kept.serve(cached=480, **{"x-request-id": "mine"})
    for name in ("mine", record.id):
        page = await kept.decisions(request=name)
        (found,) = page.decisions
        assert (found.number, found.request, found.client_id, found.model) == (
            2,
            record.id,
            "mine",
            "m",
        )
        (profile,) = found.profiles
        assert profile.winner == record.decision.endpoint.id
        assert profile.candidates[0].cached_tokens == record.decision.predicted_cached_tokens
        assert found.ending is not None
        assert found.ending.cached_tokens == 480
        assert found.ending.ttft_ms == pytest.approx(200)
        assert (found.ending.outcome, found.ending.status) == ("completed", 200)
    assert (await kept.decisions(request="nobody's")).decisions == ()


async def test_of_a_client_s_long_id_the_start_is_kept_and_the_whole_finds_it():
    kept = Kept()
    name = "i" * 60_000
    kept.serve(**{"x-request-id": name})
    (found,) = kept.ring.find(name)
    assert found.client_id == name[:256]
    assert kept.ring.find("i" * 255) == []


async def test_a_request_that_runs_has_no_ending_yet():
    kept = Kept()
    exchange, _ = kept.ask()
    before = time.time()
    (found,) = (await kept.decisions()).decisions
    assert before - 0.001 <= datetime.fromisoformat(found.at).timestamp() <= time.time()
    assert found.ending is None
    kept.answer(exchange, cached=None)
    (found,) = (await kept.decisions()).decisions
    assert found.ending is not None
    aborted, _ = kept.ask()
    aborted.cancelled(kept.now)
    assert kept.ring.total().requests == 0  # none told what was cached


async def test_who_follows_gets_each_decision_once_and_knows_where_to_go_on():
    kept = Kept(most=50)
    seen = []
    last = (await kept.decisions(limit=1)).last
    for _ in range(3):
        for _ in range(4):
            kept.serve("x")
        while True:
            page = await kept.decisions(since=last, limit=3)
            seen += [each.number for each in page.decisions]
            if not page.decisions:
                break
            last = page.last
    assert seen == list(range(1, 13))


async def test_the_oldest_make_room():
    kept = Kept(most=3)
    exchange, _ = kept.ask("x")
    for _ in range(4):
        kept.serve("x")
    kept.answer(exchange)  # which is no longer kept
    assert [each.number for each in (await kept.decisions()).decisions] == [3, 4, 5]
    assert (await kept.decisions(since=0)).decisions[0].number == 3
    assert len(kept.ring._by_id) == 3


async def test_decisions_on_many_endpoints_make_room_sooner():
    kept = Kept(pods=30, most=10_000)
    kept.ring._weight = (1 << 18) - 100
    for _ in range(4):
        kept.ask("x")
    assert len(kept.ring.last(4)) < 4


async def test_what_is_kept_lets_go_of_endpoints_that_are_gone():
    kept = Kept()
    record = kept.serve()
    before = (await kept.decisions()).decisions
    for each in [pod.endpoint.id for pod in kept.fleet.pods.values()]:  # two had no request
        kept.fleet.apply(EndpointRemoved(each), kept.now)
    (one,) = kept.ring.last(2)
    async with running(kept.ring.run()):
        await until(lambda: one._decision is None)
    after = (await kept.decisions()).decisions
    assert [each.profiles for each in after] == [each.profiles for each in before]
    assert record.decision.endpoint.id not in kept.ring.tallies


def test_a_response_of_a_removed_endpoint_counts_in_all_and_leaves_no_tally():
    kept = Kept()
    exchange, _ = kept.ask()
    kept.fleet.apply(EndpointRemoved(exchange.record.decision.endpoint.id), kept.now)
    kept.answer(exchange, cached=480)
    assert (kept.ring.tallies, kept.ring.total().cached_tokens) == ({}, 480)


def test_what_is_reported_after_a_stored_response_is_not_compared():
    kept = Kept()
    exchange, _ = kept.ask()
    exchange.record.request = replaced(exchange.record.request, response_id="resp_1")
    kept.answer(exchange, cached=480)
    assert kept.ring.total().requests == 0


async def test_endpoints_show_what_responses_said():
    kept = Kept()
    kept.serve()
    record = kept.serve(cached=480)
    elsewhere, _ = kept.ask()  # what another one says of its cache is not said of the picked one
    others = {each.target for each in kept.fleet.endpoints}
    others.discard(elsewhere.record.decision.endpoint.target)
    kept.answer(elsewhere, cached=99, served=others.pop())
    page = msgspec.json.decode(await kept.read(ENDPOINTS), type=EndpointsPage)
    assert (page.pool, page.decisions) == ("chat", 3)
    assert [each.endpoint for each in page.endpoints] == [f"default/pod-{n}" for n in range(3)]
    assert sum(each.responses for each in page.endpoints) == 2
    assert sum(each.cached_prompt_tokens for each in page.endpoints) == 480
    first = EndpointId(page.endpoints[0].endpoint)
    kept.fleet.apply(LoadReported(first, Load(at=kept.now - 2.5)), kept.now)
    kept.fleet.apply(EndpointUpserted(Endpoint("default", "new", "10.0.0.9", 8000)), kept.now)
    later = msgspec.json.decode(await kept.read(ENDPOINTS), type=EndpointsPage)
    assert [each.report_age for each in (later.endpoints[0], later.endpoints[-1])] == [2.5, None]
    error = abs(record.decision.predicted_cached_tokens - 480)
    assert sum(each.error_tokens for each in page.endpoints) == error
    assert all(each.state == "ready" for each in page.endpoints)
    assert all(each.cache_tokens == 15_984 for each in page.endpoints)
    assert all(each.prefill_tokens_per_second > 0 for each in page.endpoints)


async def test_plug_ins_show_their_state_as_llm_d_routers_do():
    kept = Kept(SESSIONS)
    kept.serve(**{"x-session-token": "secret"})
    page = json.loads(await kept.read(STATES))
    assert page.keys() == {"timestamp", "plugins"}
    picker = page["plugins"]["max-score-picker"]
    assert picker["message"] == "plugin does not support state collection"
    assert (picker["name"], picker["type"]) == ("max-score-picker", "max-score-picker")
    assert kept.pages[STATES].local
    assert "secret" not in json.dumps(page)


DUMPERS = """
import msgspec

class Opaque(msgspec.Struct, frozen=True):
    def dump_state(self):
        return {"lock": object()}

class Counting(msgspec.Struct, frozen=True):
    def dump_state(self):
        return {"calls": 3}
"""


async def test_a_state_that_json_cannot_express_hides_no_other(tmp_path, monkeypatch):
    points = {"opaque": "dumpers:Opaque", "counting": "dumpers:Counting"}
    install(tmp_path, monkeypatch, "dumpers", DUMPERS, points)
    kept = Kept("plugins: [{type: opaque}, {type: counting}, {type: random-picker}]")
    states = json.loads(await kept.read(STATES))["plugins"]
    assert states["counting"]["state"] == {"calls": 3}
    assert states["opaque"]["message"].startswith("TypeError: ")


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "0"},
        {"limit": "101"},
        {"limit": "x"},
        {"limit": "٣"},
        {"since": "-1"},
        {"since": str(1 << 63)},
        {"request": "a", "since": "1"},
        {"path": "/etc/passwd"},
    ],
)
async def test_a_query_without_sense_is_refused(query):
    with pytest.raises(QueryRefused):
        await Kept().read(DECISIONS, **query)
    with pytest.raises(QueryRefused):
        await Kept().read(ENDPOINTS, any="1")


@pytest.mark.parametrize(
    "query",
    [
        b"a",
        b"a=1&a=2",
        b"a=%ff",
        b"\xff",
        b"&".join(b"a%d=1" % n for n in range(9)),
        b"a=" + b"x" * 257,
    ],
)
def test_a_query_that_cannot_be_read_is_refused(query):
    with pytest.raises(QueryRefused):
        read_query(query)


def test_a_query_is_read():
    assert read_query(b"") == {}
    assert read_query(b"request=a%20b&limit=3") == {"request": "a b", "limit": "3"}


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        (("127.0.0.1", 1), True),
        (("::1", 1, 0, 0), True),
        (("::ffff:127.0.0.1", 1, 0, 0), True),
        (("10.0.0.1", 1), False),
        (("fe80::1%eth0", 1, 0, 0), False),
        (("x", 1), False),
        ("", False),
        (None, False),
    ],
)
def test_who_is_on_this_machine(peer, expected):
    assert is_local(peer) is expected
