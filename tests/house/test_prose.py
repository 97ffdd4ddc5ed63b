"""Messages, docstrings and comments are in plain English: phrases that nobody would write."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FORBIDDEN = {
    "is no X: write `is not a X`": (
        r"(?<!there)(?<!where)(?<!that) (?:is|are) no"
        r" (?!longer|more|less|better|worse|such|other|different)(?:\w)"
    ),
    "says not: write `does not say`": r"\b(?:says|tells|takes|knows|needs) not\b",
    "less than nothing: write `negative`": r"less than nothing",
    "is there twice: write `is listed twice`": r"there twice",
    "is none of: write `is not one of`": r"` is none of ",
    "what is none: write `what is not one`": r"\b(?:what|which|that|it) is none(?! of)\b",
}
IN_THE_PRODUCT = {
    "hear: write `receive`": r"\bhear(?:s|ing)?\b",
    "whoever: name it": r"\bwhoever\b",
    "so many: write `this many`": r"\bso (?:many|much)\b",
}
APART = {"_pb", "texts"}  # generated code, and prompts of the demo


def written(path):
    """Every string and comment of a module, as `(line, text)`, on one line each."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, " ".join(node.value.split())
    for number, line in enumerate(source.split("\n"), 1):
        if "#" in line:  # in a string, too, which is looked at anyway
            yield number, line[line.index("#") :]


@pytest.mark.parametrize("package", ["epp", "model-server/model_server", "bench"])
def test_nothing_is_said_in_words_of_our_own(package):
    rules = FORBIDDEN | (IN_THE_PRODUCT if package == "epp" else {})
    any_rule = re.compile("|".join(rules.values()), re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{line}: {advice}: {text[:90]}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if not APART & set(path.parts)
        for line, text in written(path)
        if any_rule.search(text)
        for advice, pattern in rules.items()
        if re.search(pattern, text, re.IGNORECASE)
    ]
    assert found == []
