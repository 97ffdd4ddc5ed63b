"""The flags of `epp replay`: what they mean, and what is said of those that cannot be used."""

import argparse

import msgspec
import pytest

from epp.cli import replay_flags, replay_types, serve_flags
from epp.cli.go_arguments import GoArgumentParser
from epp.cli.main import main
from epp.cli.types import up_to
from epp.protocol.extproc.observation import AUTO
from epp.replay.engines.presets import PRESETS
from epp.replay.plan import FaultKind
from epp.replay.policies import NAMED


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (replay_types.tokens, "400000", 400_000),
        (replay_types.tokens, "400K", 400_000),
        (replay_types.tokens, "1.6M", 1_600_000),
        (replay_types.positive, "8", 8),
        (replay_types.seed, "0", 0),
        (replay_types.factor, ".5", 0.5),
        (replay_types.span, "20-31.5", (20.0, 31.5)),
        (replay_types.roles, "prefill=2,decode=1", ["prefill", "prefill", "decode"]),
        (replay_types.slo, "ttft=2", (2.0, float("inf"))),
        (replay_types.slo, "ttft=.5,tpot=0.05", (0.5, 0.05)),
        (replay_types.listed(replay_types.factor), "1,0.4", [1.0, 0.4]),
    ],
)
def test_values(kind, text, value):
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *((replay_types.tokens, text) for text in ("", "0", "-1", "1.6G", "x")),
        *((replay_types.positive, text) for text in ("0", "-1", "1.5", "")),
        *(
            (replay_types.factor, text)
            for text in ("0", "-1", "inf", "nan", ".", "1" * 400, f".{'0' * 400}1", "1000001")
        ),
        *((replay_types.tokens, text) for text in ("9" * 400, "1000000M", "0.4")),
        *((up_to(9), text) for text in ("10", "0", "9" * 400)),
        *((replay_types.seed, text) for text in ("-1", "1.5", "", "9" * 400)),
        *((replay_types.roles, text) for text in ("prefill=99999", "a=9999,b=9999", "a=0,b=0")),
        *((replay_types.fault, text) for text in ("0:slow=0@1", f"0:die@{'9' * 400}")),
        *((replay_types.span, text) for text in ("5", "5-5", "9-3", "-1-2")),
        *((replay_types.roles, text) for text in ("prefill", "prefill=", "=3")),
        *((replay_types.slo, text) for text in ("2", "tpot=1", "ttft=x")),
        *((replay_types.fault, text) for text in ("0:die", "x:die@1", "0:burn@1", "0:slow@1")),
        *(
            (replay_types.fault, text)
            for text in ("0:stall@1", "0:hang@1", "0:die=2@1", "0:die@1.2.3", "0:late=1.5@1")
        ),
    ],
)
def test_what_is_no_value_is_refused_with_an_example(kind, text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"^`.*` .*"):
        kind(text)


def test_pages_may_be_late_above_a_number_of_running_requests():
    for text, running in (("1:late@60", None), ("1:late=120@60+30", 120), ("1:late=0@60", 0)):
        found = replay_types.fault(text)
        assert (found.kind, found.at, found.running) == (FaultKind.LATE, 60.0, running)


@pytest.mark.parametrize(
    ("text", "pod", "kind", "at", "seconds", "factor"),
    [
        ("3:die@600", 3, FaultKind.DIE, 600.0, None, 1.0),
        ("pod-0:die@600+120", 0, FaultKind.DIE, 600.0, 120.0, 1.0),
        ("1:stall@60.5+5", 1, FaultKind.STALL, 60.5, 5.0, 1.0),
        ("1:slow=0.4@300", 1, FaultKind.SLOW, 300.0, None, 0.4),
        ("2:hang@60+30", 2, FaultKind.HANG, 60.0, 30.0, 1.0),
        ("2:fail@60", 2, FaultKind.FAIL, 60.0, None, 1.0),
        ("2:fail@60+30", 2, FaultKind.FAIL, 60.0, 30.0, 1.0),
    ],
)
def test_faults(text, pod, kind, at, seconds, factor):  # noqa: PLR0913, PLR0917 (the fields)
    found = replay_types.fault(text)
    assert (found.pod, found.kind, found.at) == (pod, kind, at)
    assert (found.seconds, found.factor) == (seconds, factor)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "name a trace or a workload"),
        (["no-such-file.jsonl"], "no file `no-such-file.jsonl`"),
        (["chatt"], "did you mean `chat`"),
        (["chat:rat=5"], "did you mean `rate`"),
        (["chat:rate=0"], "rate"),
        (["chat", "--policy", "lest-ttft"], "did you mean `least-ttft`"),
        (["chat", "--policy", "no-such.yaml"], "cannot read no-such.yaml"),
        (["chat", "--policy", "random", "--policy", "random"], "two policies"),
        (["chat", "--baseline", "linear"], "`linear` is not one of"),
        (["chat", "--fault", "8:die@1"], "there is no pod 8"),
        (["chat", "--exchange", "5ms"], "--pickers 2"),
        (["chat", "--duration", "9999h"], "--duration: more than a year"),
        (
            ["chat", "--duration", "60s", "--warm-up", "1m"],
            "--duration: it must be longer than --warm-up",
        ),
        (["chat", "--scrape-interval", "9" * 400], "--scrape-interval: more than a year"),
        (["chat", "--ray", "nowhere:1"], "Ray"),
        (["chat", "--calibrate", "/dev/null"], "--calibrate: /dev/null is not a regular"),
        (["chat", "--calibrate", "/nowhere"], "--calibrate: cannot read /nowhere: No such file"),
    ],
)
def test_what_cannot_be_used_is_said(argv, said, capsys):
    assert main(["replay", *argv]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("label", "name"), [("", "mine"), ("next=", "next")])
