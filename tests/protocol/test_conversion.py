"""What people read of a document that is of another form."""

from enum import Enum
from typing import Annotated, Literal

import msgspec
import pytest

from epp.errors import ConfigError
from epp.protocol.conversion import convert


class Tier(Enum):
    GOLD = "gold"
    BEST_EFFORT = "best-effort"


class Part(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    name: str
    share: float = 0.0
    app_protocol: Literal["", "http", "https"] = ""
    tiers: dict[str, list[Tier]] = {}


class Whole(msgspec.Struct, forbid_unknown_fields=True):
    parts: list[Part] = []
    count: Annotated[int, msgspec.Meta(ge=1, lt=10)] = 1
    wait: Annotated[float, msgspec.Meta(gt=0.5)] | None = None
    port: int | str = 0
    on: bool = False
    pair: Annotated[list[int], msgspec.Meta(min_length=2)] = []
    code: Annotated[str, msgspec.Meta(max_length=3)] = ""
    scheme: Annotated[Literal["http", "https"] | None, "an annotation"] = None
    size: Literal[16, 32] = 16
    weights: dict[Literal["gold", "silver"], int] = {}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "a mapping is expected, not a list"),
        ("words", "a mapping is expected, not text"),
        ({"parts": {"name": "x"}}, "parts: a list is expected, not a mapping"),
        ({"parts": [None]}, "parts[0]: a mapping is expected, but the value is empty"),
        ({"parts": [{}]}, "parts[0]: missing required field `name`"),
        (
            {"parts": [{"nmae": "x"}]},
            "parts[0]: unknown field `nmae`; it takes name, share, appProtocol, tiers",
        ),
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
        ({"scheme": "HTTPS"}, "scheme: `HTTPS` is not one of http, https"),
        ({"scheme": "it's"}, "scheme: `it's` is not one of http, https"),
        ({"scheme": "x" * 100}, f"scheme: `{'x' * 64}...` is not one of http, https"),
        ({"size": 64}, "size: `64` is not one of 16, 32"),
        (
            {"parts": [{"name": "x"}, {"name": "y", "appProtocol": "h2"}]},
            "parts[1].appProtocol: `h2` is not one of http, https",
        ),
        (
            {"parts": [{"name": "x", "tiers": {"a.b": ["gold", "tin"]}}]},
            "parts[0].tiers[...][1]: `tin` is not one of gold, best-effort",
        ),
        ({"weights": {"tin": 1}}, "weights: `tin` is not one of gold, silver"),
        ({"code": "four"}, "code: text of at most 3 characters is expected"),
    ],
)
def test_another_form_is_said_in_words(document, said):
    with pytest.raises(ConfigError) as refused:
        convert(document, Whole)
    assert str(refused.value) == said


def test_of_what_takes_no_fields_that_is_said():
    class Bare(msgspec.Struct, forbid_unknown_fields=True):
        pass

    with pytest.raises(ConfigError) as caught:
        convert({"x": 1}, Bare)
    assert str(caught.value) == "unknown field `x`; it takes none"
