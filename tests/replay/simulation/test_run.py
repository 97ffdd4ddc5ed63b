"""Runs: every call ends once, as it must, and the same seed gives the same."""

from collections import Counter
from statistics import mean

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.protocol.extproc.observation import AUTO, Observation
from epp.replay.engines.contract import Limits
from epp.replay.plan import Fault, FaultKind, PodPlan, Policy, RunPlan
from epp.replay.policies import NAMED
from epp.replay.simulation import run as simulation
from epp.replay.simulation.outcome import CallStatus
from epp.replay.simulation.run import Simulation
from epp.replay.traffic.calls import Call, Run, Trace, ordered

LEAST_TTFT = NAMED["least-ttft"]
ROUND_ROBIN = msgspec.structs.replace(NAMED["round-robin"], flow=None)  # whoever has room
SMALL = PodPlan(limits=Limits(num_gpu_blocks=1_001))  # 16,000 tokens


def call(name, *, at=0.0, size=1_000, answer=50, shared=0, **more):
    """A prompt that shares its first tokens with all, and has the others for itself."""
    runs = [Run(1, shared)] if shared else []
    return Call(
        at=at,
        prompt=(*runs, Run(1_000 + name, size - shared)),
        response=(Run(2_000_000 + name, answer),),
        session=more.pop("session", name),
        **more,
    )


def played(calls, pods=(SMALL, SMALL), policy=LEAST_TTFT, **more):
    trace = Trace(name="test", calls=ordered(calls))
    return Simulation(trace, RunPlan(policy=policy, pods=pods, **more)).run()


def by_call(run):
    return {each.call: each for each in run.outcomes}


def test_one_request_takes_what_its_steps_take():
    (only,) = played([call(0, at=2.0, size=1_000, answer=3)]).outcomes
    cost = SMALL.cost
    first = 1e-3 * (cost.step_ms + 1e-3 * cost.prefill_us_per_token * 1_000)
    first += 1e-9 * cost.attention_ns * 1_000 * 1_000 / 2
    assert only.ttft == pytest.approx(first, rel=1e-3)
    assert only.at == 2.0
    assert only.queued == 0.0
    step = cost.step_ms * 1e-3 + cost.decode_us_per_seq * 1e-6
    step += cost.decode_ns_per_context_token * 1e-9 * 1_001
    assert only.tpot == pytest.approx(step, rel=0.01)
    assert only.end_to_end == pytest.approx(only.ttft + 2 * only.tpot)
    assert (only.status, only.generated, only.cached) == (CallStatus.SERVED, 3, 0)


def test_a_conversation_finds_its_pod_and_its_cache():
    first = call(0, size=1_600, answer=32)
    second = Call(
        at=0.0,
        prompt=(*first.prompt, *first.response, Run(9, 100)),
        response=(Run(10, 5),),
        session=0,
        after=0,
        think=5.0,
    )
    outcomes = by_call(played([first, second]))
    one, two = outcomes[0], outcomes[1]
    assert two.endpoint == one.endpoint
    assert two.at == pytest.approx(one.at + one.end_to_end + 5.0)
    # vLLM: of 1,600 and 32 tokens all but the last are computed; full blocks of 16 are cached.
    assert two.cached == two.predicted_cached == 1_631 // 16 * 16
    assert two.reusable == two.cached  # 1_632 // 64 * 64 is less


def test_nothing_is_sent_after_the_duration_and_what_was_is_answered():
    calls = [call(name, at=name * 1.0, answer=400) for name in range(6)]
    calls.append(call(6, at=0.0, after=0, think=2.5))
    run = played(ordered(calls), duration=3.5)
    assert [each.at for each in run.outcomes] == [0.0, 1.0, 2.0, 3.0]
    assert {each.status for each in run.outcomes} == {CallStatus.SERVED}
    assert run.seconds == max(each.at + each.end_to_end for each in run.outcomes) > 3.5


def test_a_duration_after_the_last_call_changes_nothing():
    calls = [call(name, at=name * 1.0) for name in range(3)]
    assert played(calls, duration=60.0) == played(calls)