def test_a_policy_may_be_a_file(label, name, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("plugins: [{type: random-picker}]")
    parser = GoArgumentParser()
    replay_flags.add_replay(parser)
    arguments = parser.parse_args(["chat", "--policy", f"{label}{path}", "--policy", "random"])
    mine, random = replay_flags.replay_options(arguments, []).policies
    assert (mine.name, mine.text) == (name, path.read_text())
    assert random == NAMED["random"]


def test_an_older_name_is_that_of_the_same_policy():
    parser = GoArgumentParser()
    replay_flags.add_replay(parser)
    argv = ["chat", "--policy", "incumbent", "--policy", "incumbent-guide"]
    options = replay_flags.replay_options(parser.parse_args([*argv, "--baseline=incumbent"]), [])
    assert [each.name for each in options.policies] == ["llm-d-router", "llm-d-router-guide"]
    assert options.baseline == "llm-d-router"


def test_a_policy_file_that_is_no_configuration_is_named(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text("plugins: [{type: queue-score}]")
    assert main(["replay", "chat", "--policy", str(path)]) == 2
    assert f"--policy {path}: plugins[0].type: unknown plug-in" in capsys.readouterr().err


CALIBRATING = """\
vllm:request_prefill_time_seconds_sum 2.0
vllm:request_prefill_time_seconds_count 10
vllm:prompt_tokens_total 50000
vllm:generation_tokens_total 1000
vllm:inter_token_latency_seconds_sum 20.0
vllm:inter_token_latency_seconds_count 1000
vllm:cache_config_info{block_size="64",num_gpu_blocks="501"} 1
"""


def test_a_page_tells_the_size_of_the_cache_and_no_other_limit(tmp_path):
    page = tmp_path / "page"
    page.write_text(CALIBRATING)
    parser = GoArgumentParser()
    replay_flags.add_replay(parser)
    arguments = parser.parse_args(["chat", "--engine", "cpu-tiny", "--calibrate", str(page)])
    ((pod, *_),) = (plan.pods for plan in replay_flags.replay_options(arguments, []).fleets)
    preset = PRESETS["cpu-tiny"].limits
    assert pod.limits == msgspec.structs.replace(preset, block_size=64, num_gpu_blocks=501)


@pytest.mark.parametrize(("interval", "seconds"), [("20s", 20.0), ("0s", None), ("", None)])
def test_a_configuration_says_how_often_pods_are_scraped(interval, seconds, tmp_path):
    policy = tmp_path / "policy.yaml"
    source = f"{{type: metrics-data-source, parameters: {{interval: '{interval}'}}}}"
    policy.write_text(f"plugins: [{source}, {{type: random-picker}}]")
    parser = GoArgumentParser()
    replay_flags.add_replay(parser)
    arguments = parser.parse_args(["chat", "--policy", str(policy)])
    (found,) = replay_flags.replay_options(arguments, []).policies
    assert found.scrape_seconds == seconds


def test_responses_are_observed_as_serve_does():
    serve, replay = GoArgumentParser(), GoArgumentParser()
    serve_flags.add_serve(serve)
    replay_flags.add_replay(replay)
    flags = [parser.parse_args([]).observe_responses for parser in (serve, replay)]
    assert flags == [AUTO, AUTO]
