"""What a value keeps alive."""

from gc import get_referents
from types import FunctionType, ModuleType


def reachable(start):
    """Go through all values that a value keeps alive, but for code."""
    seen, left = {id(start): start}, [start]
    while left:
        holder = left.pop()
        # CPython does not visit the keys of a dictionary whose keys are all text.
        keys = holder if isinstance(holder, dict) else ()
        for each in (*get_referents(holder), *keys):
            if id(each) not in seen and not isinstance(each, type | FunctionType | ModuleType):
                seen[id(each)] = each
                left.append(each)
                yield each


def longest_text(start):
    """Return the length of the longest string of any kind that a value keeps alive."""
    kinds = bytes | bytearray | str | memoryview
    return max(len(each) for each in reachable(start) if isinstance(each, kinds))