def test_long_answers_share_the_pods_whoever_has_their_prefix():
    large = PodPlan(limits=Limits(num_gpu_blocks=10_001))
    calls = [call(name, at=2.0 * name, size=400, shared=300, answer=2_000) for name in range(20)]
    places = [each.endpoint for each in played(calls, pods=(large, large)).outcomes]
    assert abs(places.count(0) - places.count(1)) <= 4


def test_what_fits_no_pod_is_refused_and_hurts_nobody():
    outcomes = by_call(played([call(0, size=20_000), call(1, at=1.0)]))
    assert outcomes[0].status is CallStatus.REFUSED
    assert "context" in outcomes[0].reason
    assert outcomes[1].status is CallStatus.SERVED


def test_with_a_dead_pod_its_requests_are_lost_and_later_ones_go_elsewhere():
    calls = [call(number, at=0.1 * number, answer=500) for number in range(20)]
    later = [call(100 + number, at=30.0 + number) for number in range(5)]
    dies = Fault(pod=0, kind=FaultKind.DIE, at=3.0)
    run = played([*calls, *later], policy=ROUND_ROBIN, faults=(dies,))
    lost = [each for each in run.outcomes if each.status is CallStatus.LOST]
    assert lost
    assert {each.endpoint for each in lost} == {0}
    after = [each for each in run.outcomes if each.at >= 30.0]
    assert {(each.status, each.endpoint) for each in after} == {(CallStatus.SERVED, 1)}


def test_requests_wait_for_room_however_rarely_pods_are_scraped():
    calls = [call(number, at=0.2 * number, size=500, answer=1_500) for number in range(120)]
    waiting, at_once = (
        sum(each.preempted for each in run.outcomes)
        for policy in (LEAST_TTFT, NAMED["least-ttft-at-once"])
        for run in [played(calls, pods=(SMALL,), policy=policy, scrape_seconds=30.0)]
    )
    assert waiting < at_once / 4


def test_a_pod_that_comes_back_is_cold():
    calls = [call(0, shared=960), call(1, at=60.0, shared=960), call(2, at=70.0, shared=960)]
    dies = Fault(pod=0, kind=FaultKind.DIE, at=20.0, seconds=10.0)
    outcomes = by_call(played(calls, pods=(SMALL,), faults=(dies,)))
    assert [outcomes[each].cached for each in range(3)] == [0, 0, 960]
    assert [outcomes[each].predicted_cached for each in range(3)] == [0, 0, 960]


def test_a_stalled_pod_answers_late():
    stall = Fault(pod=0, kind=FaultKind.STALL, at=1.0, seconds=20.0)
    (only,) = played([call(0, at=2.0)], pods=(SMALL,), faults=(stall,)).outcomes
    (free,) = played([call(0, at=2.0)], pods=(SMALL,)).outcomes
    assert only.ttft == pytest.approx(19.0 + free.ttft)


def test_a_pod_that_hangs_answers_late_and_is_scraped_all_the_while():
    hang = Fault(pod=0, kind=FaultKind.HANG, at=1.0, seconds=20.0)
    run = played([call(0, at=2.0)], pods=(SMALL,), faults=(hang,))
    (free,) = played([call(0, at=2.0)], pods=(SMALL,)).outcomes
    assert run.outcomes[0].ttft == pytest.approx(19.0 + free.ttft)


FAILS = Fault(pod=0, kind=FaultKind.FAIL, at=10.0)
HANGS = Fault(pod=0, kind=FaultKind.HANG, at=10.0, seconds=400.0)
DIES = Fault(pod=0, kind=FaultKind.DIE, at=10.0)


