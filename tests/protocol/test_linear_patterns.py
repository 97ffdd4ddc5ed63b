"""Every regular expression of `epp.protocol`, in time linear in any text, as it is used there."""

import ast
import importlib
import pkgutil
import re
from collections import defaultdict, deque
from functools import partial
from itertools import product
from typing import Any

import pytest

import epp.protocol
from epp import compiled
from tests.native.built import ROOT, source_of
from tests.protocol.growth import repeated, too_steep

USES = {
    "match": lambda pattern, text: pattern.match(text),
    "fullmatch": lambda pattern, text: pattern.fullmatch(text),
    "search": lambda pattern, text: pattern.search(text),
    "finditer": lambda pattern, text: deque(pattern.finditer(text), maxlen=0),
    "findall": lambda pattern, text: pattern.findall(text),
    "split": lambda pattern, text: pattern.split(text),
    "sub": lambda pattern, text: pattern.sub(text[:0], text),
}
HEADS = (b"", b"a", b'"', b'{"a":"', b'a{a="', b"a in (", b'"usage"', b"!a=")
UNITS = (
    *(b'"', b"\\", b'\\"', b"\\\\", b"{", b"}", b"[", b"]", b"(", b")", b",", b":", b"="),
    *(
        b"!",
        b"`",
        b" ",
        b"\n",
        b"\r",
        b"a",
        b"0",
        b"-",
        b".",
        b"a ",
        b"a,",
        b"a=",
        b'a="',
        b'a="b",',
    ),
    *(b'""', b'"a":', b'{"a":', b'"usage"', b'"usage" :', b'"model":"', b"\\u006d", b" - at `$"),
    b"sample:1/",
)
TAILS = (b"", b"!", b"}\n")
LONG = 1 << 13
"""Its square are 67 million steps of a pattern: a millisecond has a few hundred thousand."""


def modules():
    """Every module of the package; from its source if Cython compiles it, which hides patterns."""
    for found in pkgutil.walk_packages(epp.protocol.__path__, "epp.protocol."):
        by_cython = compiled.MODULES.get(found.name) == "cython"
        yield found.name, (source_of if by_cython else importlib.import_module)(found.name)


def text_of(name):
    """Return the source of a module, or of a package."""
    path = ROOT / compiled.path_of(name)
    return (path if path.exists() else path.with_suffix("") / "__init__.py").read_text("utf-8")


def patterns():
    """Every pattern that a module has, and the methods that any module calls on it."""
    uses = defaultdict(set)
    names: dict[re.Pattern[Any], str] = {}
    for module_name, module in modules():
        has = {name: each for name, each in vars(module).items() if isinstance(each, re.Pattern)}
        for name, each in has.items():
            names.setdefault(each, f"{module_name}.{name}")
        for node in ast.walk(ast.parse(text_of(module_name))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id in has:
                    uses[has[node.value.id]].add(node.attr)
                assert node.value.id != "re" or node.attr in {"compile", "Pattern", "Match"} | FLAGS
    return [(name, each, uses[each] & USES.keys() or USES.keys()) for each, name in names.items()]


def search(pattern, use, data):
    """Use a pattern, of bytes or of text."""
    USES[use](pattern, data.decode("latin-1") if isinstance(pattern.pattern, str) else data)


FLAGS = {flag.name for flag in re.RegexFlag}
PATTERNS = patterns()


def test_patterns_are_found():
    names = {name for name, _, _ in PATTERNS}
    assert any(name.endswith(".TOKEN") for name in names)
    assert len(names) == len(PATTERNS) > 15


@pytest.mark.parametrize(("name", "pattern", "uses"), PATTERNS, ids=[each[0] for each in PATTERNS])
def test_a_pattern_is_linear(name, pattern, uses):
    for use, head, unit, tail in product(sorted(uses), HEADS, UNITS, TAILS):
        made = repeated(head, unit, tail)
        steep = too_steep(partial(search, pattern, use), made, LONG)
        assert not steep, (name, use, head, unit, tail, steep)


def test_what_is_not_linear_is_seen():
    open_text = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
    made = repeated(b'"', b'\\"', b"")
    assert too_steep(lambda data: open_text.search(data[: len(data) // 8]), made)
