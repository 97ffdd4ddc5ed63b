"""The fleet under any events in any order: it never raises, and its books always agree."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.model.endpoint import EndpointId, Load
from epp.model.events import (
    BooksCorrected,
    Ejected,
    EjectionReason,
    EndpointRemoved,
    EndpointUpserted,
    Listed,
    LoadReported,
    OrcaReported,
    Returned,
    ScrapeFailed,
    ScrapeFailure,
)
from epp.model.fleet import Fleet
from epp.model.kv_changes import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    CacheChanged,
    CacheCleared,
    CacheFeedLost,
    CacheFeedUp,
    Cleared,
    EngineHash,
)
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.request import Usage
from epp.model.request_events import (
    Aborted,
    Admitted,
    Failure,
    Finished,
    FirstToken,
    Generated,
    ResponseNamed,
    Served,
    Unobserved,
)
from tests.model.invariants import check_invariants
from tests.strategies import SECRET, endpoint, prompt, request, text

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
    counted=st.booleans(),
    started_at=st.sampled_from((None, 1.0, 1.0, 1.0, 2.0)),
    at=st.floats(0, 500),
)
NAMED = tuple(map(EngineHash, range(1, 7)))
"""The engine's hashes of the blocks of the prompt of token ids."""
TOKENS = prompt(TEXTS[-1]).data
changes = st.one_of(
    st.builds(
        lambda first, end: BlocksStored(
            hashes=list(NAMED[first : first + end]),
            parent=NAMED[first - 1] if first else None,
            tokens=TOKENS[first * 64 : min(first + end, len(NAMED)) * 64],
            size=16,
            model="m",
        ),
        st.integers(0, 5),
        st.integers(1, 6),
    ),
    st.builds(BlocksRemoved, st.lists(st.sampled_from(NAMED), min_size=1, max_size=3)),
    st.builds(BlocksCleared, st.sampled_from(Cleared)),
)
prompts = st.lists(st.sampled_from(TEXTS), max_size=2).map(tuple)
stages = st.tuples(pods, st.none() | pods, st.none() | pods)
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
    st.builds(ScrapeFailed, pods, st.sampled_from(ScrapeFailure)),
    st.builds(OrcaReported, ids, targets, st.floats(0, 1), st.floats(0, 9), st.none()),
    st.builds(Served, ids, targets),
    st.builds(FirstToken, ids),
    st.builds(ResponseNamed, ids, st.sampled_from(("resp_1", "resp_2"))),
    st.builds(Generated, ids, counts),
    st.builds(Finished, ids, usages, counts),
    st.builds(
        Aborted, ids, counts, st.booleans(), st.sampled_from((None, *Failure)), st.booleans()
    ),
    st.builds(Unobserved, ids, st.booleans()),
    st.builds(Ejected, pods, st.sampled_from(EjectionReason), st.floats(0, 500)),
    st.builds(Returned, pods),
    st.builds(CacheFeedUp, pods),
    st.builds(CacheFeedLost, pods, st.just("gone")),
    st.builds(CacheChanged, pods, st.lists(changes, max_size=4)),
    st.builds(CacheCleared, pods),
    st.builds(BooksCorrected, pods, st.lists(ids, max_size=3)),
)


class AnyOrder(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.fleet = Fleet(BlockHasher(SECRET))
        self.unobserved = set()
        self.now = 0.0
        for name, address in zip(NAMES[:2], ADDRESSES, strict=False):
            self.apply(EndpointUpserted(endpoint(name, address)))
            small = Load(block_size=16, num_blocks=12, started_at=1.0)
            self.apply(LoadReported(EndpointId(f"default/{name}"), small))

    def apply(self, event):
        if isinstance(event, Unobserved):
            self.unobserved.add(event.request_id)
        elif isinstance(event, Admitted):
            self.unobserved.discard(event.quote.request_id)
        self.fleet.apply(event, self.now)

    @rule(seconds=st.sampled_from((0.001, 0.1, 3.0, 70.0)))
    def wait(self, seconds):
        self.now += seconds

    @rule(event=events)
    def happen(self, event):
        self.apply(event)

    @rule(identity=ids, texts=prompts, pod=pods, stream=st.booleans(), between=st.none() | events)
    def send(self, identity, texts, pod, stream, between):
        quote = self.fleet.quote(request(identity, *texts, stream=stream), self.now)
        found = self.fleet.candidates(quote, self.now)
        loads = [(each.waiting, each.running, each.kv_usage) for each in found]
        assert loads == [(each.waiting, each.running, each.kv_usage) for each in found]
        for each in found:
            assert 0 <= each.cached_tokens <= max(0, each.prompt_tokens - 1)
            assert 0 <= each.matched_blocks <= each.total_blocks
            assert each.queued_prefill_seconds >= 0
            assert each.prefill_seconds >= 0
            assert 0 <= each.busy_share <= 1
        if between is not None:
            self.apply(between)
        self.apply(Admitted(quote, pod))

    @rule(identity=ids, texts=prompts, pod=pods)
    def send_without_asking(self, identity, texts, pod):
        self.apply(Admitted(self.fleet.quote(request(identity, *texts), self.now), pod))

    @rule(identity=ids, texts=prompts, to=stages, stream=st.booleans())
    def disaggregate(self, identity, texts, to, stream):
        quote = self.fleet.quote(request(identity, *texts, stream=stream), self.now)
        self.apply(Admitted(quote, *to))

    @invariant()
    def the_books_agree(self):
        check_invariants(self.fleet)

    def teardown(self):
        pods = list(self.fleet.pods.values())
        self.now += 1e5  # what nobody observes ends by itself
        self.apply(Listed())
        assert self.unobserved.isdisjoint(self.fleet.in_flight)
        for identity in list(self.fleet.in_flight):
            self.apply(Finished(identity))
        check_invariants(self.fleet)
        assert self.fleet.in_flight == {}
        for pod in pods:
            assert pod.ledger.requests == pod.ledger.count_prefilling(self.now) == 0
            assert not pod.scheduler.waiting
            assert pod.scheduler.cache.free == pod.scheduler.cache.capacity
            assert pod.ledger.queued_seconds(self.now + 1e6) == 0


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