@pytest.mark.parametrize(
    ("policy", "fault", "most", "without"),
    [
        # Five in a row, and one at each return, of which there are two in 110 seconds.
        (LEAST_TTFT, FAILS, 7, 35),
        (ROUND_ROBIN, FAILS, 7, 73),
        # One request in 1.5 seconds, for 15 seconds and the scrape.
        (ROUND_ROBIN, HANGS, 11, 73),
        # What is sent to a pod that is known to be gone is not sent there again.
        (LEAST_TTFT, DIES, 1, 0),
        (ROUND_ROBIN, DIES, 1, 0),
    ],
)
def test_a_pod_that_fails_or_hangs_is_left_out(policy, fault, most, without):
    calls = [call(number, at=0.5 * number) for number in range(240)]

    def unserved(eject_after):
        plan = {"policy": policy, "faults": (fault,), "eject_after": eject_after}
        outcomes = played(calls, pods=(SMALL,) * 3, **plan).outcomes
        late = [each for each in outcomes if each.status is not CallStatus.SERVED or each.ttft > 20]
        assert {each.endpoint for each in late} <= {0}
        return len(late)

    assert unserved(5) <= most
    assert unserved(0) >= without


@pytest.mark.parametrize("running", [None, 2])
def test_pods_whose_pages_are_late_keep_their_share(running):
    late = [
        Fault(pod=pod, kind=FaultKind.LATE, at=5.0, seconds=80.0, running=running)
        for pod in range(3)
    ]
    calls = [call(number, at=0.2 * number, answer=300) for number in range(500)]
    run = played(calls, pods=(SMALL,) * 4, faults=late)
    assert {each.status for each in run.outcomes} == {CallStatus.SERVED}
    places = Counter(each.endpoint for each in run.outcomes if each.at > 20)
    assert min(places.values()) > 0.8 * mean(places.values())
    assert set(places) == set(range(4))


@pytest.mark.parametrize("seconds", [None, 10.0])
def test_a_slow_pod_takes_longer(seconds):
    slow = Fault(pod=0, kind=FaultKind.SLOW, at=1.0, seconds=seconds, factor=0.25)
    calls = [call(0), call(1, at=5.0), call(2, at=50.0)]
    outcomes = by_call(played(calls, pods=(SMALL,), faults=(slow,)))
    times = [outcomes[each].ttft / outcomes[0].ttft for each in range(3)]
    assert times == pytest.approx([1.0, 4.0, 4.0 if seconds is None else 1.0], rel=1e-6)


def test_independent_pickers_know_less_than_those_that_exchange():
    calls = [call(number, at=0.5 * number, shared=960) for number in range(40)]
    cached = {}
    for exchange in (None, 0.005):
        run = played(calls, pods=(SMALL,) * 4, pickers=4, exchange_seconds=exchange)
        cached[exchange] = sum(each.cached for each in run.outcomes)
    assert cached[None] < cached[0.005]


def test_what_is_not_answered_in_time_is_unfinished():
    calls = [call(number, size=8_000, answer=4_000) for number in range(10)]
    run = played(calls, pods=(SMALL,), drain_seconds=1.0)
    assert CallStatus.UNFINISHED in {each.status for each in run.outcomes}
    assert len(run.outcomes) == 10


APART = msgspec.structs.replace(
    LEAST_TTFT,
    text="""
    plugins:
    - {type: always-disagg-pd-decider}
    - {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
    - {type: prefill-filter}
    - {type: decode-filter}
    - {type: least-ttft-picker}
    - {type: random-picker}
    schedulingProfiles:
    - {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: least-ttft-picker}]}
    - {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: random-picker}]}
    """,
)
ROLES = tuple(msgspec.structs.replace(SMALL, role=role) for role in ("prefill", "decode"))


def test_prefill_and_decode_pods_share_a_request():
    (apart,) = played([call(0)], ROLES, APART, transfer_seconds_per_token=1e-3).outcomes
    (whole,) = played([call(0)], pods=(SMALL,)).outcomes
    assert (apart.endpoint, apart.prefill, whole.prefill) == (1, 0, None)
    assert apart.status is CallStatus.SERVED
    assert apart.ttft > whole.ttft + 1.0
    assert apart.queued == pytest.approx(0.0)
    assert apart.tpot == pytest.approx(whole.tpot)


def test_what_is_cached_is_what_the_engine_found_that_computed_the_prompt():
    pods = (*ROLES, ROLES[1], ROLES[1])
    calls = [call(number, at=10.0 * number, shared=640) for number in range(4)]
    outcomes = played(calls, pods, APART).outcomes
    assert len({each.endpoint for each in outcomes}) > 1
    assert [each.cached for each in outcomes] == [0, 640, 640, 640]


