"""The flags of `epp replay`, and the fleets and runs that they define."""

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from epp.app.process import file_of
from epp.cli.files import policy_file, with_stdin
from epp.cli.go_arguments import GoArgumentParser
from epp.cli.replay_types import (
    MAX_PODS,
    POSITIVE,
    factor,
    fault,
    listed,
    positive,
    roles,
    seed,
    slo,
    span,
    tokens,
)
from epp.cli.serve_flags import WHICH, add_eject_after
from epp.cli.types import FILE, INTERVAL, TIME, number, up_to
from epp.errors import ConfigError
from epp.policy.flow.settings import FlowSettings
from epp.printable import printable, printable_lines
from epp.replay.engines.presets import DEFAULT_PRESET, PRESETS, EnginePreset, preset
from epp.replay.plan import PodPlan, Policy, RunPlan, Traffic
from epp.replay.policies import ALIASES, NAMED
from epp.replay.traffic.bounds import MAX_SECONDS
from epp.replay.traffic.files.source import MAX_BYTES

if TYPE_CHECKING:  # see `replay_options`
    from epp.replay.command import ReplayOptions

_DESCRIPTION = """\
Compare policies on recorded or generated traffic, without a GPU: the picker's own code in front of
simulated engines with vLLM's rules, in virtual time.

  epp replay mooncake_conversation.jsonl.zst --policy least-ttft --policy llm-d-router --speed 1.4
  epp replay interactive-chat:rate=8 --policy least-ttft --policy round-robin --seeds 5
  epp replay recording/ --policy least-ttft --policy mine.yaml --pods 4 --kv-tokens 400K

A policy is a name (least-ttft, round-robin, random, least-request, linear; llm-d-router
and llm-d-router-guide are llm-d-router's chart default and its newest guide) or [LABEL=]FILE of a
configuration. They are compared with llm-d-router if it is among them, else with the first.

Exit status: 0 after all runs; 2 an option or the traffic cannot be used."""
_DEFAULT_POLICIES = ("least-ttft", "llm-d-router", "round-robin")
_BASELINE = "llm-d-router"
_LONGEST_LABEL = 40
"""Characters: plots have room for this many beside them."""
_MAX_RANKS, _MAX_PICKERS, _MAX_SEEDS, _MAX_JOBS = 1_000, 1_000, 10_000, 1_000


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
        help="a file, a folder of a recording, - for standard input, or a workload"
        " NAME[:PARAMETER=VALUE,...]",
    )
    parser.add_argument(
        "--policy",
        dest="policies",
        action="append",
        default=[],
        metavar="POLICY",
        help="may be repeated (default: least-ttft, llm-d-router and round-robin)",
    )
    parser.add_argument(
        "--baseline", default="", metavar="POLICY", help="the policy that others are compared with"
    )
    _add_traffic(parser.add_argument_group("traffic"))
    _add_fleet(parser.add_argument_group("the fleet"))
    _add_pickers(parser.add_argument_group("pickers"))
    _add_runs(parser.add_argument_group("runs and results"))
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.ray and "-" in arguments.traffic:
        raise ConfigError("other machines cannot read standard input: name a file", "--ray")
    with with_stdin(arguments.traffic, MAX_BYTES) as arguments.traffic:
        options = replay_options(arguments, sys.argv[1:])
        from epp.replay.command import run  # noqa: PLC0415 (slow, and options may be refused)

        return run(options)


def _add_traffic(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--speed",
        type=listed(factor),
        default=[1.0],
        metavar="FACTOR[,...]",
        help="multiplies the traffic, by copies of it with other conversations (default: 1)",
    )
    arrivals = group.add_mutually_exclusive_group()
    arrivals.add_argument(
        "--rate",
        type=factor,
        metavar="RPS",
        help="requests a second, as a Poisson process, in the trace's order",
    )
    arrivals.add_argument(
        "--users",
        **POSITIVE,
        help="a closed loop of N users, each with one conversation after another",
    )
    group.add_argument(
        "--minutes",
        type=span,
        metavar="FROM-TO",
        help="the part of the trace to replay, such as 20-31",
    )
    group.add_argument("--requests", **POSITIVE, help="only the first N requests")
    group.add_argument("--duration", **INTERVAL, help="stop sending after this time, such as 10m")
    group.add_argument(
        "--strict",
        action="store_true",
        help="stop at a bad line (default: it is skipped and counted)",
    )


