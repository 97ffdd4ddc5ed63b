"""Label selectors as text, the form in which Kubernetes' lists and commands take them."""

import re

from epp.protocol.kube.objects import LabelSelector, Requirement

_KEY = r"([A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?)"
_VALUE = r"([A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?|)"
_EQUAL = re.compile(rf"{_KEY}\s*(==|=|!=)\s*{_VALUE}")
_SET = re.compile(rf"{_KEY}\s+(in|notin)\s*\(([^()]*)\)")
_THERE = re.compile(rf"(!?)\s*{_KEY}")
_PART = re.compile(r"(?:^|,)((?:[^,(]++|\([^)]*+\)?+)*+)")  # no comma ends one within parentheses
_LONGEST = 4096


def parse_label_selector(text: str) -> LabelSelector:
    """Return the selector; an empty one selects nothing, as `LabelSelector` says.

    `a=b`, `a==b`, `a!=b`, `a in (b,c)`, `a notin (b,c)`, `a` and `!a`, with commas between them.
    Raises `ValueError`.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"a selector has at most {_LONGEST} characters")
    parts = [part.strip() for part in _PART.findall(text)] if text.strip() else []
    return LabelSelector(match_expressions=tuple(_requirement(part) for part in parts))


def _requirement(part: str) -> Requirement:
    if found := _EQUAL.fullmatch(part):
        operator = "NotIn" if found[2] == "!=" else "In"
        return Requirement(found[1], operator, (found[3],))
    if found := _SET.fullmatch(part):
        values = tuple(value.strip() for value in found[3].split(","))
        return Requirement(found[1], "In" if found[2] == "in" else "NotIn", values)
    if found := _THERE.fullmatch(part):
        return Requirement(found[2], "DoesNotExist" if found[1] else "Exists")
    raise ValueError(f"`{part}` is not a requirement of a label selector, such as `app=vllm`")
