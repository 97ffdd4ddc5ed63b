"""Admitters: requests of negative priority are refused as the published rules say."""

import pytest

from epp.errors import Overloaded
from epp.model.endpoint import Load
from epp.policy.admitters import LatencySloAdmitter, ProbabilisticAdmitter
from epp.policy.attribute_sources import LatencyPrediction
from tests.policy.started import Context
from tests.strategies import candidate, request

LOADED = [
    candidate("a", Load(waiting=1, kv_usage=0.4)),  # max(1/5, .4/.8) = .5
    candidate("b", Load(waiting=0, kv_usage=0.08)),  # max(0, .1) = .1
]


def admits(admitter, candidates, **more):
    try:
        admitter.admit(request(**more), candidates)
    except Overloaded as error:
        return error.status != 429
    return True


def test_saturation_is_a_mean_of_maxima():
    assert ProbabilisticAdmitter().saturation(LOADED) == pytest.approx(0.3)
    assert ProbabilisticAdmitter().saturation([candidate("a", Load(waiting=2))]) == 2 / 5
    assert ProbabilisticAdmitter().saturation([]) == 0


@pytest.mark.parametrize(("share", "admitted"), [(0.728, False), (0.73, True)])
def test_the_chance_grows_with_a_power_of_saturation(share, admitted):
    # 300 * 0.3^5 = 0.729
    admitter = ProbabilisticAdmitter().start(Context([share]))
    assert admits(admitter, LOADED, priority=-1) is admitted


def test_others_are_admitted_whatever_the_load():
    full = [candidate("a", Load(waiting=100, kv_usage=1))]
    admitter = ProbabilisticAdmitter().start(Context())
    assert admits(admitter, full, priority=0)
    assert not admits(admitter, full, priority=-1)


@pytest.mark.parametrize(
    "wrong", ["queue_depth_threshold", "kv_cache_util_threshold", "power", "k"]
)
def test_parameters_are_above_nothing(wrong):
    with pytest.raises(ValueError, match="is 0, not above 0"):
        ProbabilisticAdmitter(**{wrong: 0})


class Predicting:
    def __init__(self, *valid):
        self.valid = valid

    def latencies(self, request, candidates):
        return [
            None if each is None else LatencyPrediction(1, 1, 0, 0, 0, each) for each in self.valid
        ]


SLO = {"x-slo-ttft-ms": "100"}
BUSY = [candidate(name, Load(running=3, kv_usage=0.5)) for name in "ab"]


@pytest.mark.parametrize(
    ("valid", "candidates", "more", "admitted"),
    [
        ((False, False), BUSY, {}, False),
        ((False, True), BUSY, {}, True),
        ((None, None), BUSY, {}, True),
        ((False, False), BUSY, {"priority": 0}, True),
        ((False, False), BUSY, {"headers": {}}, True),
        ((False, False), BUSY, {"headers": {"x-slo-ttft-ms": "soon"}}, True),
        ((False, False), [BUSY[0], candidate("idle", Load(kv_usage=0.5))], {}, True),
        ((False, False), [BUSY[0], candidate("cold", Load(running=1, kv_usage=0.01))], {}, True),
    ],
)
def test_a_request_is_refused_where_no_endpoint_meets_its_objectives(
    valid, candidates, more, admitted
):
    context = Context(predicted_latency_producer=Predicting(*valid))
    admitter = LatencySloAdmitter().start(context)
    asked = {"priority": -1, "headers": SLO, **more}
    assert admits(admitter, candidates, **asked) is admitted
