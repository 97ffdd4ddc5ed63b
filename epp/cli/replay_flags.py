"""The flags of `epp replay`, and what they make of a fleet and of runs."""

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from epp.cli.go_arguments import GoArgumentParser
from epp.cli.serve_flags import observation
from epp.cli.types import duration, interval
from epp.errors import ConfigError
from epp.replay.plan import Fault, FaultKind

_DESCRIPTION = """\
Compare policies on recorded or generated traffic, without a GPU: the picker's own code in front of
simulated engines with vLLM's rules, in virtual time.

  epp replay mooncake_conversation.jsonl.zst --policy least-ttft --policy incumbent --speed 1.4
  epp replay interactive-chat:rate=8 --policy least-ttft --policy round-robin --seeds 5
  epp replay recording/ --policy least-ttft --policy mine.yaml --pods 4 --kv-tokens 400K

A policy is a name (least-ttft, round-robin, random, least-request, linear; incumbent and
incumbent-guide are llm-d-router's chart default and its newest guide) or [LABEL=]FILE of a
configuration. The first one is what the others are compared with, or --baseline.

Exit status: 0 after all runs; 2 an option or the traffic cannot be used."""
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmM]?)")
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}
_FAULT = re.compile(
    r"(?:pod-)?(?P<pod>\d+):(?P<kind>die|stall|slow)(?:=(?P<factor>\d*\.?\d+))?"
    r"@(?P<at>[\d.]+)(?:\+(?P<seconds>[\d.]+))?"
)


def tokens(text: str) -> int:
    """Return a number of tokens: `400000`, `400K`, `1.6M`."""
    found = _AMOUNT.fullmatch(text)
    if not found or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"`{text}` is no number of tokens; write 400K or 1.6M")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def positive(text: str) -> int:
    """Return a number of 1 or more."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"`{text}` is no number of 1 or more")
    return int(text)


def factor(text: str) -> float:
    """Return a number of more than 0."""
    if not re.fullmatch(r"\d*\.?\d+", text) or not float(text):
        raise argparse.ArgumentTypeError(f"`{text}` is no number of more than 0")
    return float(text)


def listed(kind: Callable[[str], float]) -> Callable[[str], Sequence[float]]:
    """Return the type of a flag that takes several values, with commas."""
    return lambda text: [kind(part) for part in text.split(",")]


def span(text: str) -> tuple[float, float]:
    """Return minutes from and to: `20-31`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)", text)
    if not found or float(found[1]) >= float(found[2]):
        raise argparse.ArgumentTypeError(f"`{text}` is no span of minutes; write 20-31")
    return float(found[1]), float(found[2])


def fault(text: str) -> Fault:
    """Return what happens to a pod: `3:die@600+120`, `0:stall@60+5`, `1:slow=0.4@300`."""
    found = _FAULT.fullmatch(text)
    if not found or (found["factor"] is not None) != (found["kind"] == "slow"):
        raise argparse.ArgumentTypeError(
            f"`{text}` is no fault; write POD:die@SECONDS[+SECONDS], POD:stall@SECONDS+SECONDS or"
            " POD:slow=FACTOR@SECONDS[+SECONDS]"
        )
    if found["kind"] == "stall" and found["seconds"] is None:
        raise argparse.ArgumentTypeError(f"`{text}` says not how long; write POD:stall@60+5")
    try:
        return Fault(
            pod=int(found["pod"]),
            kind=FaultKind(found["kind"]),
            at=float(found["at"]),
            seconds=None if found["seconds"] is None else float(found["seconds"]),
            factor=float(found["factor"] or 1),
        )
    except ValueError:
        raise argparse.ArgumentTypeError(f"`{text}` has a time that is no number") from None


def roles(text: str) -> Sequence[str]:
    """Return a role for each pod: `prefill=2,decode=6`."""
    each: list[str] = []
    for part in text.split(","):
        found = re.fullmatch(r"([a-z-]+)=(\d+)", part)
        if not found:
            raise argparse.ArgumentTypeError(f"`{text}` has no roles; write prefill=2,decode=6")
        each += [found[1]] * int(found[2])
    return each


def slo(text: str) -> tuple[float, float]:
    """Return the seconds of TTFT and of TPOT of an objective: `ttft=2,tpot=0.05`."""
    found = re.fullmatch(r"ttft=(\d*\.?\d+)(?:,tpot=(\d*\.?\d+))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"`{text}` is no objective; write ttft=2,tpot=0.05")
    return float(found[1]), float(found[2] or "inf")


def add_replay(parser: GoArgumentParser) -> None:
    """Add every flag of `epp replay`."""
    parser.words_go_to = "traffic"
    parser.description = _DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "traffic",
        nargs="*",
        default=[],
        metavar="TRACE|WORKLOAD",
        help="a file, a folder of a recording, or a workload NAME[:PARAMETER=VALUE,...]",
    )
    parser.add_argument(
        "--policy",
        dest="policies",
        action="append",
        default=[],
        metavar="POLICY",
        help="may be repeated (default: least-ttft, incumbent and round-robin)",
    )
    parser.add_argument("--baseline", default="", metavar="POLICY", help="(default: the first)")
    _add_traffic(parser.add_argument_group("traffic"))
    _add_fleet(parser.add_argument_group("the fleet"))
    _add_pickers(parser.add_argument_group("pickers"))
    _add_runs(parser.add_argument_group("runs and results"))