def _add_fleet(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--pods",
        type=listed(up_to(MAX_PODS)),
        default=[8],
        metavar="N[,...]",
        help="model servers; with commas each number is a case of its own (default: 8)",
    )
    group.add_argument(
        "--engine",
        default=DEFAULT_PRESET,
        metavar="PRESET",
        help=f"the engine of each: {', '.join(PRESETS)} (default: %(default)s)",
    )
    group.add_argument(
        "--calibrate",
        **FILE,
        action="append",
        default=[],
        help="fit its speed to a log of requests, or to metrics pages of a vLLM (may be repeated)",
    )
    group.add_argument(
        "--kv-tokens", type=tokens, metavar="N", help="the KV cache of each (default: the preset's)"
    )
    group.add_argument(
        "--block-size", type=positive, metavar="TOKENS", help="(default: the preset's)"
    )
    group.add_argument("--max-num-batched-tokens", **POSITIVE, help="(default: the preset's)")
    group.add_argument("--max-num-seqs", **POSITIVE, help="(default: the preset's)")
    group.add_argument(
        "--max-loras",
        **POSITIVE,
        default=0,
        help="adapters that can run at once on each (default: any number)",
    )
    group.add_argument(
        "--pod-speeds",
        type=listed(factor),
        default=[1.0],
        metavar="FACTOR[,...]",
        help="pods take these speeds in turn: 1,0.4 makes every second one 2.5 times slower",
    )
    group.add_argument(
        "--ranks", **number(_MAX_RANKS), default=1, help="data-parallel engines of each pod"
    )
    group.add_argument(
        "--roles",
        type=roles,
        metavar="ROLE=N[,...]",
        help="prefill=2,decode=6, in place of --pods; needs a policy with disaggregation",
    )
    group.add_argument(
        "--fault",
        dest="faults",
        type=fault,
        action="append",
        default=[],
        metavar="FAULT",
        help="POD:die@SECONDS[+SECONDS until it is back, cold], POD:stall@SECONDS+SECONDS (no"
        " answer to anything), POD:hang@SECONDS+SECONDS (to requests), POD:fail@SECONDS[+SECONDS]"
        " (errors), POD:late[=RUNNING]@SECONDS[+SECONDS] (only its metrics, while more than"
        " RUNNING requests run) or POD:slow=FACTOR@SECONDS[+SECONDS]; may be repeated",
    )


def _add_pickers(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--pickers",
        **number(_MAX_PICKERS),
        default=1,
        help="replicas of the picker, which take turns",
    )
    group.add_argument(
        "--exchange",
        **TIME,
        help="pickers tell each other what they see, with this delay (default: never)",
    )
    group.add_argument(
        "--scrape-interval",
        **INTERVAL,
        default=1.0,
        help="how often each pod's metrics are read (default: 1s; llm-d-router's policies: 50ms)",
    )
    group.add_argument(
        "--observe-responses",
        **WHICH,
        help="as in `epp serve` (default: auto)",
    )
    add_eject_after(group)


def _add_runs(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--seed", type=seed, default=0, metavar="N", help="the first seed (default: 0)"
    )
    group.add_argument(
        "--seeds", **number(_MAX_SEEDS), default=1, help="runs of each policy (default: 1)"
    )
    group.add_argument(
        "--warm-up", **TIME, default=0.0, help="time at the start that is left out of all figures"
    )
    group.add_argument(
        "--slo",
        type=slo,
        metavar="ttft=S[,tpot=S]",
        help="what goodput and the share in SLO require, in seconds; without tpot the first"
        " token alone (default: ttft=2,tpot=0.05)",
    )
    group.add_argument("--jobs", **number(_MAX_JOBS), help="processes (default: all cores)")
    group.add_argument("--ray", default="", metavar="ADDRESS", help="use this Ray cluster instead")
    group.add_argument("--html", **FILE, help="write a report with plots")
    group.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def check(arguments: argparse.Namespace) -> None:
    """Raise `ConfigError` for flags that contradict each other."""
    if not arguments.traffic:
        raise ConfigError("nothing to replay: name a trace or a workload")
    highest = len(arguments.roles) if arguments.roles else min(map(int, arguments.pods))
    for each in arguments.faults:
        if each.pod >= highest:
            raise ConfigError(
                f"there is no pod {each.pod}: the pods are 0 to {highest - 1}", "--fault"
            )
    for name in ("duration", "exchange", "scrape_interval", "warm_up"):
        if (getattr(arguments, name) or 0.0) > MAX_SECONDS:
            raise ConfigError("more than a year cannot be replayed", f"--{name.replace('_', '-')}")
    if arguments.duration is not None and arguments.duration <= arguments.warm_up:
        raise ConfigError(
            "it must be longer than --warm-up, whose requests are not counted", "--duration"
        )
    if arguments.exchange is not None and arguments.pickers == 1:
        raise ConfigError("one picker has no other to exchange with: add --pickers 2", "--exchange")


