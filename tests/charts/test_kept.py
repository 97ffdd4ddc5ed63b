import pytest

from tests import prometheus
from tests.charts.kept import Kept


@pytest.fixture
def calls():
    return []


@pytest.fixture
def look(calls, tmp_path):
    """As a process that has just started looks at the lines of a chart, with what was kept."""

    def lines(name, count):
        calls.append(count)
        return (tmp_path / "charts" / name / "values.yaml").read_text().split()[:count]

    def looked(count=1):
        return Kept(tmp_path / "charts", tmp_path / "kept")(lines)("a", count)

    (tmp_path / "charts" / "a" / "files").mkdir(parents=True)
    (tmp_path / "charts" / "a" / "values.yaml").write_text("x y")
    return looked


def test_the_same_is_made_once(look, calls):
    assert [look(), look(), look(2), look(2)] == [["x"], ["x"], ["x", "y"], ["x", "y"]]
    assert calls == [1, 2]


@pytest.mark.parametrize(
    "changed", ["values.yaml", "files/new.yaml", "values.schema.json", ".helmignore"]
)
def test_of_another_chart_it_is_made_again(changed, look, calls, tmp_path):
    assert look() == ["x"]
    (tmp_path / "charts" / "a" / changed).write_text("z")
    assert look() == ["z" if changed == "values.yaml" else "x"]
    assert calls == [1, 1]
    assert len(list((tmp_path / "kept" / "a").iterdir())) == 1


def test_what_a_chart_is_that_was_edited_meanwhile_is_not_kept(tmp_path):
    (tmp_path / "charts" / "a").mkdir(parents=True)
    values = tmp_path / "charts" / "a" / "values.yaml"
    values.write_text("x")

    def edited(name):
        values.write_text("y")
        return [name, values.read_text()]

    kept = Kept(tmp_path / "charts", tmp_path / "kept")
    assert kept(edited)("a") == ["a", "y"]
    assert not (tmp_path / "kept").exists()


def test_each_caller_has_a_copy(tmp_path):
    kept = Kept(tmp_path / "charts", tmp_path / "kept")(lambda name: [name])
    kept("a").append("b")
    assert kept("a") == ["a"]


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Ask a promtool that takes rules with an `x`; give its words, and how often it was asked."""
    (tmp_path / "promtool").write_text("#!/bin/sh\necho >> ${0%/*}/log; grep x ${3%/*}/rules")
    (tmp_path / "promtool").chmod(0o700)
    monkeypatch.setattr(prometheus, "CACHE", tmp_path)
    monkeypatch.setattr(prometheus, "KEPT", tmp_path / "kept")
    (tmp_path / "files").mkdir()

    def ask(tests, rules, verb="test"):
        (tmp_path / "files" / "tests").write_text(tests)
        (tmp_path / "files" / "rules").write_text(rules)
        said = prometheus.promtool(verb, "rules", tmp_path / "files" / "tests")
        return said, len((tmp_path / "log").read_text())

    return ask


def test_promtool_is_asked_once_of_files_that_it_is_content_with(asked):
    assert [asked("a", "x"), asked("a", "x")] == [("", 1), ("", 1)]
    assert [asked("a", "xy"), asked("b", "x"), asked("a", "x", "check")] == [
        ("", 2),
        ("", 3),
        ("", 4),
    ]
    assert asked("a", "x") == ("", 4)


def test_promtool_that_has_been_changed_is_asked_again(asked, tmp_path):
    assert asked("a", "x") == ("", 1)
    (tmp_path / "promtool").write_text("#!/bin/sh\necho >> ${0%/*}/log; echo no; exit 1")
    assert [asked("a", "x"), asked("a", "x")] == [("no\n", 2), ("no\n", 3)]
