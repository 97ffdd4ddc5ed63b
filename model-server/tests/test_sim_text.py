"""Tokenizer, block hashes, template and generated text."""

from array import array
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_server.simulator.hashes import BlockHasher, root_hash
from model_server.simulator.prose import Writer
from model_server.simulator.template import END, Turn, render
from model_server.simulator.tokenizer import Tokenizer, pieces, special

PROSE = (
    "The library keeps its catalogue in a long room on the second floor, where visitors may "
    "look for a title, ask an attendant, or wait until somebody returns the book they want. "
    "Members who borrow more than three volumes at once are requested to say how long they "
    "intend to keep them, because other readers often ask for the same works in winter."
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("understanding it", ["unders", "tandin", "g", " it"]),
        ("in 12345 days", ["in", " 123", "45", " days"]),
        ("a  b\n\n c", ["a", "  ", "b", "\n\n", " c"]),
        ("foo_bar(x)...", ["foo", "_", "bar", "(", "x", ")..", "."]),
        ("\u6771\u4eac abc", ["\u6771", "\u4eac", " abc"]),
        ("", []),
    ],
)
def test_pieces(text, expected):
    assert pieces(text) == expected


def test_prose_has_about_four_bytes_a_token():
    per_token = len(PROSE.encode()) / len(Tokenizer().encode(PROSE))
    assert 3.9 < per_token < 4.6


@given(st.text(), st.data())
def test_a_text_cut_between_tokens_tokenizes_to_the_tokens_before_the_cut(text, data):
    tokenizer = Tokenizer()
    parts = pieces(text)
    assert "".join(parts) == text
    cut = data.draw(st.integers(0, len(parts)))
    whole = tokenizer.encode(text)
    assert tokenizer.encode("".join(parts[:cut])) == whole[:cut]
    assert len(whole) == len(parts)


@given(st.lists(st.text(min_size=1, max_size=2000).filter(lambda t: "\n" not in t), max_size=6))
def test_remembered_segments_change_nothing(lines):
    text = ("\n" + "word " * 300).join(lines)
    plain = [Tokenizer().token(piece) for piece in pieces(text)]
    remembering = Tokenizer(memo_chars=3000)
    assert remembering.encode(text).tolist() == plain
    assert remembering.encode(text + "\nmore").tolist()[: len(plain)] == plain


def test_lone_surrogates_are_tokens_too():
    assert len(Tokenizer().encode("a\ud800b")) == 3


def test_control_tokens_differ_and_are_no_text():
    names = ["end", "system", "developer", "user", "assistant", "tool"]
    assert len({special(name) for name in names}) == len(names)
    assert special("narrator") == special("narrator") < 256 <= min(Tokenizer().encode("user"))


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_an_answer_is_found_again_in_the_next_turn(cut):
    tokenizer = Tokenizer()
    question = [Turn("system", "Be brief."), Turn("user", "Why?")]
    answer = list(islice(Writer(tokenizer, 100).write(b"s", endless=True), cut))
    before = render(tokenizer, question, generate=True)
    text = "".join(token.text for token in answer)
    after = render(
        tokenizer, [*question, Turn("assistant", text), Turn("user", "And?")], generate=True
    )
    expected = before.tolist() + [token.id for token in answer] + [END]
    assert after.tolist()[: len(expected)] == expected


def test_answers_are_reproducible_and_end_by_themselves():
    def write(seed, **options):
        return list(islice(Writer(Tokenizer(), 40).write(seed, **options), 500))

    first = write(b"a", endless=False)
    assert first == write(b"a", endless=False)
    assert first != write(b"b", endless=False)
    assert first[-1].last
    assert 20 <= len(first) <= 60
    assert len(write(b"a", endless=True)) == 500
    assert len(write(b"a", endless=False, at_least=300)) == 301


@given(st.lists(st.integers(0, 2**32 - 1), max_size=300), st.integers(0, 300))
def test_a_chain_extended_in_two_goes_is_the_same(ids, cut):
    tokens = array("I", ids)
    hasher = BlockHasher(2, memo_spans=1)
    root = root_hash(None, None)
    at_once: list = []
    hasher.extend(at_once, root, tokens)
    in_two: list = []
    hasher.extend(in_two, root, tokens[:cut])
    hasher.extend(in_two, root, tokens)
    assert at_once == in_two
    assert len(at_once) == len(ids) // 2


def test_a_hash_depends_on_everything_before_it():
    hasher = BlockHasher(2)
    chains = []
    for ids, root in [
        ([1, 2, 3, 4], root_hash(None, None)),
        ([9, 2, 3, 4], root_hash(None, None)),
        ([1, 2, 3, 4], root_hash("a", None)),
        ([1, 2, 3, 4], root_hash(None, "a")),
    ]:
        chain: list = []
        hasher.extend(chain, root, array("I", ids))
        chains.append(chain[1])
    assert len(set(chains)) == 4
