"""dynamo-cost: Dynamo's cost in blocks, worked out by hand."""

from math import exp

import pytest

from epp.config.file import load
from epp.errors import ConfigError
from epp.model.endpoint import EndpointId
from epp.model.request import RequestId
from epp.model.request_events import Aborted, Admitted, FirstToken
from tests.policy.peers.desk import Desk, known_nodes, tokens

KIND = "dynamo-cost-scorer"
FIRST = tokens(8)
SECOND = [*FIRST[:80], *tokens(3, 1000)]
"""5 of its 8 blocks are the first one's; both are 129 tokens long."""
ALONE = 129 / 16 + 8
"""What it costs where nothing is: all tokens to prefill, 8 blocks to hold."""


def begun(**parameters):
    """Pod 0 has computed the first prompt and still holds its 8 blocks; pod 1 has nothing."""
    at = Desk(KIND, 2, **parameters)
    assert at.route(FIRST) == 0
    at.begin(0)
    return at


def test_what_is_cached_is_not_prefilled_and_not_held_twice():
    warm = 129 / 16 - 5 + 8 + 3
    assert begun().scores(SECOND) == {"pod-0": 1, "pod-1": warm / ALONE}


def test_until_its_first_token_a_prompt_is_to_be_prefilled():
    at = Desk(KIND, 2)
    at.route(FIRST)
    busy = (129 + 129) / 16 - 5 + 8 + 3
    assert at.scores(SECOND) == {"pod-0": ALONE / busy, "pod-1": 1}


def test_what_has_ended_holds_nothing_but_stays_cached():
    at = begun()
    at.end()
    assert at.scores(SECOND)["pod-1"] == (129 / 16 - 5 + 8) / ALONE


def test_equal_costs_score_the_same():
    """4 blocks less to prefill, 4 more held that are not the prompt's."""
    assert begun().scores([*FIRST[:64], *tokens(4, 1000)]) == {"pod-0": 1, "pod-1": 1}


@pytest.mark.parametrize(
    ("parameters", "warm", "cold"),
    [
        ({"overlapScoreCredit": 0.5}, 129 / 16 - 2.5 + 11, ALONE),
        ({"overlapScoreCredit": 2}, 0 + 11, ALONE),  # 10 blocks of credit for 8 to prefill
        ({"prefillLoadScale": 3}, 3 * (129 / 16 - 5) + 11, 3 * 129 / 16 + 8),
        ({"prefillLoadScale": 0}, 11, 8),
        ({"decodeActiveRequestWeight": 4}, 129 / 16 - 5 + 11 + 4, ALONE),
        ({"blockSize": 32}, 129 / 32 - 2 + 176 // 32, 129 / 32 + 128 // 32),
    ],
)
def test_parameters(parameters, warm, cold):
    least = min(warm, cold)
    expected = {"pod-0": least / warm, "pod-1": least / cold}
    assert begun(**parameters).scores(SECOND) == pytest.approx(expected)


def test_the_credit_decays_with_the_prefill_beyond_the_least():
    """Pod 0 has 129 tokens more to prefill than pod 1, then 96, for a prompt of 9 blocks begun."""
    at = Desk(KIND, 2, overlapScoreCreditDecay=2.0)
    at.route(FIRST)
    credit = 1 / (1 + 2.0 * 129 / 16 / 9)
    busy = (129 + 129) / 16 - credit * 5 + 8 + 3
    assert at.scores(SECOND)["pod-0"] == pytest.approx(ALONE / busy)
    at.route(tokens(2, 5000), subset=("10.0.0.2:8000",))
    credit = 1 / (1 + 2.0 * 96 / 16 / 9)
    busy, other = (129 + 129) / 16 - credit * 5 + 8 + 3, (33 + 129) / 16 + 2 + 8
    assert at.scores(SECOND)["pod-0"] == pytest.approx(other / busy)


def test_a_temperature_makes_weights_of_costs():
    at = Desk(KIND, 3, routerTemperature=0.5)
    at.route(FIRST)
    at.begin(0)
    at.route(tokens(2, 5000), subset=("10.0.0.2:8000",))
    warm, used, cold = 129 / 16 - 5 + 11, (33 + 129) / 16 + 2 + 8, ALONE
    assert at.scores(SECOND) == pytest.approx(
        {
            "pod-0": 1,
            "pod-1": exp(-1 / 0.5),
            "pod-2": exp(-(cold - warm) / ((used - warm) * 0.5)),
        }
    )


def test_prompts_are_held_as_often_as_they_are_sent():
    at = begun()
    assert at.route(FIRST, subset=("10.0.0.1:8000",)) == 0
    at.begin(1)
    at.end(0)
    assert at.scores(SECOND)["pod-1"] == (129 / 16 - 5 + 11) / ALONE
    at.end(1)
    assert at.scores(SECOND)["pod-1"] == (129 / 16 - 5 + 8) / ALONE


def test_where_another_computes_the_prompt_it_is_held_there_until_the_first_token():
    at = Desk(KIND, 3)
    active = at.scorer.active
    quote = at.rig.quote("apart", FIRST)
    at.rig.apply(Admitted(quote, EndpointId("default/pod-0"), EndpointId("default/pod-1")))
    among = list(at.decide(tokens(1, 5000)).candidates)
    assert active.held(among) == [144, 144, 16]
    at.rig.apply(FirstToken(RequestId("apart")))
    assert active.held(among) == [144, 16, 16]
    at.rig.apply(Admitted(quote, EndpointId("default/pod-2"), EndpointId("default/pod-1")))
    assert active.held(among) == [16, 144, 144]  # it was sent again
    at.rig.apply(Aborted(RequestId("apart")))
    assert active.held(among) == [16, 16, 16]


def test_an_endpoint_that_goes_is_forgotten():
    at = begun()
    at.remove(0)
    at.rig.add("pod-0", "10.0.0.1")
    assert at.scores(SECOND) == {"pod-0": 1, "pod-1": 1}
    assert at.route(FIRST) == 1  # the order of pods is that of their coming
    at.end(0)  # sent to the pod that went
    at.end(1)
    active = at.scorer.active
    assert (known_nodes(active._tree), len(active._requests), len(active._counts)) == (0, 0, 0)


def test_text_is_held_as_long_as_it_is_estimated_to_be():
    """Blocks of text end every 128 bytes at first; a token has four bytes by default."""
    at = Desk(KIND, 2)
    prompt = "etaoinsh" * 64  # 512 bytes, 128 tokens
    at.route(prompt)
    at.begin(0)
    active = at.scorer.active
    assert active.held(list(at.decide(prompt).candidates)) == [128, 128]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("overlapScoreCredit", -1, "a number from 0"),
        ("overlapScoreCreditDecay", -1, "a number from 0"),
        ("prefillLoadScale", -0.5, "a number from 0"),
        ("decodeActiveRequestWeight", -0.1, "a number from 0"),
        ("routerTemperature", -1, "a number from 0"),
        ("blockSize", 0, "such as 16"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(name, value, words):
    with pytest.raises(ConfigError, match=words) as caught:
        load(f"plugins: [{{type: {KIND}, parameters: {{{name}: {value}}}}}]")
    assert name in str(caught.value)
