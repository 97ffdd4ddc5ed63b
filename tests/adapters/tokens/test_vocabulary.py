"""The pieces of a text have the tokens of the text, whatever the tokenizer."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.adapters.tokens.fallback import TextFallback
from epp.adapters.tokens.local.vocabulary import Vocabulary
from epp.adapters.tokens.local.windows import WINDOW
from epp.protocol.bodies.token_prompts import packed
from tests.adapters.tokens.bodies import whole
from tests.adapters.tokens.folders import KINDS, ODD, SPECIAL, byte_level, texts

VOCABULARIES = {name: Vocabulary(make(), (*SPECIAL, *ODD)) for name, make in KINDS.items()}
TEXTS = st.lists(st.sampled_from(texts()) | st.text(max_size=3), max_size=12).map("".join)


def joined(vocabulary, pieces):
    ids = vocabulary.encode(pieces)
    return b"".join(ids[piece] for piece in pieces)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
def test_pieces_have_the_tokens_of_the_whole(name, text):
    vocabulary = VOCABULARIES[name]
    pieces = vocabulary.pieces(text)
    assert "".join(pieces) == text
    assert joined(vocabulary, pieces) == vocabulary.encode([text])[text]


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=15, deadline=None)
@given(text=TEXTS)
def test_affixes_are_found(name, text):
    vocabulary = VOCABULARIES[name]
    before, after = vocabulary.affixes or (b"", b"?")
    assert before + vocabulary.encode([text])[text] + after == whole(vocabulary, text)


RUNS = ("a", "7", " ", "\n", "é", "🙂", "e\u0301", "ab ", "<|im_star", "boats 1729\n")
"""What long texts without a special token repeat."""


def encoded_whole(vocabulary, text):
    """A text's ids as the library has them, all at once."""
    return packed(vocabulary._tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=5, deadline=None)
@given(
    parts=st.lists(
        st.tuples(st.sampled_from(RUNS) | TEXTS.filter(len), st.integers(1, 60_000)),
        min_size=1,
        max_size=4,
    )
)
def test_a_long_text_has_its_tokens_or_none(name, parts):
    vocabulary = VOCABULARIES[name]
    text = "".join((part * WINDOW)[:size] for part, size in parts) + "the keeper " * (WINDOW // 8)
    with suppress(TextFallback):
        assert vocabulary.encode([text])[text] == encoded_whole(vocabulary, text)


@pytest.mark.parametrize("name", ["byte level", "byte level, prefix", "split, bytes, start"])
@pytest.mark.parametrize("run", RUNS)
def test_long_runs_have_tokens_by_tokenizers_of_bytes(name, run):
    vocabulary, text = VOCABULARIES[name], run * (3 * WINDOW // len(run))
    assert vocabulary.encode([text])[text] == encoded_whole(vocabulary, text)


@pytest.mark.parametrize("size", [WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW])
def test_texts_about_as_long_as_a_window(size):
    vocabulary, text = VOCABULARIES["byte level"], ("the keeper " * WINDOW)[:size]
    assert vocabulary.encode([text, "x"])[text] == encoded_whole(vocabulary, text)


def test_a_text_that_is_one_token_whatever_its_length_stays_text():
    word = "a" * (2 * WINDOW)  # BERT's kind has no token for a word without end
    with pytest.raises(TextFallback, match="depend on all"):
        VOCABULARIES["lower case"].encode([word])


def test_a_text_is_cut_before_special_tokens():
    vocabulary = VOCABULARIES["byte level"]
    assert vocabulary.cuts == ("<s>", "<unk>", "<|im_end|>", "<|im_start|>")
    assert vocabulary.pieces("<s>a<|im_end|>\n<|im_end|>b") == [
        "<s>a",
        "<|im_end|>\n",
        "<|im_end|>b",
    ]
    assert vocabulary.pieces("a<s>") == ["a", "<s>"]
    assert vocabulary.pieces("") == [""]


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("takes blanks", {"<left>", "<right>"}),
        ("single word", {"<word>"}),
        # What begins further left wins, then the longest: the others are not always matched.
        ("overlapping", {"<|im_start|>system", "<|im_start|>", "<|im_end|>"}),
        ("normalized", {"keeper"}),
    ],
)
def test_some_tokens_are_no_place_to_cut(name, refused):
    assert set(VOCABULARIES[name].cuts) & refused == set()
    assert {"<s>", "<unk>"} <= set(VOCABULARIES[name].cuts)


def test_cutting_at_a_refused_one_would_change_tokens():
    vocabulary = VOCABULARIES["takes blanks"]
    whole, parts = "boats  <left>", ["boats  ", "<left>"]
    assert joined(vocabulary, parts) != vocabulary.encode([whole])[whole]


def test_no_cuts_where_special_tokens_are_text():
    tokenizer = byte_level()
    tokenizer.encode_special_tokens = True
    vocabulary = Vocabulary(tokenizer, SPECIAL)
    assert vocabulary.pieces("a<s>b") == ["a<s>b"]


def test_limits_in_the_file_do_not_count():
    tokenizer = byte_level()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    vocabulary = Vocabulary(tokenizer, SPECIAL)
    assert vocabulary.encode(["the keeper of the lighthouse", "the"]) == VOCABULARIES[
        "byte level"
    ].encode(["the keeper of the lighthouse", "the"])
