"""Whatever is said at the end of a request, and whatever raises there, it is released."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.model.endpoint import EndpointId
from epp.model.fleet import Fleet
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.quote import Quote
from epp.model.request import Prompt, RequestId, Usage
from epp.model.request_events import (
    Aborted,
    Admitted,
    Failure,
    Finished,
    FirstToken,
    Generated,
    Unobserved,
)
from tests.model.invariants import check_invariants, scheduled
from tests.model.rig import LONG, Rig
from tests.strategies import SECRET, request, text

odd = st.one_of(
    st.integers(-2, 2),
    st.integers(),
    st.sampled_from((10**30, -(10**30), 2**53)),
    st.floats(),
    st.sampled_from((None, "many", "-1", b"1")),
)
"""What a response may count, and what no reader of one lets through."""
counts = st.integers(0, 300)
MESSAGES = st.sampled_from((LONG, text(40), ""))


class Contained(Rig):
    """Keeps what the fleet fails on."""

    def __init__(self, pods=2):
        super().__init__(0)
        self.faults = list[tuple[str, BaseException]]()
        self.fleet = Fleet(
            BlockHasher(SECRET), on_fault=lambda source, error: self.faults.append((source, error))
        )
        for number in range(pods):
            self.add(f"pod-{number}", f"10.0.0.{number + 1}")
            small = {"block_size": 16, "num_blocks": 100}
            self.report(f"pod-{number}", **small)

    def admit(self, quote, name="pod-0", prefill=None):
        self.fleet.candidates(quote, self.now)
        ids = [each and EndpointId(f"default/{each}") for each in (name, prefill)]
        self.apply(Admitted(quote, *ids))


def assert_empty(rig):
    check_invariants(rig.fleet)
    assert rig.fleet.in_flight == {}
    for pod in rig.fleet.pods.values():
        assert scheduled(pod.scheduler) == 0
        assert pod.ledger.requests == pod.ledger.count_prefilling(rig.now) == 0
        assert pod.scheduler.cache.free == pod.scheduler.cache.capacity


def made(kind, *fields):
    """Return an object; None if it is compiled, which takes no fields of another type."""
    try:
        return kind(*fields)
    except TypeError:
        return None


usages = st.builds(made, st.just(Usage), odd, odd, odd)
endings = st.one_of(
    st.builds(made, st.just(Finished), st.just("r"), st.none() | usages, odd),
    st.builds(
        made, st.just(Aborted), st.just("r"), odd, st.booleans(), st.sampled_from((None, *Failure))
    ),
).filter(lambda end: end is not None)
before = st.lists(
    st.one_of(
        st.just(FirstToken(RequestId("r"))),
        st.builds(Generated, st.just("r"), counts),
        st.builds(Unobserved, st.just("r"), st.booleans()),
    ),
    max_size=3,
)


asked = st.fixed_dictionaries(
    {"max_tokens": st.none() | st.integers(), "stream": st.booleans()},
)


@given(
    prompt=MESSAGES,
    more=asked,
    prefill=st.sampled_from((None, "pod-1")),
    seen=before,
    end=endings,
)
@settings(max_examples=500)
def test_any_end_releases(prompt, more, prefill, seen, end):
    rig = Contained()
    rig.admit(rig.quote("r", prompt, **more), prefill=prefill)
    for event in seen:
        rig.apply(event)
    rig.now += 0.5
    rig.apply(end)
    assert_empty(rig)
    assert {source for source, _ in rig.faults} <= {"fleet/Finished", "fleet/Aborted"}


@pytest.mark.parametrize("limit", [-1, 0, 1, -(10**9), 2**63])
def test_a_limit_of_any_size_ends(limit):
    rig = Contained(1)
    for number in range(20):
        rig.admit(rig.quote(f"r{number}", text(60, str(number)), max_tokens=limit))
        rig.apply(FirstToken(RequestId(f"r{number}")))
        rig.now += 0.1
        rig.apply(Finished(RequestId(f"r{number}"), Usage(60, 20, 0)))
    assert_empty(rig)


def test_by_default_what_raises_is_raised_once_the_request_is_released():
    rig = Rig(1)
    rig.send("pod-0", "r", LONG)
    rig.apply(FirstToken(RequestId("r")))
    rig.now += 1
    with pytest.raises((OverflowError, TypeError)):
        rig.apply(Finished(RequestId("r"), generated=10**400))
    assert_empty(rig)


@pytest.mark.parametrize("prefill", [None, "pod-1"])
def test_what_was_booked_is_taken_back_where_the_rest_cannot_be(prefill):
    rig = Contained()
    without_lengths = Quote(request("r", LONG), rig.quote("r", LONG).chains, ())
    rig.admit(without_lengths, "pod-0", prefill)
    assert_empty(rig)
    assert [source for source, _ in rig.faults] == ["fleet/Admitted"]
    rig.send("pod-0", "r2", LONG)
    rig.apply(Finished(RequestId("r2"), Usage(1000, 5, 0)))
    assert_empty(rig)


@given(ended=st.sampled_from((Finished, Aborted)))
def test_a_listener_that_raises_keeps_nobody_from_an_end(ended):
    rig, heard, said = Contained(1), [], []

    def fail(*_):
        raise KeyError("mine")

    rig.fleet.subscribe((Admitted, ended), fail, "first")
    rig.fleet.subscribe((Admitted, ended), lambda event, *_: heard.append(type(event)))
    rig.fleet.subscribe((ended,), fail, "own", lambda name, error: said.append((name, error)))
    rig.send("pod-0", "r", LONG)
    rig.apply(ended(RequestId("r")))
    assert heard == [Admitted, ended]
    assert [source for source, _ in rig.faults] == ["first", "first"]
    assert [(name, repr(error)) for name, error in said] == [("own", "KeyError('mine')")]
    assert_empty(rig)


def test_what_is_learned_needs_nothing_of_what_the_end_has_freed():
    rig = Contained(1)
    for number in range(30):
        rig.send("pod-0", f"r{number}", text(400, str(number)))
        rig.now += 0.05
        rig.apply(FirstToken(RequestId(f"r{number}")))
        rig.now += 1.0
        rig.apply(Finished(RequestId(f"r{number}"), Usage(500, 100, 0)))
    assert rig.faults == []
    quote = rig.quote("next", text(400, "next"))
    assert quote.tokens == pytest.approx(500, rel=0.05)
    assert rig.ask(text(400, "z"))["pod-0"].prompt_tokens == pytest.approx(500, rel=0.05)


TEXT = {"prompts": (Prompt(LONG.encode()),)}
IDS = {"prompts": (Prompt(bytes(4 * 1000), exact=True),)}
MEDIA = {"prompts": (Prompt(LONG.encode(), multimodal=True),)}
IDS_OF_MEDIA = {"prompts": (Prompt(bytes(4 * 1000), exact=True, multimodal=True),)}


@pytest.mark.parametrize("asked", [TEXT, IDS, MEDIA, IDS_OF_MEDIA])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("seconds", [1.0, 100_000.0])
@pytest.mark.parametrize(
    ("usage", "most"), [(Usage(1000, 1 << 24, 0), 4096), (Usage(1 << 24, 100, 0), 100)]
)
def test_counts_that_cannot_be_true_fill_no_cache(asked, stream, seconds, usage, most):
    rig = Contained(1)
    rig.report("pod-0", block_size=1, num_blocks=10**8)  # whatever is counted has room
    rig.admit(rig.quote("r", stream=stream, **asked))
    if stream:
        rig.apply(FirstToken(RequestId("r")))
    rig.now += seconds
    rig.apply(Finished(RequestId("r"), usage, 100 if stream else 0))
    (stats,) = rig.fleet.cache_stats()
    assert 1000 <= stats.filled <= 1000 + most
    assert rig.faults == []


@pytest.mark.parametrize(
    ("tokens", "seconds", "answers"),
    [
        (8_000, 2.7, 1),  # 3000 tokens a second, as the fastest engines
        (32_000, 10.7, 1),
        (64 * 32_000, 300.0, 64),
        (131_072, 900.0, 1),
    ],
)
def test_what_fast_engines_answer_whole_is_believed(tokens, seconds, answers):
    rig = Contained(1)
    rig.report("pod-0", block_size=16, num_blocks=10**6)
    for number in range(20):
        rig.admit(rig.quote(f"r{number}", text(600, str(number)), n=answers))
        rig.now += seconds
        rig.apply(Finished(RequestId(f"r{number}"), Usage(600, tokens, 0)))
    kind = rig.quote("next", LONG, n=answers).response_kind
    assert rig.fleet.output_lengths.length(kind) == pytest.approx(tokens / answers, rel=0.9)
    (stats,) = rig.fleet.cache_stats()
    assert stats.filled == pytest.approx(min(20 * (600 + tokens), 16 * 10**6), rel=0.01)


@pytest.mark.parametrize(("slow", "quick"), [(3, 150), (30, 600)])
def test_an_endpoint_that_is_faster_than_its_class_is_believed(slow, quick):
    """As one with a GPU, or that speculates, is beside three without."""
    rig = Contained(4)
    for number in range(120):
        each, rate = (number % 4, slow) if number % 4 else (0, quick)
        tokens = 100 if number % 4 else 6_000
        rig.admit(rig.quote(f"r{number}", text(600, str(number)), stream=True), f"pod-{each}")
        rig.apply(FirstToken(RequestId(f"r{number}")))
        rig.now += tokens / rate
        if not number % 4:
            assert rig.in_flight(f"r{number}").can_have_generated(tokens, rig.now)
        rig.apply(Finished(RequestId(f"r{number}"), Usage(600, tokens, 0), tokens))


@pytest.mark.parametrize(("seconds", "answers"), [(0.0, 1), (2.0, 1), (2.0, 64), (400.0, 2)])
def test_what_an_engine_can_generate_in_the_time_is_believed(seconds, answers):
    rig = Contained(1)
    rig.report("pod-0", block_size=16, num_blocks=10**6)
    tokens = max(4000, int(answers * seconds / 0.001))  # 1000 tokens a second, each answer
    rig.admit(rig.quote("r", LONG, n=answers))
    rig.now += seconds
    rig.apply(Finished(RequestId("r"), Usage(1000, tokens, 0)))
    (stats,) = rig.fleet.cache_stats()
    assert stats.filled == pytest.approx(1000 + tokens, abs=16)


def test_the_tokens_of_several_prompts_are_not_those_of_the_first():
    rig = Rig(1)
    rig.send("pod-0", "r1", text(400), text(400, "b"))
    rig.apply(Finished(RequestId("r1"), Usage(1_600, 5, 0)))
    assert rig.quote("r2", text(500, "c")).tokens == 500


def test_at_an_endpoint_whose_load_is_no_number():
    rig = Contained(1)
    rig.report("pod-0", block_size=16, num_blocks=100, kv_usage=float("nan"), running=float("inf"))
    rig.admit(rig.quote("r", LONG))
    rig.apply(Finished(RequestId("r"), Usage(9, 9, 0)))
    assert_empty(rig)
