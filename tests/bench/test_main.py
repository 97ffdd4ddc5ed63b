"""The command line of the benchmarks: what is refused before anything is measured, and Ctrl-C."""

import asyncio
import re
import signal
import subprocess
import sys

import pytest

from bench import docs, programs
from bench.__main__ import BENCHMARKS, _awaited, _command, _parser, main
from bench.child import MeasurementFailed
from docs.site.pages import ROOT
from epp import compiled


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["trace", "--write-docs"], "--write-docs: no page has a place marked for trace"),
        (["hold", "--trace", "nowhere"], "--trace nowhere: there is no such file or folder"),
        (["all", "--trace", "nowhere"], "--trace nowhere: there is no such file or folder"),
        (["adversary", "--records", "nowhere/x"], "--records nowhere/x: there is no such folder"),
    ],
)
def test_what_cannot_be_used_is_said_before_anything_is_measured(argv, said, capsys):
    assert main(argv) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"bench: {said}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        ("replay --trace a/conversation.jsonl", "replay --trace conversation.jsonl"),
        ("pick --trace a/conversation.jsonl --quick", "pick --quick"),
        ("published --only idle --only streams", "published --only idle --only streams"),
        (
            "adversary --only flood-* --transport both",
            "adversary --only 'flood-*' --transport both",
        ),
    ],
)
def test_the_command_above_a_table_gives_it_again(argv, command):
    asked = _parser().parse_args(argv.split())
    assert _command(asked.name, asked) == f"python -m bench {command}"


def test_a_result_says_on_what_and_how_it_was_taken(capsys):
    assert main(["trace"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("python -m bench trace on ")
    assert re.search(r"\d+ cores, \d+ GiB, Linux .*, Python .*, load [\d.]+ at start", said)
    missing = [name for name in compiled.MODULES if compiled.FAULT or compiled.fault(name)]
    told = re.search(r"at start(?:, (\d+) of \d+ modules not compiled)?\.$", said)
    assert told is not None
    assert int(told[1] or 0) == len(missing)


@pytest.mark.parametrize("more", [[], ["--observe", "first"]])
def test_accuracy_knows_no_blocks_by_a_tokenizer_that_it_does_not_have(more, capsys):
    assert main(["accuracy", "--engine", "simulator", "--identity", "tokens", *more]) == 1
    said = "bench: --identity tokens: blocks of simulator can be known by text\n"
    assert capsys.readouterr().err == said


def test_every_table_of_the_pages_is_of_a_benchmark():
    pages = "".join(page.read_text() for page in docs.PAGES)
    names = re.findall(r"<!-- ([\w-]+): begin -->", pages)
    assert len(names) == len(set(names))
    parts = {"accuracy-traces", "accuracy-observe", "accuracy-observe-traces"}
    assert set(names) - parts <= BENCHMARKS.keys()
    assert None not in map(docs.page_of, names)
    assert docs.page_of("nothing") is None


async def test_what_one_of_many_tasks_met_is_said_as_it_is():
    async def fail(error):
        raise error

    async def work():
        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
            inner.create_task(fail(MeasurementFailed("nobody answered")))
            outer.create_task(asyncio.sleep(60))
        raise AssertionError

    with pytest.raises(MeasurementFailed, match="nobody answered"):
        await _awaited(work)


def test_ctrl_c_ends_a_benchmark_that_awaits_nothing():
    command = [sys.executable, "-m", "bench", "pick", "--quick"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        begun = child.stderr.readline()
        child.send_signal(signal.SIGINT)
        said = child.stderr.read()
    assert "endpoints that are asked" in begun
    assert (child.returncode, said) == (130, "")


def test_a_program_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(programs, "SMG", ROOT / "no" / "smg")
    monkeypatch.setattr(programs, "LLM_D_ROUTER", ROOT / "README.md")
    assert {name: str(place) for name, place in programs.missing().items()} == {"smg": "no/smg"}
