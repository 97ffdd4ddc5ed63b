"""What others may write where a number belongs: in bodies and answers, in headers, on pages.

Each value has a name, for the identifiers of tests, and is the text that travels: of most no Python
object would be written so.
"""

from contextlib import contextmanager

from hypothesis import strategies as st

NUMBERS = {
    "zero": "0",
    "minus zero": "-0",
    "one": "1",
    "negative": "-1",
    "16 million and one": str(2**24 + 1),
    "2^31": str(2**31),
    "2^32": str(2**32),
    "2^53 + 1": str(2**53 + 1),
    "2^63": str(2**63),
    "-2^63 - 1": str(-(2**63) - 1),
    "2^64": str(2**64),
    "2^70": str(2**70),
    "-2^70": str(-(2**70)),
    "10^400": "1" + "0" * 400,
    "-10^400": "-1" + "0" * 400,
    "5,000 digits": "7" * 5000,
    "fraction": "5.5",
    "negative fraction": "-0.5",
    "tiny": "1e-300",
    "whole fraction": "1000.0",
    "negative whole fraction": "-1.0",
    "exponent": "1e3",
    "1e15": "1e15",
    "1e20": "1e20",
    "1e300": "1e300",
    "beyond floats": "1e400",
    "beyond floats, negative": "-1E+400",
    "exponent of 400 digits": "1e" + "9" * 400,
    "fraction of 400 digits": "0." + "3" * 400,
}
"""Numbers in every format."""

NO_NUMBERS = {
    "null": "null",
    "true": "true",
    "false": "false",
    "empty text": '""',
    "space": '" "',
    "number as text": '"5"',
    "negative as text": '"-1"',
    "fraction as text": '"5.0"',
    "exponent as text": '"1e3"',
    "10^400 as text": '"1' + "0" * 400 + '"',
    "5,000 digits as text": '"' + "7" * 5000 + '"',
    "NaN as text": '"NaN"',
    "Infinity as text": '"-Infinity"',
    "word": '"x"',
    "flag as text": '"true"',
    "flag as a word": '"on"',
    "letters beyond ASCII": '"\u0665"',
    "NUL": r'"\u0000"',
    "list": "[]",
    "list of a number": "[5]",
    "object": "{}",
    "object of a number": '{"a":5}',
    "nested": "[" * 50 + "]" * 50,
}
"""Values of JSON that are none."""

JSON = {**NUMBERS, **NO_NUMBERS}

NO_JSON = {
    "NaN": "NaN",
    "Infinity": "Infinity",
    "-Infinity": "-Infinity",
    "plus": "+1",
    "leading zero": "01",
    "no digit before the point": ".5",
    "no digit behind the point": "5.",
    "hexadecimal": "0x10",
    "underscore": "1_000",
    "lone surrogate": r'"\ud800"',
    "nothing": "",
}
"""What is not JSON, though some parsers take it."""

PLAIN = {
    **NUMBERS,
    **{name: text for name, text in NO_JSON.items() if name != "lone surrogate"},
    "nan": "nan",
    "inf": "inf",
    "+Inf": "+Inf",
    "word": "x",
    "true": "true",
    "null": "null",
    "spaces": " 5 ",
    "space": " ",
    "comma": "1,5",
    "two": "5 6",
    "digits beyond ASCII": "\u0665\u0660",
    "superscript": "\u00b2",
    "minus beyond ASCII": "\u22125",
    "list": "[]",
    "object": "{}",
    "quoted": '"5"',
}
"""Texts of a header, or of a sample on a page."""

json_texts = st.sampled_from(sorted(JSON.values()))
plain_texts = st.sampled_from(sorted(PLAIN.values()))


@contextmanager
def case(*which):
    """Have what fails within name its case; a test for each would take longer than they do."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"with {', '.join(map(repr, which))}")
        raise
