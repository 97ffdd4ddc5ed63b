"""Rulers: bytes to tokens, per model, learned from what servers report."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.blocks import BLOCK_ENDS, BlockHasher, Chain
from epp.model.request import Prompt
from epp.model.ruler import DEFAULT_BYTES_PER_TOKEN, Ruler, Rulers

TEXT = Chain((), 0, 0)
EXACT = Chain((), 0, 0, exact=True)


@given(st.floats(1, 16))
def test_sizes_add_up_to_ends(rate):
    ruler = Ruler(rate)
    total = 0
    for size, end in zip(ruler.sizes[:150], ruler.ends[:150], strict=True):
        assert size > 0
        total += size
        assert total == end


@given(st.floats(1, 16), st.integers(0, 100_000))
def test_a_prompt_is_never_shorter_than_its_blocks(rate, size):
    ruler = Ruler(rate)
    blocks = sum(1 for end in BLOCK_ENDS if end <= size)
    assert ruler.covered(blocks) <= max(ruler.tokens(size), 1)
    assert ruler.tokens(size) >= 1


def test_nothing_covers_nothing():
    assert Ruler(4.0).covered(0) == 0
    assert Ruler(4.0).covered(2) == 64


def test_token_ids_are_four_bytes_and_never_learned():
    rulers = Rulers()
    rulers.learn("m", 1000, 1000)
    assert rulers.of("m", EXACT).bytes_per_token == 4.0
    prompt = BlockHasher(b"").chain(Prompt(bytes(400), exact=True), "m", "")
    assert rulers.of("m", prompt).tokens(prompt.size) == 100


def test_a_model_starts_at_the_default_and_takes_the_first_report_whole():
    rulers = Rulers()
    assert rulers.of("m", TEXT).bytes_per_token == DEFAULT_BYTES_PER_TOKEN
    rulers.learn("m", 3000, 1000)
    assert rulers.of("m", TEXT).bytes_per_token == pytest.approx(3.0)
    assert rulers.of("other", TEXT).bytes_per_token == DEFAULT_BYTES_PER_TOKEN


def test_later_reports_are_averaged_in():
    rulers = Rulers()
    rulers.learn("m", 4000, 1000)
    rulers.learn("m", 2000, 1000)
    assert rulers.of("m", TEXT).bytes_per_token == pytest.approx(3.8)
    for _ in range(100):
        rulers.learn("m", 2000, 1000)
    assert rulers.of("m", TEXT).bytes_per_token == pytest.approx(2.0, abs=0.05)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**9)), max_size=30))
def test_rates_stay_in_bounds(reports):
    rulers = Rulers()
    for size, tokens in reports:
        rulers.learn("m", size, tokens)
        assert 1 <= rulers.of("m", TEXT).bytes_per_token <= 16


def test_models_are_forgotten_before_memory_is():
    rulers = Rulers()
    for number in range(3000):
        rulers.learn(f"model-{number}", 2000, 1000)
    assert len(rulers._rates) == 1000
    assert rulers.of("model-2999", TEXT).bytes_per_token == pytest.approx(2.0)
    assert rulers.of("model-0", TEXT).bytes_per_token == DEFAULT_BYTES_PER_TOKEN


def test_short_texts_teach_nothing():
    rulers = Rulers()
    rulers.learn("m", 2, 30)
    rulers.learn("m", 511, 511)
    assert rulers.of("m", Chain((), 0, 0)).bytes_per_token == 4.0
    rulers.learn("m", 512, 256)
    assert rulers.of("m", Chain((), 0, 0)).bytes_per_token == 2.0
