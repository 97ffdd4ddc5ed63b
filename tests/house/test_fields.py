"""Classes of many fields say of each field what it is."""

import ast
from functools import cache
from pathlib import Path

import pytest

import epp
from epp.compiled import MODULES

ROOT = Path(epp.__file__).parent
FEW = 8
AS_A_WHOLE = {
    "_StoredArray",  # the fields of `_Stored`
}


@cache
def classes() -> list[tuple[Path, ast.ClassDef]]:
    return [
        (path, node)
        for path in sorted(ROOT.rglob("*.py"))
        if "_pb" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]


def undescribed(node: ast.ClassDef) -> list[str]:
    """Return the fields without a line below them, and without an annotation that describes them.

    Empty for a class of few fields, or one whose parameters all have the one `effect`.
    """
    fields = []
    for at, each in enumerate(node.body):
        if not isinstance(each, ast.AnnAssign):
            continue
        kind = ast.unparse(each.annotation)
        if kind == "ClassVar[Effect]":
            return []
        below = node.body[at + 1] if at + 1 < len(node.body) else None
        described = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        fields.append((ast.unparse(each.target), described or kind.startswith("Annotated[")))
    return [name for name, described in fields if not described] if len(fields) > FEW else []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("\n".join(f"    a{n}: int" for n in range(8)), 0),
        ("\n".join(f"    a{n}: int" for n in range(9)), 9),
        ("\n".join(f"    a{n}: int\n    '''One.'''" for n in range(9)), 0),
    ],
    ids=["few", "many", "described"],
)
def test_what_counts_as_described(text, found):
    (node,) = ast.parse(f"class A:\n{text}").body
    assert isinstance(node, ast.ClassDef)
    assert len(undescribed(node)) == found


def test_each_field_of_a_class_of_many_is_described():
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": fields
        for path, node in classes()
        if (fields := undescribed(node)) and node.name not in AS_A_WHOLE
    }
    assert not found


def test_what_mypyc_compiles_names_no_slots():
    """mypyc lays out fields by itself; without it, `fields_of` reads a value's `__dict__`."""
    paths = {
        ROOT.parent.joinpath(*name.split(".")).with_suffix(".py")
        for name, compiler in MODULES.items()
        if compiler == "mypyc"
    }
    found = [node for path, node in classes() if path in paths]
    assert len(found) > 100
    assert [node.name for node in found if assigned("__slots__", node)] == []


def assigned(name: str, node: ast.ClassDef) -> bool:
    return any(
        isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store)
        for each in ast.walk(node)
    )
