"""Rulers: texts in tokens, learned from what servers report."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.prompts.block_hasher import BlockHasher
from epp.model.prompts.text_lengths import DEFAULT_RATES, Kind, kind_of
from epp.model.prompts.token_estimator import TokenEstimator
from epp.model.request import Prompt

HASHER = BlockHasher(b"")
PROSE: Kind = "prose"


def text(size):
    return (b"words " * (size // 6 + 1))[:size]


def chain(size, marks=()):
    return HASHER.chain(Prompt(text(size), marks=marks), "m", "")


def measured(estimator, prompt):
    return estimator.offsets(prompt, "m", text(prompt.size), PROSE)


@given(st.integers(1, 16), st.integers(512, 100_000))
def test_blocks_without_known_lengths_follow_the_rate(rate, size):
    estimator = TokenEstimator()
    estimator.learn("m", PROSE, 1000 * rate, 1000)
    offsets = measured(estimator, chain(size))
    assert list(offsets.ends) == [end // rate for end in chain(size).ends]
    assert offsets.total == max(1, round(size / rate))
    assert sum(offsets.sizes()) == offsets.covered(len(offsets.ends)) <= offsets.total
    assert offsets.covered(0) == 0


@given(st.data())
def test_known_lengths_hold_and_the_rest_follows_from_them(data):
    marks = sorted(data.draw(st.sets(st.integers(600, 30_000), min_size=1, max_size=12)))
    prompt = chain(marks[-1] + data.draw(st.integers(0, 5000)), marks)
    estimator = TokenEstimator()
    pins: dict[int, int] = {}
    for mark in sorted(data.draw(st.sets(st.sampled_from(marks)))):
        pins[mark] = max(pins.values(), default=0) + data.draw(st.integers(1, 4000))
        estimator.prefixes.record(prompt.hashes[list(prompt.ends).index(mark)], pins[mark])
    offsets = measured(estimator, prompt)
    known = dict(zip(prompt.ends, offsets.ends, strict=True))
    assert all(known[mark] == tokens for mark, tokens in pins.items())
    assert all(size >= 0 for size in offsets.sizes())
    assert offsets.total >= max(1, *offsets.ends)
    last = max(pins, default=0)
    rate = last / pins[last] if pins else 4.0
    assert offsets.total == pytest.approx(max(1, last / rate + (prompt.size - last) / rate), abs=1)


def test_texts_are_not_measured_by_prompts_with_media():
    estimator = TokenEstimator()
    assert estimator.rate("m", "media") == DEFAULT_RATES["media"]
    estimator.learn("m", "media", 4000, 4000)
    assert estimator.rate("m", "media") == 1.0
    assert estimator.rate("m", PROSE) == DEFAULT_RATES[PROSE]
    estimator.learn("m", PROSE, 2000, 1000)
    assert (estimator.rate("m", "media"), estimator.rate("m", PROSE)) == (1.0, 2.0)
    assert estimator.rate("m", "code") == 2.0 * DEFAULT_RATES["code"] / DEFAULT_RATES[PROSE]


def test_what_is_of_another_kind_than_a_prefix_is_not_measured_by_it():
    code = b"for (i = 0; i < n; ++i) { s += a[i] * b[i]; }\n" * 30
    whole = text(1200) + code
    prompt = HASHER.chain(Prompt(whole, marks=(1200, len(whole))), "m", "")
    estimator = TokenEstimator()
    estimator.learn("m", "code", len(code), len(code) // 2)
    estimator.prefixes.record(prompt.hashes[list(prompt.ends).index(1200)], 200)
    assert estimator.offsets(prompt, "m", whole, kind_of(whole)).total == 200 + len(code) // 2


def test_a_length_that_may_be_too_great_only_ever_shrinks():
    prompt, estimator = chain(2000, (1000,)), TokenEstimator()
    block = list(prompt.ends).index(1000)
    for tokens, known in ((260, 260), (300, 260), (240, 240)):
        estimator.prefixes.record_at_most(prompt.hashes[block], tokens)
        assert measured(estimator, prompt).ends[block] == known


def test_a_known_length_above_a_later_one_is_ignored():
    prompt, estimator = chain(2000, (600, 1000)), TokenEstimator()
    estimator.prefixes.record(prompt.hashes[list(prompt.ends).index(600)], 300)
    estimator.prefixes.record(prompt.hashes[list(prompt.ends).index(1000)], 200)
    assert measured(estimator, prompt).total == 200 + round(1000 / (1000 / 200))


@pytest.mark.parametrize(
    ("size", "kind", "least", "most"),
    [
        (160, PROSE, 10, 512),
        (1600, "code", 100, 1600),
        (1600, "media", 1, 1600 + (1 << 20)),  # Qwen3-VL's context of 1 Mi beside the text
    ],
)
def test_a_count_far_from_a_prompts_bytes_is_not_believed(size, kind, least, most):
    prompt = chain(size, ())
    believed = [TokenEstimator.believes(prompt, each, kind) for each in (least, most)]
    assert believed == [True, True]
    if kind != "media":
        assert not TokenEstimator.believes(prompt, least - 1, kind)
    assert not TokenEstimator.believes(prompt, most + 1, kind)


def test_token_ids_have_the_length_that_they_have():
    prompt = HASHER.chain(Prompt(bytes(4 * 100), exact=True), "m", "")
    offsets = TokenEstimator().offsets(prompt, "m", bytes(4 * 100), PROSE)
    assert offsets.total == 100
    assert list(offsets.ends) == [16, 32, 48, 64, 80, 96]


def test_a_model_starts_at_the_default_and_takes_the_first_report_whole():
    estimator = TokenEstimator()
    assert estimator.rate("m", PROSE) == DEFAULT_RATES[PROSE]
    estimator.learn("m", PROSE, 3000, 1000)
    assert estimator.rate("m", PROSE) == pytest.approx(3.0)
    assert estimator.rate("other", PROSE) == DEFAULT_RATES[PROSE]


def test_kinds_are_learned_apart_and_stand_in_for_each_other():
    estimator = TokenEstimator()
    estimator.learn("m", "code", 2000, 1000)
    expected = 2.0 * DEFAULT_RATES[PROSE] / DEFAULT_RATES["code"]
    assert estimator.rate("m", PROSE) == pytest.approx(expected)
    estimator.learn("m", PROSE, 4500, 1000)
    assert estimator.rate("m", PROSE) == pytest.approx(4.5)
    assert estimator.rate("m", "code") == pytest.approx(2.0)


def test_later_reports_are_averaged_in():
    estimator = TokenEstimator()
    estimator.learn("m", PROSE, 4000, 1000)
    estimator.learn("m", PROSE, 2000, 1000)
    assert estimator.rate("m", PROSE) == pytest.approx(3.8)
    for _ in range(100):
        estimator.learn("m", PROSE, 2000, 1000)
    assert estimator.rate("m", PROSE) == pytest.approx(2.0, abs=0.05)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), max_size=30))
def test_rates_stay_in_bounds(reports):
    estimator = TokenEstimator()
    for size, tokens in reports:
        estimator.learn("m", PROSE, size, tokens)
        assert 1 <= estimator.rate("m", PROSE) <= 16


def test_the_oldest_models_are_dropped_at_the_bound():
    estimator = TokenEstimator()
    for number in range(3000):
        estimator.learn(f"model-{number}", PROSE, 2000, 1000)
    assert len(estimator._rates) == 1000
    assert estimator.rate("model-2999", PROSE) == pytest.approx(2.0)
    assert estimator.rate("model-0", PROSE) == DEFAULT_RATES[PROSE]


def test_short_texts_teach_nothing():
    estimator = TokenEstimator()
    estimator.learn("m", PROSE, 2, 30)
    estimator.learn("m", PROSE, 511, 511)
    assert estimator.rate("m", PROSE) == DEFAULT_RATES[PROSE]
    estimator.learn("m", PROSE, 512, 256)
    assert estimator.rate("m", PROSE) == 2.0


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("The quick brown fox jumps over the lazy dog, and so on. " * 40, "prose"),
        ("for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; }\n" * 40, "code"),
        ('{"id": 17, "values": [1, 2, 3], "ok": true}' * 60, "code"),
        ("模型服务器的缓存" * 100, "script"),
        ("Быстрая лиса перепрыгнула через собаку " * 50, "script"),
    ],
)
def test_kinds_of_text(text, kind):
    assert kind_of(text.encode()) == kind
    assert kind_of(json.dumps(text).encode()) == kind
    assert kind_of(json.dumps(text, ensure_ascii=False).encode()) == kind
