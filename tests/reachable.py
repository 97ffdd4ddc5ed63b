"""What a value keeps alive."""

from gc import get_referents
from types import FunctionType, ModuleType


def referents(holder):
    """Return the values that a value refers to."""
    # CPython does not visit the keys of a dictionary whose keys are all text.
    keys = holder if isinstance(holder, dict) else ()
    # Nor what is acyclic, which the collector does not look at.
    names = getattr(type(holder), "__mypyc_attrs__", ())
    fields = [getattr(holder, name, None) for name in names]
    return [
        each
        for each in (*get_referents(holder), *keys, *fields)
        if not isinstance(each, type | FunctionType | ModuleType)
    ]


def reachable(start):
    """Go through all values that a value keeps alive, but for code."""
    seen, left = {id(start): start}, [start]
    while left:
        for each in referents(left.pop()):
            if id(each) not in seen:
                seen[id(each)] = each
                left.append(each)
                yield each


def longest_text(start):
    """Return the length of the longest string of any kind that a value keeps alive."""
    kinds = bytes | bytearray | str | memoryview
    return max(len(each) for each in reachable(start) if isinstance(each, kinds))
