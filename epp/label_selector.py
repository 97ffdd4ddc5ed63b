"""Label selectors of Kubernetes, and as text: the form in which lists and commands take them."""

import re
from collections.abc import Mapping, Sequence

import msgspec

_KEY = r"([A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?)"
_VALUE = r"([A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?|)"
_EQUAL = rf"{_KEY}\s*(==|=|!=)\s*{_VALUE}"
_SET = rf"{_KEY}\s+(in|notin)\s*\(([^()]*)\)"
_THERE = rf"(!?)\s*{_KEY}"
_PART = r"(?:^|,)((?:[^,(]++|\([^)]*+\)?+)*+)"  # no comma ends one within parentheses
_LONGEST = 4096


class Requirement(msgspec.Struct, frozen=True):
    """An entry of `matchExpressions`; `operator` is In, NotIn, Exists or DoesNotExist."""

    key: str = ""
    operator: str = ""
    values: Sequence[str] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether labels fulfil it; an operator that Kubernetes has not is fulfilled by none."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                # Kubernetes API conventions: an object without the label fulfils it, too.
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case _:
                return False


class LabelSelector(msgspec.Struct, frozen=True, rename="camel"):
    """A LabelSelector of the Kubernetes API; one without any requirement selects nothing.

    (To the API an empty selector selects everything; objectives may have none.)
    """

    match_labels: dict[str, str] = {}
    match_expressions: tuple[Requirement, ...] = ()

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether labels fulfil all requirements."""
        wanted = self.match_labels.items() <= labels.items()
        holds = all(each.holds(labels) for each in self.match_expressions)
        return bool(self.match_labels or self.match_expressions) and wanted and holds


def parse_label_selector(text: str) -> LabelSelector:
    """Return the selector; an empty one selects nothing, as `LabelSelector` says.

    `a=b`, `a==b`, `a!=b`, `a in (b,c)`, `a notin (b,c)`, `a` and `!a`, with commas between them.
    Raises `ValueError`.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"a selector has at most {_LONGEST} characters")
    parts = [part.strip() for part in re.findall(_PART, text)] if text else []
    return LabelSelector(match_expressions=tuple(_requirement(part) for part in parts))


def _requirement(part: str) -> Requirement:
    if found := re.fullmatch(_EQUAL, part):
        operator = "NotIn" if found[2] == "!=" else "In"
        return Requirement(found[1], operator, (found[3],))
    if found := re.fullmatch(_SET, part):
        values = tuple(value.strip() for value in found[3].split(","))
        return Requirement(found[1], "In" if found[2] == "in" else "NotIn", values)
    if found := re.fullmatch(_THERE, part):
        return Requirement(found[2], "DoesNotExist" if found[1] else "Exists")
    raise ValueError(f"`{part}` is not a requirement of a label selector, such as `app=vllm`")
