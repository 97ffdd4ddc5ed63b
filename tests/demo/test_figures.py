import math

import msgspec
import pytest

from epp.demo.figures import Figures, Sample, computed_by_server, gain_sentence, summarize


def sample(**values):
    return Sample(**{"conversation": 0, "turn": 0, "sent_at": 0.0, **values})


# Two servers, blocks of 16: a computes 100 + 20 tokens, b 50; predictions miss by +32, -10 and 0.
RUN = [
    sample(ttft=0.1, seconds=1.0, prompt_tokens=100, server="a", predicted_cached=32),
    sample(
        ttft=0.3,
        sent_at=1.0,
        seconds=1.0,
        prompt_tokens=120,
        cached_tokens=100,
        server="a",
        predicted_cached=90,
    ),
    sample(
        ttft=0.2,
        sent_at=2.0,
        seconds=2.0,
        prompt_tokens=130,
        cached_tokens=80,
        server="b",
        predicted_cached=80,
    ),
    sample(sent_at=3.0, seconds=90.0, error="503"),
]
EXPECTED = {
    "requests": 3,
    "failed": 1,
    "ttft_mean": 0.2,
    "ttft_p50": 0.2,
    "ttft_p90": 0.28,
    "ttft_p99": 0.298,
    "cached_ratio": 180 / 350,
    "requests_per_s": 3 / 4,
    "imbalance": 120 / 85,
    "over": 32 / 350,
    "under": 10 / 350,
    "close": 2 / 3,
}


def test_a_run_summed_up_by_hand():
    figures = msgspec.structs.asdict(summarize(RUN, ("a", "b"), 16))
    assert figures == pytest.approx(EXPECTED)


def test_a_server_that_got_nothing_counts_in_the_imbalance():
    assert summarize(RUN[:1], ("a", "b", "c", "d"), 16).imbalance == pytest.approx(4.0)


def test_a_run_without_a_single_answer_has_no_figures():
    figures = summarize([sample(error="refused")], ("a",), 16)
    assert (figures.requests, figures.failed) == (0, 1)
    assert all(math.isnan(value) for value in (figures.ttft_p50, figures.cached_ratio))
    assert all(math.isnan(value) for value in (figures.imbalance, figures.over, figures.close))


def test_a_run_without_a_single_answer_is_compared_with_none():
    none, some = summarize([sample(error="refused")], ("a",), 16), figures(0.2, 0.8)
    for runs in ((none, some), (some, none)):
        assert "no request was served" in gain_sentence(*runs)


def test_predictions_that_were_not_made_are_not_judged():
    figures = summarize([sample(ttft=1.0, prompt_tokens=10)], ("a",), 16)
    assert all(math.isnan(value) for value in (figures.over, figures.under, figures.close))


def test_work_of_unknown_servers_is_left_out():
    stray = sample(prompt_tokens=5, server="elsewhere")
    assert computed_by_server([*RUN, stray], ("b", "a")) == [50, 120]


def figures(mean, cached):
    values = {**EXPECTED, "ttft_mean": mean, "ttft_p50": mean / 2, "cached_ratio": cached}
    return Figures(**values)


def test_the_gain_is_one_sentence_with_both_figures():
    text = gain_sentence(figures(0.6, 0.5), figures(0.2, 0.8))
    assert "3.0 times less" in text
    assert "200 ms on average instead of 600 ms" in text
    assert "80% instead of 50%" in text
    assert text.count(". ") == 0


def test_no_gain_is_said_as_plainly():
    assert "gained nothing" in gain_sentence(figures(0.2, 0.5), figures(0.2, 0.8))
