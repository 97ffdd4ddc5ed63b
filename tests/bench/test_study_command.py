"""The command line of a study: its table, its options, and traces that are not there."""

import sys

from bench.study.command import answer
from bench.study.floor import cases as floor_cases


def asked(monkeypatch, *arguments, cases, table):
    monkeypatch.setattr(sys, "argv", ["study", *arguments])
    return answer("study", "Says something.", 3, cases, table)


def test_the_table_of_the_cases_is_printed(monkeypatch, capsys, tmp_path):
    seen = []

    def cases(traces, seeds):
        seen.append((traces, seeds))
        return []

    status = asked(
        monkeypatch,
        *("--traces", str(tmp_path), "--seeds", "2", "--jobs", "1"),
        cases=cases,
        table=lambda wanted, _: ["| a |", f"| {len(wanted)} |"],
    )
    assert (status, seen) == (0, [(tmp_path, 2)])
    assert capsys.readouterr().out == "| a |\n| 0 |\n"


def test_traces_that_are_not_there_are_an_error(monkeypatch, capsys, tmp_path):
    missing = str(tmp_path / "nowhere")
    status = asked(
        monkeypatch, "--traces", missing, cases=floor_cases, table=lambda wanted, _: wanted
    )
    said = capsys.readouterr()
    assert (status, said.out) == (2, "")
    assert said.err.startswith("study: ")
    assert missing in said.err
