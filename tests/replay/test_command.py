"""`epp replay` as it is typed: what it prints, writes and refuses."""

import gzip
import html
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from epp.cli.files import with_stdin
from epp.cli.main import main
from epp.errors import ConfigError
from epp.printable import printable
from tests.docs.pages import blocks
from tests.plugin_packages import install

SMALL = ("replay", "chat:sessions=6,rate=4", "--requests", "20", "--jobs", "1", "--pods", "2")


def printed(capsys, *argv):
    assert main([*SMALL, *argv]) == 0
    return capsys.readouterr()


def test_it_compares_policies_in_a_table(capsys):
    out = printed(capsys, "--policy", "least-ttft", "--policy", "random").out
    assert "20 requests" in out
    for heading in ("TTFT mean", "refused", "lost", "unfin.", "in SLO", "cached"):
        assert heading in out
    assert re.search(r"^least-ttft .*ms", out, re.MULTILINE)
    assert re.search(r"^random .*ms", out, re.MULTILINE)


def test_the_same_seed_gives_the_same_bytes(capsys):
    runs = [printed(capsys, "--seed", "3", "--seeds", "2", "--json").out for _ in range(2)]
    assert runs[0] == runs[1]
    found = json.loads(runs[0])
    assert found["seeds"] == [3, 4]
    assert found["baseline"] == "llm-d-router"
    assert [cell["pods"] for cell in found["cells"]] == [2]


MOONCAKE = b"".join(
    b'{"timestamp": %d, "input_length": 600, "output_length": 8, "hash_ids": [%d, 9]}\n'
    % (number * 500, number % 3)
    for number in range(20)
)


OF_TWO = ("replay", "--pods=2", "--policy=random", "--json")


