"""The fleet under any events in any order: it never raises, and its books always agree."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.model.endpoint import EndpointId, Load
from epp.model.events import (
    Aborted,
    Admitted,
    EndpointRemoved,
    EndpointUpserted,
    Finished,
    FirstToken,
    Generated,
    Listed,
    LoadReported,
    OrcaReported,
    ScrapeFailed,
    Served,
    Unobserved,
)
from epp.model.fleet import Fleet
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.request import Usage
from tests.strategies import SECRET, endpoint, request, text

NAMES = ("a", "b", "c")
ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
TEXTS = (
    text(40),
    text(40) + text(60, "u"),
    text(40) + text(60, "v"),
    text(120, "w"),
    text(300, "x"),
    "short",
    "",
    list(range(100)),
)

pods = st.sampled_from([f"default/{name}" for name in NAMES])
ids = st.integers(0, 7).map(str)
targets = st.sampled_from([f"{address}:8000" for address in ADDRESSES])
counts = st.integers(0, 500)
usages = st.one_of(
    st.none(), st.builds(Usage, counts, counts, st.one_of(st.none(), st.integers(0, 300)))
)
loads = st.builds(
    Load,
    waiting=st.integers(0, 5).map(float),
    running=st.integers(0, 5).map(float),
    block_size=st.sampled_from((None, 16, 32)),
    num_blocks=st.sampled_from((None, 1, 5, 12, 30)),
    started_at=st.sampled_from((None, 1.0, 1.0, 1.0, 2.0)),
    at=st.floats(0, 500),
)
lookup = st.lists(st.sampled_from(TEXTS), max_size=2).map(tuple)
events = st.one_of(
    st.builds(
        lambda name, address, uid: EndpointUpserted(endpoint(name, address, uid=uid)),
        st.sampled_from(NAMES),
        st.sampled_from(ADDRESSES),
        st.sampled_from(("", "", "", "other")),
    ),
    st.builds(EndpointRemoved, pods),
    st.just(Listed()),
    st.builds(LoadReported, pods, loads),
    st.builds(ScrapeFailed, pods, st.booleans()),
    st.builds(OrcaReported, targets, st.floats(0, 1), st.floats(0, 9), st.none()),
    st.builds(Served, ids, targets),
    st.builds(FirstToken, ids),
    st.builds(Generated, ids, counts),
    st.builds(Finished, ids, usages, counts),
    st.builds(Aborted, ids, counts, st.booleans()),
    st.builds(Unobserved, ids),
)


class AnyOrder(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.fleet = Fleet(BlockHasher(SECRET))
        self.now = 0.0
        for name, address in zip(NAMES[:2], ADDRESSES, strict=False):
            self.tell(EndpointUpserted(endpoint(name, address)))
            small = Load(block_size=16, num_blocks=12, started_at=1.0)
            self.tell(LoadReported(EndpointId(f"default/{name}"), small))

    def tell(self, event):
        self.fleet.apply(event, self.now)

    @rule(seconds=st.sampled_from((0.001, 0.1, 3.0, 70.0)))
    def wait(self, seconds):
        self.now += seconds

    @rule(event=events)
    def happen(self, event):
        self.tell(event)

    @rule(identity=ids, texts=lookup, pod=pods, stream=st.booleans(), between=st.none() | events)
    def send(self, identity, texts, pod, stream, between):
        wanted = request(identity, *texts, stream=stream)
        for each in self.fleet.candidates(wanted, self.now):
            assert 0 <= each.cached_tokens <= max(0, each.prompt_tokens - 1)
            assert 0 <= each.matched_blocks <= each.total_blocks
            assert each.queued_prefill_seconds >= 0
            assert each.prefill_seconds >= 0
            assert 0 <= each.busy_share <= 1
        if between is not None:
            self.tell(between)
        self.tell(Admitted(wanted, pod))

    @rule(identity=ids, texts=lookup, pod=pods)
    def send_unasked(self, identity, texts, pod):
        self.tell(Admitted(request(f"{identity}", *texts), pod))

    @invariant()
    def the_index_is_the_pools(self):
        index = self.fleet._index
        everything = {
            block_hash
            for pod in self.fleet._pods.values()
            for block_hash in {*pod.scheduler.cache.hashes(), *pod.scheduler._promised}
        }
        for pod in self.fleet._pods.values():
            here = {*pod.scheduler.cache.hashes(), *pod.scheduler._promised}
            for block_hash in everything:
                assert bool(index.match([block_hash])[pod.slot]) is (block_hash in here)
        assert len(index) == len(everything)

    @invariant()
    def slots_are_those_of_the_pods(self):
        slots = [pod.slot for pod in self.fleet._pods.values()]
        assert len(slots) == len(set(slots))

    @invariant()
    def what_is_promised_waits(self):
        for pod in self.fleet._pods.values():
            waiting = [each for sequence in pod.scheduler.line for each in sequence.chain.hashes]
            assert pod.scheduler._promised == Counter(waiting)

    @invariant()
    def requests_under_way_are_where_they_are_booked(self):
        for pod in self.fleet._pods.values():
            here = [
                in_flight for in_flight in self.fleet._in_flight.values() if in_flight.pod is pod
            ]
            assert pod.ledger.requests == len(here)

    @invariant()
    def what_is_unseen_is_under_way(self):
        assert self.fleet._unseen._unseen.keys() <= self.fleet._in_flight.keys()

    def teardown(self):
        pods = list(self.fleet._pods.values())
        for identity in list(self.fleet._in_flight):
            if identity not in self.fleet._unseen:
                self.tell(Finished(identity))
        self.now += 1e5  # out of sight, all that is left ends by itself
        self.tell(Listed())
        assert len(self.fleet._unseen) == 0
        assert self.fleet._in_flight == {}
        for pod in pods:
            assert pod.ledger.requests == 0
            assert not pod.scheduler.line
            assert not pod.scheduler._promised
            assert pod.scheduler.cache.free == pod.scheduler.cache.capacity
            assert pod.ledger.owed(self.now + 1e6) == 0


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
