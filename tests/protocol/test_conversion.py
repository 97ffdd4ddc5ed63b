"""What people read of a document that is of another form."""

from typing import Annotated

import msgspec
import pytest

from epp.errors import ConfigError
from epp.protocol.conversion import convert


class Part(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    share: float = 0.0


class Whole(msgspec.Struct, forbid_unknown_fields=True):
    parts: list[Part] = []
    count: Annotated[int, msgspec.Meta(ge=1, lt=10)] = 1
    wait: Annotated[float, msgspec.Meta(gt=0.5)] | None = None
    port: int | str = 0
    on: bool = False
    pair: Annotated[list[int], msgspec.Meta(min_length=2)] = []
    code: Annotated[str, msgspec.Meta(max_length=3)] = ""


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "a mapping is expected, not a list"),
        ("words", "a mapping is expected, not text"),
        ({"parts": {"name": "x"}}, "parts: a list is expected, not a mapping"),
        ({"parts": [None]}, "parts[0]: a mapping is expected, but the value is empty"),
        ({"parts": [{}]}, "parts[0]: missing required field `name`"),
        ({"parts": [{"nmae": "x"}]}, "parts[0]: unknown field `nmae`"),
        (
            {"parts": [{"name": 7}]},
            "parts[0].name: text is expected, not a whole number; put it in quotes",
        ),
        (
            {"parts": [{"name": True}]},
            "parts[0].name: text is expected, not `true` or `false`; put it in quotes",
        ),
        (
            {"parts": [{"name": "x", "share": "all"}]},
            "parts[0].share: a number is expected, not text",
        ),
        ({"count": 1.5}, "count: a whole number is expected, not a fraction"),
        ({"count": 0}, "count: a whole number of at least 1 is expected"),
        ({"count": 10}, "count: a whole number of at most 9 is expected"),
        ({"wait": "x"}, "wait: a number is expected, not text"),
        ({"wait": 0.5}, "wait: a number above 0.5 is expected"),
        ({"port": []}, "port: a whole number or text is expected, not a list"),
        ({"on": "yes"}, "on: `true` or `false` is expected, not text"),
        ({"pair": [1]}, "pair: a list of at least 2 items is expected"),
        ({"wait": -1}, "wait: a number above 0.5 is expected"),
        ({"code": "four"}, "code: text of at most 3 characters is expected"),
    ],
)
def test_another_form_is_said_in_words(document, said):
    with pytest.raises(ConfigError) as refused:
        convert(document, Whole)
    assert str(refused.value) == said