def replayed(*words, given=b""):
    """Run `epp replay` with what comes on standard input."""
    return subprocess.run(
        [sys.executable, "-m", "epp", *OF_TWO, *words],
        input=given,
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize("jobs", [1, 2])
def test_traffic_may_come_from_standard_input(jobs, tmp_path, capsys):
    (tmp_path / "stdin").write_bytes(MOONCAKE)
    ran = replayed("-", f"--jobs={jobs}", "--seeds=2", given=gzip.compress(MOONCAKE))
    assert ran.returncode == 0, ran.stderr
    assert main([*OF_TWO, str(tmp_path / "stdin"), "--seeds=2", "--jobs=1"]) == 0
    expected = json.loads(capsys.readouterr().out) | {"command": ""}
    assert json.loads(ran.stdout) | {"command": ""} == expected


@pytest.mark.parametrize(
    ("words", "given", "said"),
    [
        (["-"], b"", b"epp: standard input is empty"),
        (["-", "--ray=auto"], MOONCAKE, b"--ray: other machines cannot read standard input"),
        (["chat", "--requests=2", "-"], b"\n", b"epp: standard input is empty"),
        (["-", "--strict"], b"%s{}" % MOONCAKE, b"epp: standard input:"),
    ],
)
def test_standard_input_that_cannot_be_replayed_is_refused(words, given, said):
    ran = replayed(*words, given=given)
    assert (ran.returncode, said in ran.stderr) == (2, True), ran.stderr


@pytest.mark.usefixtures("hangups")  # those that these tests ignore, their children would, too
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_replay_that_is_ended_leaves_no_copy_of_standard_input(number, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "epp", "replay", "-"],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    with process:
        while not list(tmp_path.glob("epp-stdin-*/stdin")):
            assert process.poll() is None
        process.send_signal(number)
    assert process.returncode == -number
    assert list(tmp_path.iterdir()) == []


def test_standard_input_has_an_end():
    reading, writing = os.pipe()
    os.write(writing, bytes(11))
    kept = os.dup(0)
    try:
        os.dup2(reading, 0)
        with pytest.raises(ConfigError, match="longer than 10 bytes"), with_stdin(["-"], 10):
            pass
    finally:
        os.dup2(kept, 0)
        for each in (reading, writing, kept):
            os.close(each)


def test_a_sweep_has_a_cell_for_each_case(capsys):
    argv = ("--pods", "1,3", "--speed", "1,2", "--policy", "least-ttft", "--json")
    cells = json.loads(printed(capsys, *argv).out)["cells"]
    assert {(cell["pods"], cell["load"]) for cell in cells} == {(1, 1), (1, 2), (3, 1), (3, 2)}
    assert len({cell["name"] for cell in cells}) == 4


def test_a_notebook_has_a_row_for_each_seed_and_measure(monkeypatch):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    (fence,) = (each for each in blocks("python") if each.page == "docs/replay-results.md")
    names: dict[str, Any] = {}
    exec(compile(fence.text, fence.page, "exec"), names)  # noqa: S102 (the page's own)
    rows = names["figures"](*SMALL[1:], "--policy", "random", "--pods", "1,2", "--seeds", "2")
    found = [row for row in rows if row["measure"] == "ttft_mean"]
    assert [(row["policy"], row["seed"]) for row in found] == [("random", 0), ("random", 1)] * 2
    assert len({row["value"] for row in found}) == 4


def test_processes_change_nothing(capsys):
    alone = printed(capsys, "--json").out
    assert main([*SMALL[:4], "--jobs", "2", *SMALL[6:], "--json"]) == 0
    beside = capsys.readouterr().out
    assert json.loads(alone) | {"command": ""} == json.loads(beside) | {"command": ""}


def test_ranks_are_no_pods(capsys, tmp_path):
    page = tmp_path / "r.html"
    argv = ("--policy", "random", "--ranks", "3")
    assert "20 requests, 2 pods with 6 ranks, " in printed(capsys, *argv, "--html", str(page)).out
    assert "20 requests to 2 pods with 6 ranks in " in page.read_text()
    (cell,) = json.loads(printed(capsys, *argv, "--json").out)["cells"]
    assert (cell["pods"], cell["endpoints"]) == (2, 6)


@pytest.mark.parametrize("argv", [("--warm-up", "1h"), ("--duration", "1ms")])
def test_where_no_request_is_counted_nothing_is_chosen(argv, capsys, tmp_path):
    out = printed(capsys, *argv, "--html", str(tmp_path / "report.html")).out
    why = "no request came after the warm-up and within --duration"
    assert out.endswith(f"\nNo policy can be chosen: {why}.\n")


def test_faults_and_pickers_are_played(capsys):
    argv = ("--fault", "0:die@1.5", "--pickers", "2", "--exchange", "5ms", "--json")
    (cell,) = json.loads(printed(capsys, *argv, "--policy", "round-robin").out)["cells"]
    assert cell["standings"]["round-robin"]["figures"]["lost"]["mean"] > 0


def test_it_writes_a_report_that_stands_alone(capsys, tmp_path):
    printed(capsys, "--policy", "least-ttft", "--html", str(tmp_path / "r.html"))
    page = (tmp_path / "r.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "least-ttft" in page


NOWHERE = ("--ray", "127.0.0.1:1")
"""Where no run can take place: what is said of anything else was said before."""


def test_a_report_that_cannot_be_written_is_said_before_anything_runs(capsys, tmp_path):
    page = str(tmp_path / "no" / "r.html")
    assert main([*SMALL, "--policy", "random", "--html", page, *NOWHERE]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_results_are_printed_also_if_the_report_cannot_be_written(capsys):
    assert main([*SMALL, "--policy", "random", "--html", "/dev/full"]) == 2
    said = capsys.readouterr()
    assert "20 requests" in said.out
    assert "cannot write /dev/full" in said.err


def test_a_report_is_not_touched_before_there_is_another(tmp_path):
    page = tmp_path / "r.html"
    page.write_text("of yesterday")
    assert main([*SMALL, "--policy", "random", "--html", str(page), *NOWHERE]) == 2
    assert page.read_text() == "of yesterday"


def test_each_traffic_has_a_name_of_its_own(capsys, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    files = [lengths(tmp_path / name, 5) for name in ("a/t.csv", "b/t.csv", "u.csv")]
    drawn = [f"chat:rate=1.{rate},sessions=2" for rate in (5, 7)]
    argv = ["replay", *files, *drawn, "--jobs", "1", "--policy", "random", "--json"]
    assert main(argv) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    names = [*(each[-80:] for each in files[:2]), "u", *drawn]
    assert [cell["name"] for cell in cells] == [cell["workload"] for cell in cells] == names


def test_a_name_has_no_parameters_of_a_file_and_that_of_the_current_folder_is_its_own(
    capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    lengths(tmp_path / "t.csv", 5)
    argv = ["replay", ".", f"t.csv:like={tmp_path}/t.csv", "--jobs", "1", "--policy", "random"]
    assert main([*argv, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["name"] for cell in cells] == [tmp_path.name, "t"]


@pytest.mark.parametrize("argv", [["chat:sessions=6,rate=4"], ["--pods", "2,2"]])
def test_a_case_that_is_given_twice_is_refused_before_anything_runs(capsys, argv):
    assert main([*SMALL, "--policy", "random", *argv, *NOWHERE]) == 2
    assert "random, seed 0: given twice" in capsys.readouterr().err


HAVE_NO_TIMES = "because they have no times, or all the same one: set --rate or --users"


def test_skipped_lines_are_named(capsys, tmp_path):
    good = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    bad = good | {"input_length": -1}
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(f"{json.dumps(each)}\n" for each in (good, bad, good)))
    argv = ["replay", str(trace), "--policy", "random", "--jobs", "1"]
    assert main(argv) == 0
    assert "trace.jsonl:2" in capsys.readouterr().err
    assert main([*argv, "--strict"]) == 2
    assert "trace.jsonl:2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("times", "more", "said"),
    [
        ([0, 2, 1, 3, 2], [], ["2 lines were earlier than the line before: sorted"]),
        ([7, 7, 7], [], [f"all 3 requests come at once, {HAVE_NO_TIMES}"]),
        ([7, 7, 7], ["--rate=2"], []),
        ([7, 7, 7], ["--users=1"], []),
        ([None, None], [], [f"all 2 requests come at once, {HAVE_NO_TIMES}"]),
        ([None], [], []),
        ([7, 8], [], []),
    ],
)
def test_what_is_odd_about_times_is_said(times, more, said, capsys, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(
        "".join(f'{{"prompt": "hello", "timestamp": {json.dumps(at)}}}\n' for at in times)
    )
    assert main(["replay", str(log), "--policy=random", "--jobs=1", *more]) == 0
    oddities = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epp: ")]
    assert oddities == [f"epp: {log}: {each}" for each in said]


def test_a_request_longer_than_any_pod_is_refused(capsys):
    argv = ("--kv-tokens", "3000", "--policy", "least-ttft", "--json")
    shown = printed(capsys, *argv)
    (cell,) = json.loads(shown.out)["cells"]
    standing = cell["standings"]["least-ttft"]
    refused = standing["figures"]["refused"]["mean"]
    why = "requests refused or lost: longer than the engine's context or KV cache"
    assert f"epp: least-ttft: {refused:.0f} {why}" in shown.err.splitlines()
    assert 0 < refused < 20
    assert standing["unanswered"] * standing["requests"] == pytest.approx(refused)


def test_a_calibration_says_what_it_found(capsys, tmp_path):
    rows = [
        {"prompt_tokens": size, "cached_tokens": 0, "ttft": 0.01 + 5e-5 * size, "tpot": 0.02}
        for size in (500, 1_000, 4_000, 8_000)
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    said = printed(capsys, "--calibrate", str(log), "--policy", "random").err
    assert "fitted to 4 observations" in said
    assert "\nwhat came late " in said  # a line of its own


@pytest.mark.parametrize("text", ["", "nonsense\n"])
def test_a_file_that_is_no_traffic_is_refused(capsys, tmp_path, text):
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    assert main(["replay", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def lengths(path, requests=30):
    rows = "".join(f"{at / 4},{50 + 37 * at % 900},{5 + at % 40}\n" for at in range(requests))
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    return str(path)


def test_seeds_of_an_unchanged_file_are_no_other_traffic(capsys, tmp_path):
    argv = ["replay", lengths(tmp_path / "t.csv"), "--jobs", "1", "--pods", "2", "--seeds", "3"]
    argv += ["--policy", "random", "--policy", "least-request", "--json"]
    for more, one in (([], True), (["--rate", "4"], False)):
        assert main([*argv, *more]) == 0
        found = json.loads(capsys.readouterr().out)
        (cell,) = found["cells"]
        assert cell["one_traffic"] is one
        assert ("sent one and the same traffic: " in found["confidence"]) is one
        assert not one or "sure" not in found["confidence"]


LABELS = (r"$\frac{$", "a\udcff\udce9", "a\x1b[31mb\nc\x00", "\u202egnol", "x" * 3000)


def test_labels_are_text_wherever_they_stand(capsys, tmp_path):
    policy, page = tmp_path / "p.yaml", tmp_path / "r.html"
    policy.write_text("plugins: [{type: random-picker}]")
    argv = [lengths(tmp_path / "t.csv", 5), "--jobs", "1", "--policy", "round-robin"]
    argv += [word for label in LABELS for word in ("--policy", f"{label}={policy}")]
    for more in (["--html", str(page)], ["--json"]):
        assert main(["replay", *argv, *more]) == 0
        said = "".join(capsys.readouterr())
        assert all(each.isprintable() for each in said.splitlines())
        said.encode()
    text = page.read_text()
    assert all(each.isprintable() for each in text.replace("\t", "").splitlines())
    assert [each for each in LABELS if html.escape(printable(each, 40)) not in text] == []


def test_a_file_that_is_named_oddly_is_named_as_it_can_be_shown(capsys, tmp_path):
    path = lengths(tmp_path / "a\x1b[31m\udcff$_{.csv", 5)
    assert main(["replay", path, "--jobs", "1", "--policy", "random", "--json"]) == 0
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    assert cell["name"] == r"a\u001b[31m\udcff$_{"


FAILING = """
import asyncio
import msgspec

class Failing(msgspec.Struct, frozen=True):
    def start(self, context):
        return Started()

class Started:
    calls = 0

    def score(self, request, candidates):
        self.calls += 1
        if self.calls % 2:
            raise LookupError("not this one")
        return [0.5] * len(candidates)

class Forgetful(msgspec.Struct, frozen=True):
    def committed(self, request, decision, now):
        raise LookupError("no notes")

class Short(msgspec.Struct, frozen=True):
    def score(self, request, candidates):
        return [1.0]

class Cancelled(msgspec.Struct, frozen=True):
    def score(self, request, candidates):
        raise asyncio.CancelledError("gone")

class Leaving(msgspec.Struct, frozen=True):
    def score(self, request, candidates):
        raise SystemExit(3)

class Stopped(msgspec.Struct, frozen=True):
    def score(self, request, candidates):
        raise KeyboardInterrupt
"""
PICKERS = {
    "failing": "max-score-picker",
    "short": "max-score-picker",
    "forgetful": "random-picker",
    "cancelled": "max-score-picker",
    "leaving": "max-score-picker",
    "stopped": "max-score-picker",
}


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """Install plug-ins that fail; return the files that name them."""
    points = {each: f"failing_plugins:{each.capitalize()}" for each in PICKERS}
    install(tmp_path, monkeypatch, "failing_plugins", FAILING, points)
    for name, picker in PICKERS.items():
        (tmp_path / f"{name}.yaml").write_text(f"plugins: [{{type: {name}}}, {{type: {picker}}}]")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "refused", "said"),
    [
        ("failing", 0.5, "LookupError: not this one (failing_plugins.py:15 score)"),
        ("short", 1, "scorer short returned 1 scores for 2 endpoints"),
        ("cancelled", 1, "CancelledError: gone (failing_plugins.py:28 score)"),
        ("leaving", 1, "SystemExit: 3 (failing_plugins.py:32 score)"),
        ("forgetful", 0, "LookupError: no notes (failing_plugins.py:20 committed)"),
    ],
)
def test_a_plug_in_that_fails_refuses_requests_and_is_named(name, refused, said, failing, capsys):
    shown = printed(capsys, "--json", "--policy=random", f"--policy={failing / name}.yaml")
    (cell,) = json.loads(shown.out)["cells"]
    assert cell["standings"][name]["unanswered"] == refused
    assert cell["standings"]["random"]["unanswered"] == 0
    assert f"epp: {name}: a plug-in failed: {said}" in shown.err.splitlines()


def test_ctrl_c_while_a_plug_in_runs_ends_the_replay(failing):
    assert main([*SMALL, f"--policy={failing / 'stopped'}.yaml"]) == 130


def test_a_plug_in_that_fails_on_a_request_that_waits_refuses_it(failing, capsys):
    traffic = ("replay", "chat:sessions=80,rate=200", "--requests=200", "--jobs=1", "--pods=1")
    full = ("--max-num-seqs=4", "--json", f"--policy={failing / 'failing'}.yaml")
    assert main([*traffic, *full]) == 0
    shown = capsys.readouterr()
    (cell,) = json.loads(shown.out)["cells"]
    # Of those that wait, some have been decided on before.
    assert 0.5 < cell["standings"]["failing"]["unanswered"] < 1
    assert "a plug-in failed: LookupError: not this one" in shown.err