def replay_options(arguments: argparse.Namespace, argv: Sequence[str]) -> "ReplayOptions":
    """Return the options that the flags ask for. Raises `ConfigError`."""
    check(arguments)
    # Imported here so that other commands do not wait for it.
    from epp.replay.command import ReplayOptions  # noqa: PLC0415
    from epp.replay.results.digest import Slo  # noqa: PLC0415

    policies = [_policy(name) for name in arguments.policies or _DEFAULT_POLICIES]
    names = [policy.name for policy in policies]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two policies are named `{twice}`: write LABEL=FILE", "--policy")
    baseline = printable(ALIASES.get(arguments.baseline, arguments.baseline), _LONGEST_LABEL)
    if baseline and baseline not in names:
        known = ", ".join(names)
        raise ConfigError(f"`{baseline}` is not one of {known}", "--baseline")
    return ReplayOptions(
        traffic=[
            Traffic(
                source=source,
                strict=arguments.strict,
                minutes=arguments.minutes,
                requests=arguments.requests,
                rate=arguments.rate,
                users=arguments.users,
            )
            for source in arguments.traffic
        ],
        copies=arguments.speed,
        fleets=list(_fleets(arguments)),
        policies=policies,
        baseline=baseline or (_BASELINE if _BASELINE in names else ""),
        seeds=range(arguments.seed, arguments.seed + arguments.seeds),
        warm_up=arguments.warm_up,
        slo=Slo(*arguments.slo) if arguments.slo else Slo(),
        jobs=arguments.jobs,
        ray=arguments.ray,
        html=arguments.html,
        json=arguments.json,
        command=printable(shlex.join(["epp", *argv])),
    )


def _policy(given: str) -> Policy:
    named = NAMED.get(ALIASES.get(given, given))
    if named is not None:
        return named
    file = policy_file(given, NAMED, "--policy")
    own = next((each.source.every for each in file.settings.data_layer.pages if each.load), None)
    return Policy(printable(file.name, _LONGEST_LABEL), file.text, own, flow=FlowSettings())


def _fleets(arguments: argparse.Namespace) -> Iterator[RunPlan]:
    """Yield a plan for each number of pods, without a policy. Raises `ConfigError`."""
    engine = preset(arguments.engine)
    pod = _pod(arguments, engine)
    speeds = arguments.pod_speeds
    for count in [len(arguments.roles)] if arguments.roles else map(int, arguments.pods):
        each = arguments.roles or [""] * count
        yield RunPlan(
            policy=Policy("", ""),
            pods=[
                replace(pod, role=role, speed=speeds[number % len(speeds)])
                for number, role in enumerate(each)
            ],
            pickers=arguments.pickers,
            exchange_seconds=arguments.exchange,
            scrape_seconds=arguments.scrape_interval,
            observation=arguments.observe_responses,
            transfer_seconds_per_token=engine.transfer_seconds_per_token,
            faults=arguments.faults,
            duration=arguments.duration,
            eject_after=arguments.eject_after,
        )


def _pod(arguments: argparse.Namespace, engine: EnginePreset) -> PodPlan:
    """Return one pod: a preset, overridden by measurements, and these by flags."""
    cost, limits, cache = engine.cost, engine.limits, engine.limits
    if arguments.calibrate:
        from epp.replay.engines.calibration import calibrate  # noqa: PLC0415 (rarely needed)

        budget = arguments.max_num_batched_tokens or limits.max_num_batched_tokens
        with file_of("--calibrate"):
            found = calibrate(arguments.calibrate, cost, budget)
        print(f"epp: --calibrate: {printable_lines(found.summary())}", file=sys.stderr)
        cost, cache = found.cost, found.limits or cache
    block = arguments.block_size or cache.block_size
    tokens_held = arguments.kv_tokens or cache.capacity
    limits = replace(
        limits,
        block_size=block,
        num_gpu_blocks=max(1, tokens_held // block) + 1,
        max_num_batched_tokens=arguments.max_num_batched_tokens or limits.max_num_batched_tokens,
        max_num_seqs=arguments.max_num_seqs or limits.max_num_seqs,
        max_loras=arguments.max_loras,
    )
    return PodPlan(limits=limits, cost=cost, ranks=arguments.ranks)