def test_a_request_may_wait_for_the_engine_of_its_prompt_and_for_the_one_that_generates():
    late, transfer = 0.001, 1e-6
    calls = [call(0), call(1, at=late)]
    first, second = played(calls, ROLES, APART, transfer_seconds_per_token=transfer).outcomes
    (whole,) = played([call(0)], pods=(SMALL,)).outcomes
    assert first.queued == pytest.approx(0.0)
    # It waits for the first one's prompt, and then at most for a step that generates a token.
    waited = second.queued - (whole.ttft - late)
    assert 0 <= waited <= 1.01 * whole.tpot
    parts = second.ttft - second.queued
    assert parts == pytest.approx(whole.ttft + 1_000 * transfer + whole.tpot, rel=0.01)


@pytest.mark.parametrize("observation", [Observation(1), Observation(0), AUTO])
def test_responses_that_are_left_are_served_all_the_same(observation):
    calls = [call(number, at=0.3 * number, shared=640) for number in range(40)]
    run = played(calls, observation=observation)
    assert {each.status for each in run.outcomes} == {CallStatus.SERVED}


traffic = st.lists(
    st.builds(
        call,
        st.integers(0, 50),
        at=st.floats(0, 20),
        size=st.integers(1, 20_000),
        answer=st.integers(1, 300),
    ),
    min_size=1,
    max_size=30,
)
faults = st.lists(
    st.builds(
        Fault,
        pod=st.integers(0, 1),
        kind=st.sampled_from(FaultKind),
        at=st.floats(0, 30),
        seconds=st.one_of(st.none(), st.floats(0.1, 20)),
        factor=st.floats(0.1, 3),
    ),
    max_size=3,
)


@settings(max_examples=40, deadline=None)
@given(traffic, faults, st.integers(1, 3), st.sampled_from((None, 0.0, 0.05)))
def test_every_call_ends_once_and_a_seed_repeats_itself(calls, faults, pickers, exchange):
    runs = [
        played(calls, faults=faults, pickers=pickers, exchange_seconds=exchange, seed=3)
        for _ in range(2)
    ]
    assert msgspec.json.encode(runs[0]) == msgspec.json.encode(runs[1])
    assert sorted(each.call for each in runs[0].outcomes) == list(range(len(calls)))
    for each in runs[0].outcomes:
        assert 0 <= each.cached <= each.prompt
        if each.status is CallStatus.SERVED:
            assert 0 < each.ttft <= each.end_to_end
            assert each.generated == sum(run.length for run in ordered(calls)[each.call].response)


STICKY = Policy(
    "sticky",
    """
plugins:
- {type: agent-identity, parameters: {additionalSessionHeaders: [x-session-id]}}
- type: session-affinity-scorer
  parameters:
    strategy: session_id
    sessionIdConfig: {sources: [{attribute: agent-identity}]}
""",
)


def test_request_processors_see_requests_before_they_are_decided_on():
    calls = [call(number, at=0.5 * number, session=number % 5) for number in range(60)]
    homes: dict[int, set[int]] = {}
    for each in played(calls, pods=[SMALL] * 4, policy=STICKY).outcomes:
        homes.setdefault(calls[each.call].session, set()).add(each.endpoint)
    assert [len(each) for each in homes.values()] == [1] * 5
    assert len(set.union(*homes.values())) > 1


def test_responses_are_observed_as_serve_does_by_default():
    assert RunPlan(policy=STICKY, pods=[]).observation == AUTO


def test_what_is_under_way_is_bounded(monkeypatch):
    monkeypatch.setattr(simulation, "MAX_TOKENS_UNDER_WAY", 3_000)
    at_once = [call(number, size=1_000) for number in range(5)]
    later = [call(number, at=60.0, size=1_000) for number in range(5, 8)]
    outcomes = by_call(played([*at_once, *later]))
    assert [outcomes[number].status for number in range(8)] == [
        *[CallStatus.SERVED] * 3,
        *[CallStatus.REFUSED] * 2,
        *[CallStatus.SERVED] * 3,
    ]
    assert outcomes[4].reason == "more tokens are under way than a run bears"