def _add_traffic(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--speed",
        type=listed(factor),
        default=[1.0],
        metavar="FACTOR[,...]",
        help="so many times the traffic: copies of it with other conversations (default: 1)",
    )
    group.add_argument(
        "--rate",
        type=factor,
        metavar="RPS",
        help="requests a second, Poisson, at the trace's order",
    )
    group.add_argument(
        "--minutes", type=span, metavar="FROM-TO", help="the part of the trace, such as 20-31"
    )
    group.add_argument("--requests", type=positive, metavar="N", help="the first N requests alone")
    group.add_argument(
        "--strict", action="store_true", help="a bad line ends it (default: skipped and counted)"
    )


def _add_fleet(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--pods",
        type=listed(positive),
        default=[8],
        metavar="N[,...]",
        help="model servers; with commas each number is a case of its own (default: 8)",
    )
    group.add_argument(
        "--engine", default="", metavar="PRESET", help="the speed of each (default: 8b-h100)"
    )
    group.add_argument(
        "--calibrate",
        type=Path,
        metavar="FILE",
        help="fit the speed to a metrics page of vLLM or a log of requests",
    )
    group.add_argument(
        "--kv-tokens", type=tokens, metavar="N", help="the KV cache of each (default: the preset's)"
    )
    group.add_argument(
        "--block-size", type=positive, default=16, metavar="TOKENS", help="(default: 16)"
    )
    group.add_argument(
        "--max-num-batched-tokens", type=positive, default=8192, metavar="N", help="(default: 8192)"
    )
    group.add_argument(
        "--max-num-seqs", type=positive, default=256, metavar="N", help="(default: 256)"
    )
    group.add_argument(
        "--pod-speeds",
        type=listed(factor),
        default=[1.0],
        metavar="FACTOR[,...]",
        help="pods take these speeds in turn: 1,0.4 makes every second one 2.5 times slower",
    )
    group.add_argument(
        "--ranks", type=positive, default=1, metavar="N", help="data-parallel engines of each pod"
    )
    group.add_argument(
        "--roles",
        type=roles,
        metavar="ROLE=N[,...]",
        help="prefill=2,decode=6: in place of --pods; wants a policy with disaggregation",
    )
    group.add_argument(
        "--fault",
        dest="faults",
        type=fault,
        action="append",
        default=[],
        metavar="FAULT",
        help="POD:die@SECONDS[+SECONDS until it is back, cold], POD:stall@SECONDS+SECONDS or"
        " POD:slow=FACTOR@SECONDS[+SECONDS]; may be repeated",
    )


def _add_pickers(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--pickers", type=positive, default=1, metavar="N", help="replicas that take turns"
    )
    group.add_argument(
        "--exchange",
        type=duration,
        metavar="TIME",
        help="they tell each other what they see, so much later (default: they do not)",
    )
    group.add_argument(
        "--scrape-interval",
        type=interval,
        default=1.0,
        metavar="TIME",
        help="how often each pod's metrics are read (default: 1s; the incumbent's policies: 50ms)",
    )
    group.add_argument(
        "--observe-responses",
        type=observation,
        default="all",
        metavar="WHICH",
        help="as in `epp serve` (default: all)",
    )


def _add_runs(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--seed", type=int, default=0, metavar="N", help="the first (default: 0)")
    group.add_argument(
        "--seeds", type=positive, default=1, metavar="N", help="runs of each policy (default: 1)"
    )
    group.add_argument(
        "--warm-up", type=duration, default=0.0, metavar="TIME", help="left out of all figures"
    )
    group.add_argument(
        "--slo",
        type=slo,
        default=(2.0, float("inf")),
        metavar="ttft=S[,tpot=S]",
        help="what goodput counts, in seconds (default: ttft=2)",
    )
    group.add_argument("--jobs", type=positive, metavar="N", help="processes (default: all cores)")
    group.add_argument("--ray", default="", metavar="ADDRESS", help="use this Ray cluster instead")
    group.add_argument("--html", type=Path, metavar="FILE", help="write a report with plots")
    group.add_argument("--json", action="store_true", help="print one JSON object alone")


def check(arguments: argparse.Namespace) -> None:
    """Raise `ConfigError` where flags do not fit each other."""
    if not arguments.traffic:
        raise ConfigError("what is to be replayed? Name a trace or a workload")
    highest = len(arguments.roles) if arguments.roles else min(map(int, arguments.pods))
    for each in arguments.faults:
        if each.pod >= highest:
            raise ConfigError(f"there is no pod {each.pod}: they are 0 to {highest - 1}", "--fault")
    if arguments.exchange is not None and arguments.pickers == 1:
        raise ConfigError("one picker has nobody to exchange with: add --pickers 2", "--exchange")
