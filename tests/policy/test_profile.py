"""Profiles: the order of filters, weights, scores out of range, and the decision's fields."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import EndpointsFull, NoEndpoints, PickerFault
from epp.policy.choice import Plan
from epp.policy.pickers import MaxScorePicker
from epp.policy.plugins import PickContext
from epp.policy.profile import Profile, WeightedScorer
from tests.strategies import Number, candidate, request

DRAW = PickContext(lambda _: 0, 0)


class Fixed:
    """Scores as it is told."""

    def __init__(self, *values):
        self.values = list(values)

    def score(self, request, candidates):
        return self.values[: len(candidates)]


class Keep:
    """Keeps endpoints by name, and notes what it was given."""

    def __init__(self, *names):
        self.names = names
        self.given = []

    def filter(self, request, candidates):
        self.given = [each.endpoint.name for each in candidates]
        return [each for each in candidates if each.endpoint.name in self.names]


def run(scorers=(), filters=(), count=3, most=1):
    weighted = tuple(
        WeightedScorer(f"s{number}", weight, scorer)
        for number, (weight, scorer) in enumerate(scorers)
    )
    profile = Profile("p", tuple(filters), weighted, MaxScorePicker(most))
    asked = [
        candidate(
            f"pod-{number}",
            prompt_tokens=100,
            cached_tokens=10 * number,
            queued_prefill_seconds=number,
            prefill_seconds=0.5,
            decode_seconds=0.25,
        )
        for number in range(count)
    ]
    return Plan(profile).choose(request(), asked, DRAW)


def test_totals_are_weighted_sums():
    decision = run([(2, Fixed(0.5, 0.25, 0)), (3, Fixed(0, 0.5, 0.25))])
    assert decision.totals == [1.0, 2.0, 0.75]
    assert decision.endpoint.name == "pod-1"
    assert [(each.plugin, each.weight) for each in decision.scores] == [("s0", 2), ("s1", 3)]
    assert decision.scores[1].values == [0, 0.5, 0.25]


@pytest.mark.parametrize(
    ("value", "counted"),
    [(-1.0, 0), (2.0, 1), (0.5, 0.5), (float("nan"), 0), (float("inf"), 1), (float("-inf"), 0)],
)
def test_values_are_clamped_before_they_are_weighed(value, counted):
    assert run([(10, Fixed(value))], count=1).totals == [10 * counted]


@pytest.mark.parametrize("value", [-0.001, 1.001, float("nan"), float("inf"), float("-inf")])
def test_a_scorer_with_values_out_of_range_is_named(value):
    decision = run([(1, Fixed(0, 1, 0.5)), (1, Fixed(0.5, value, 1))])
    assert [(each.plugin, each.out_of_range) for each in decision.scores] == [
        ("s0", False),
        ("s1", True),
    ]
    assert decision.scores[1].values[0] == 0.5


@pytest.mark.parametrize("values", [(), (1, 1), (1, 1, 1, 1)])
def test_a_scorer_with_too_many_or_too_few_values_is_at_fault(values):
    class Scorer:
        def score(self, request, candidates):
            return values

    with pytest.raises(PickerFault, match=f"scorer s1 returned {len(values)} scores for 3") as it:
        run([(1, Fixed(0, 1, 0.5)), (1, Scorer())])
    assert (it.value.status, it.value.reason) == (500, "plugin-fault")


@pytest.mark.parametrize(
    "values",
    [None, 0.5, ["high"] * 3, [None] * 3, (each for each in (0, 1, 0)), {"a": 0, "b": 1, "c": 0}],
)
def test_a_scorer_that_returns_something_else_than_numbers_is_named(values):
    class Scorer:
        def score(self, request, candidates):
            return values

    with pytest.raises(
        PickerFault, match=r"scorer s1 returned .* a number for each endpoint"
    ) as it:
        run([(1, Fixed(0, 1, 0.5)), (1, Scorer())])
    assert (it.value.status, it.value.reason) == (500, "plugin-fault")


def test_a_fault_in_a_scorer_stays_its_own():
    class Scorer:
        def score(self, request, candidates):
            raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        run([(1, Scorer())])


@pytest.mark.parametrize("left", [None, True, filter(None, [1]), iter([])])
def test_a_filter_that_returns_no_sequence_is_named(left):
    class Filter:
        def filter(self, request, candidates):
            return left

    with pytest.raises(
        PickerFault, match=r"filter Filter returned .* a sequence of candidates"
    ) as it:
        run(filters=[Keep("pod-0"), Filter()])
    assert (it.value.status, it.value.reason) == (500, "plugin-fault")


@pytest.mark.parametrize("positions", [[], (3,), [0, 7], [-1], [0, -3], None, [0.5], array("d")])
def test_a_picker_that_returns_no_candidates_is_named(positions):
    class Picker:
        def pick(self, candidates, totals, context):
            return positions

    said = "picker Picker of profile p returned .* instead of positions among 3 endpoints"
    with pytest.raises(PickerFault, match=said) as it:
        Plan(Profile("p", (), (), Picker())).choose(request(), [candidate()] * 3, DRAW)
    assert (it.value.status, it.value.reason) == (500, "plugin-fault")


def test_predictions_are_those_of_the_endpoint_that_is_picked():
    decision = run([(1, Fixed(0, 0.5, 1))])
    picked = decision.predicted_for
    assert picked.endpoint == decision.endpoint
    assert decision.predicted_ttft == picked.predicted_ttft == 2 + 0.5 + 0.25


def test_a_negative_weight_repels():
    assert run([(-1, Fixed(1, 0, 1))]).endpoint.name == "pod-1"


def test_filters_see_what_the_one_before_left():
    first, second = Keep("pod-0", "pod-2"), Keep("pod-2", "pod-1")
    decision = run([(1, Fixed(0.3))], [first, second])
    assert first.given == ["pod-0", "pod-1", "pod-2"]
    assert second.given == ["pod-0", "pod-2"]
    assert [each.endpoint.name for each in decision.candidates] == ["pod-2"]
    assert decision.endpoint.name == "pod-2"


def test_a_filter_that_leaves_nothing_is_named():
    last = Keep("pod-0")
    with pytest.raises(NoEndpoints, match="filter Keep left no endpoint") as raised:
        run(filters=[Keep(), last])
    assert raised.value.reason == "filtered-out"
    assert last.given == []


def test_the_decision_tells_what_is_expected_of_the_first():
    decision = run([(1, Fixed(0, 0.5, 1))], most=2)
    assert [each.name for each in decision.endpoints] == ["pod-2", "pod-1"]
    assert decision.destination == "10.0.0.1:8000"  # both listen there
    assert (decision.prompt_tokens, decision.predicted_cached_tokens) == (100, 20)
    assert decision.predicted_ttft == 2 + 0.5 + 0.25
    assert decision.profile == "p"


@pytest.mark.parametrize(
    "values",
    [[0, 1, 0], (0.25, 0.5, 0.25), array("f", [0.25, 0.5, 0.25]), [False, True, False]],
    ids=["integers", "a tuple", "an array of single precision", "truth values"],
)
def test_plug_ins_may_give_numbers_of_other_makes(values):
    class Scorer:
        def score(self, request, candidates):
            return values

    class Picker:
        def pick(self, candidates, totals, context):
            return [Number(totals.index(max(totals)))]

    profile = Profile("p", (), (WeightedScorer("s", 1, Scorer()),), Picker())
    asked = [candidate(f"pod-{number}") for number in range(3)]
    assert Plan(profile).choose(request(), asked, DRAW).endpoint.name == "pod-1"


class Full:
    """Has no endpoint left that is not full."""

    def filter(self, request, candidates):
        raise EndpointsFull("all are full")


def among(fits, *filters):
    """Return the names of the candidates that are left, of those that fit or not."""
    asked = [candidate(f"pod-{number}", fits=each) for number, each in enumerate(fits)]
    decision = Plan(Profile("p", filters, (), MaxScorePicker())).choose(request(), asked, DRAW)
    return [each.endpoint.name for each in decision.candidates]


@pytest.mark.parametrize(
    ("fits", "kept", "left"),
    [
        ((None, None, None), (), ["pod-0", "pod-1", "pod-2"]),
        ((True, True, True), (), ["pod-0", "pod-1", "pod-2"]),
        ((False, False, False), (), ["pod-0", "pod-1", "pod-2"]),
        ((False, True, True), (), ["pod-1", "pod-2"]),
        ((False, True, None), (), ["pod-1", "pod-2"]),
        ((False, None, None), (), ["pod-0", "pod-1", "pod-2"]),  # none is known to have room
        ((False, True, True), ("pod-0", "pod-2"), ["pod-2"]),
        ((False, True, True), ("pod-0",), ["pod-0"]),  # what the filter wants comes first
    ],
)
def test_endpoints_that_are_too_short_are_left_out_where_others_have_room(fits, kept, left):
    assert among(fits, *([Keep(*kept)] if kept else [])) == left


def test_full_endpoints_with_room_do_not_send_a_request_where_it_does_not_fit():
    with pytest.raises(EndpointsFull):
        among((False, True), Full())


@given(fits=st.lists(st.sampled_from((True, False, None)), min_size=1, max_size=6))
def test_some_are_always_left_and_all_of_those_that_fit(fits):
    left = among(fits)
    assert left
    assert {f"pod-{number}" for number, each in enumerate(fits) if each is not False} <= {*left}
