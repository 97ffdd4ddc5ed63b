import json
import sys
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from epp.printable import printable, printable_lines

OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Categories of Unicode: controls (C0, DEL, C1), formats (bidi), surrogates, ends of lines."""


def test_no_code_point_that_is_obeyed_is_left():
    for first in range(0, sys.maxunicode + 1, 256):
        some = [*map(chr, range(first, first + 256))]
        stay = "".join(each for each in some if each.isprintable())
        assert printable(stay) == stay
        assert OBEYED.isdisjoint(map(unicodedata.category, stay))
        shown = printable("".join(each for each in some if not each.isprintable()))
        assert shown.isascii()
        assert shown.isprintable()


def test_letters_of_all_scripts_stay():
    text = "llama-3.1 Ünïcödé 模型 модель 🦙 \\u001b"
    assert printable(text) is text


@given(st.text(st.characters(exclude_categories=())))
def test_json_stays_json_and_says_the_same(text):
    surrogates = json.loads(json.dumps(text))  # JSON joins halves that stand side by side
    shown = printable(json.dumps(text, ensure_ascii=False))
    assert shown.isprintable()
    assert json.loads(shown) in {text, surrogates}


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=()))))
def test_lines_stay_as_many(lines):
    shown = printable_lines("\n".join(lines)).split("\n")
    assert shown == [printable(line) for line in lines or [""]]
