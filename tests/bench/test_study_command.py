"""The command line of a study: its table, its options, and traces that are not there."""

import sys
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from bench.study.__main__ import _place
from bench.study.command import answer
from bench.study.floor import cases as floor_cases
from bench.study.grid import Grid, shared_prefixes, tasks
from epp.protocol.extproc.observation import AUTO, Observation


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


def test_what_was_played_with_other_defaults_is_not_taken_for_it():
    task = next(tasks(shared_prefixes()[:1], Grid(pods=(8,), policies=("random",))))
    assert task.plan.observation == AUTO
    watched = replace(task, plan=replace(task.plan, observation=Observation()))
    assert len({_place(each) for each in (task, watched)}) == 2
    without = blake2b(msgspec.json.encode(task), digest_size=12).hexdigest()
    assert _place(task).stem != without
