"""Rulers: texts in tokens, learned from what servers report."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.blocks import BlockHasher
from epp.model.request import Prompt
from epp.model.ruler import DEFAULT_RATES, Kind, Rulers, kind_of

HASHER = BlockHasher(b"")
PROSE = Kind.PROSE


def chain(size, marks=(), *, exact=False):
    return HASHER.chain(
        Prompt(bytes(range(256)) * (size // 256) + bytes(size % 256), exact, marks), "m", ""
    )


@given(st.floats(1, 16), st.integers(0, 100_000))
def test_blocks_without_pins_follow_the_rate(rate, size):
    measure = Rulers().measure(chain(size), rate)
    assert list(measure.ends) == [int(end / rate) for end in chain(size).ends]
    assert measure.total == max(1, round(size / rate))
    assert sum(measure.sizes()) == measure.covered(len(measure.ends)) <= measure.total
    assert measure.covered(0) == 0


@given(st.data())
def test_pins_hold_and_the_rest_goes_on_from_them(data):
    marks = sorted(data.draw(st.sets(st.integers(1, 30_000), min_size=1, max_size=12)))
    prompt = chain(marks[-1] + data.draw(st.integers(0, 5000)), marks)
    rulers = Rulers()
    pins = dict.fromkeys(data.draw(st.sets(st.sampled_from(marks))))
    tokens = 0
    for mark in sorted(pins):
        tokens += data.draw(st.integers(0, 4000))
        pins[mark] = tokens
        rulers.pin(prompt.hashes[list(prompt.ends).index(mark)], tokens)
    measure = rulers.measure(prompt, 4.0)
    known = dict(zip(prompt.ends, measure.ends, strict=True))
    assert all(known[mark] == tokens for mark, tokens in pins.items())
    assert all(size >= 0 for size in measure.sizes())
    assert measure.total >= max(1, *measure.ends)
    last = max(pins, default=0)
    known = pins.get(last) or 0
    rate = last / known if last >= 512 and known else 4.0
    assert measure.total == max(1, known + round((prompt.size - last) / rate))


def test_a_pin_before_a_greater_one_is_passed_over():
    prompt, rulers = chain(2000, (500, 1000)), Rulers()
    rulers.pin(prompt.hashes[list(prompt.ends).index(500)], 300)
    rulers.pin(prompt.hashes[list(prompt.ends).index(1000)], 200)
    assert rulers.measure(prompt, 4.0).total == 300 + 375  # the pin is too short to go by


def test_token_ids_are_measured_as_they_are():
    measure = Rulers().measure(chain(4 * 100, exact=True), 2.0)
    assert measure.total == 100
    assert list(measure.ends) == [16, 32, 48, 64, 80, 96]


def test_a_model_starts_at_the_default_and_takes_the_first_report_whole():
    rulers = Rulers()
    assert rulers.rate("m", PROSE) == DEFAULT_RATES[PROSE]
    rulers.learn("m", PROSE, 3000, 1000)
    assert rulers.rate("m", PROSE) == pytest.approx(3.0)
    assert rulers.rate("other", PROSE) == DEFAULT_RATES[PROSE]


def test_kinds_are_learned_apart_and_stand_in_for_each_other():
    rulers = Rulers()
    rulers.learn("m", Kind.CODE, 2000, 1000)
    expected = 2.0 * DEFAULT_RATES[PROSE] / DEFAULT_RATES[Kind.CODE]
    assert rulers.rate("m", PROSE) == pytest.approx(expected)
    rulers.learn("m", PROSE, 4500, 1000)
    assert rulers.rate("m", PROSE) == pytest.approx(4.5)
    assert rulers.rate("m", Kind.CODE) == pytest.approx(2.0)


def test_later_reports_are_averaged_in():
    rulers = Rulers()
    rulers.learn("m", PROSE, 4000, 1000)
    rulers.learn("m", PROSE, 2000, 1000)
    assert rulers.rate("m", PROSE) == pytest.approx(3.8)
    for _ in range(100):
        rulers.learn("m", PROSE, 2000, 1000)
    assert rulers.rate("m", PROSE) == pytest.approx(2.0, abs=0.05)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), max_size=30))
def test_rates_stay_in_bounds(reports):
    rulers = Rulers()
    for size, tokens in reports:
        rulers.learn("m", PROSE, size, tokens)
        assert 1 <= rulers.rate("m", PROSE) <= 16


def test_models_are_forgotten_before_memory_is():
    rulers = Rulers()
    for number in range(3000):
        rulers.learn(f"model-{number}", PROSE, 2000, 1000)
    assert len(rulers._rates) == 1000
    assert rulers.rate("model-2999", PROSE) == pytest.approx(2.0)
    assert rulers.rate("model-0", PROSE) == DEFAULT_RATES[PROSE]


def test_short_texts_teach_nothing():
    rulers = Rulers()
    rulers.learn("m", PROSE, 2, 30)
    rulers.learn("m", PROSE, 511, 511)
    assert rulers.rate("m", PROSE) == DEFAULT_RATES[PROSE]
    rulers.learn("m", PROSE, 512, 256)
    assert rulers.rate("m", PROSE) == 2.0


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("The quick brown fox jumps over the lazy dog, and so on. " * 40, Kind.PROSE),
        ("for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; }\n" * 40, Kind.CODE),
        ('{"id": 17, "values": [1, 2, 3], "ok": true}' * 60, Kind.CODE),
        ("模型服务器的缓存" * 100, Kind.SCRIPT),
        ("Быстрая лиса перепрыгнула через собаку " * 50, Kind.SCRIPT),
    ],
)
def test_kinds_of_text(text, kind):
    assert kind_of(text.encode()) is kind
    assert kind_of(json.dumps(text).encode()) is kind
    assert kind_of(json.dumps(text, ensure_ascii=False).encode()) is kind
