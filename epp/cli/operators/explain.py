"""`epp explain`: why a request went where it went, and how it ended.

It asks a running picker, or reconstructs the decision from a recording.
"""

import argparse
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from epp.app.observing.views import DecisionsPage, DecisionView, EndingView, RecordedPick
from epp.app.process import file_of
from epp.cli.files import policy_settings
from epp.cli.operators.port import OperatorsPort, add_port
from epp.cli.types import number
from epp.config.file import DEFAULT_POLICY, POLICIES
from epp.errors import ConfigError
from epp.policy.explanations.explanation import ExplainedCandidate, Explanation
from epp.policy.explanations.ranking import Measure
from epp.printable import printable

_PATH: Final = "/debug/decisions"
_EVERY_SECONDS: Final = 0.5
_MAX: Final = 100
_WORTH_SAYING_MS: Final = 10.0
"""A request that took longer than this to be sent waited for something."""
_UNKNOWN: Final = (
    "not among the decisions that are kept. A request that waits for room has no decision yet; if"
    " it was refused, the log has the reason"
)
_TERMS: Final = {
    "queued_prefill": "queued",
    "prefill": "prefill",
    "class_prefill": "class",
    "decode": "decode",
    "generation": "generate",
    "crowding": "crowd",
    "slot": "slot",
}
"""The terms of a cost, and their column headings."""
_NOT_THE_BEST: Final[Mapping[Measure, str]] = {
    "cost": "it was its turn, so that replicas pick different endpoints",
    "score": "the picker draws, or compares more than scores",
    "other": "the picker compares something else",
}
"""Why a winner may have a worse cost or score than another."""

_RECONSTRUCTED: Final = (
    "A reconstruction: what was picked, and what then happened, is recorded; the candidates are"
    " computed from the requests before it, without metrics pages and KV events."
)

TEXT: Final = """Show what a running picker decided: each candidate with the tokens of the prompt
that its cache holds, every term of its cost, which one won and by how much, and what happened then.
The last 1,024 decisions are kept. Without a request: the last ones, one line each. With --recording
decisions are reconstructed from what `epp serve --record` wrote, as far as it goes. Exit status: 0
if they are shown; 1 if the request is not among them; 2 if the picker or the recording cannot be
read."""


def add_explain(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.description = TEXT
    parser.add_argument(
        "request",
        nargs="?",
        metavar="REQUEST_ID",
        help="the client's x-request-id, or the picker's own id of a request; with --recording"
        " the request's number there, `n`",
    )
    parser.add_argument("--follow", action="store_true", help="print decisions as they are made")
    parser.add_argument(
        "--last",
        **number(_MAX),
        default=20,
        help=f"how many decisions, at most {_MAX} (default: 20)",
    )
    parser.add_argument("--json", action="store_true", help="a line of JSON for each decision")
    group = parser.add_argument_group("after the fact")
    group.add_argument(
        "--recording",
        type=Path,
        metavar="PATH",
        help="a recording in place of a picker: one of its parts, or the folder",
    )
    group.add_argument(
        "--policy",
        metavar="POLICY",
        help=f"what decides: {', '.join(POLICIES)}, or [LABEL=]FILE of a configuration (default:"
        f" the policy that the recording names, else {DEFAULT_POLICY})",
    )
    add_port(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print what was asked for; return 1 if the request is not known."""
    if arguments.request and arguments.follow:
        raise ConfigError("give a request or --follow, not both")
    if arguments.recording is not None:
        return _explain_recorded(arguments)
    if arguments.policy is not None:
        raise ConfigError(
            "it requires --recording: a running picker has its own policy", "--policy"
        )
    port = OperatorsPort(arguments)
    if not arguments.request:
        return _list(port, arguments)
    found = port.read(_PATH, DecisionsPage, request=arguments.request).decisions
    return _show(found, arguments, _UNKNOWN)


def _list(port: OperatorsPort, arguments: argparse.Namespace) -> int:
    page = port.read(_PATH, DecisionsPage, limit=arguments.last)
    if not page.decisions:
        print("epp: no request has been decided yet", file=sys.stderr)
    _say(page.decisions, arguments)
    while arguments.follow:  # until Ctrl-C: polls, as the page ends with the newest decision
        time.sleep(_EVERY_SECONDS)
        page = port.read(_PATH, DecisionsPage, since=page.last, limit=_MAX)
        _say(page.decisions, arguments)
    return 0


def _explain_recorded(arguments: argparse.Namespace) -> int:
    if arguments.follow:
        raise ConfigError(
            "it requires a running picker, and --recording names a recording", "--follow"
        )
    # Imported here: they are slow, and asking a running picker does not need them.
    from epp.replay.past_decisions import PastDecisions  # noqa: PLC0415
    from epp.replay.traffic.files.source import Problems, Source  # noqa: PLC0415
    from epp.replay.traffic.recorded.parts import read_recording  # noqa: PLC0415

    problems = Problems()
    with file_of("--recording"):
        recording = read_recording(Source(arguments.recording), problems, seed=0)
    if problems.skipped:
        shown = "".join(f"\n  {each}" for each in problems.shown)
        name = printable(str(arguments.recording))
        print(f"epp: {name}: {problems.skipped} lines skipped{shown}", file=sys.stderr)
    recorded = recording.configuration if recording.configuration in POLICIES else DEFAULT_POLICY
    _, settings = policy_settings(arguments.policy or recorded, "--policy")
    views = PastDecisions(recording, settings).views()
    if arguments.request:
        found = [each for each in views if each.request == arguments.request]
        return _show(found, arguments, "not among the recorded requests")
    newest = deque(views, arguments.last)
    if not newest:
        print(
            f"epp: {printable(str(arguments.recording))}: no request is recorded", file=sys.stderr
        )
    _say(newest, arguments)
    return 0


def _show(found: Sequence[DecisionView], arguments: argparse.Namespace, unknown: str) -> int:
    if not found:
        print(f"epp: {printable(arguments.request)}: {unknown}", file=sys.stderr)
        return 1
    if arguments.json:
        _say(found, arguments)
        return 0
    for each in found:
        print(*story(each), sep="\n")
        if each.recorded is not None:
            print(f"\n{_RECONSTRUCTED}")
    return 0


def _say(decisions: Iterable[DecisionView], arguments: argparse.Namespace) -> None:
    for each in decisions:
        print(msgspec.json.encode(each).decode() if arguments.json else line(each), flush=True)


def line(decision: DecisionView) -> str:
    """Return a decision as one line."""
    parts = [decision.at[11:23], decision.client_id or decision.request]
    for each in decision.profiles[-1:]:
        best = each.candidates[0]
        parts += [each.winner, f"{best.cached_tokens}/{each.prompt_tokens} cached"]
        if each.margin is not None and each.runner_up is not None:
            word = "after" if each.margin < 0 else "before"
            parts.append(f"{_margin(each)} {word} {each.runner_up}")
    recorded = decision.recorded
    if recorded is not None and recorded.endpoint not in parts:
        parts.append(f"picked {recorded.endpoint or 'nothing'}")
    if decision.ending is not None:
        parts.append(_ending(decision.ending))
    return "  ".join(map(printable, parts))


def story(decision: DecisionView) -> Iterator[str]:
    """Yield the lines that explain a decision."""
    names = [decision.request]
    if decision.client_id:
        names.append(f"x-request-id {decision.client_id}")
    yield printable(f"{' · '.join(names)} · model {decision.model or '-'} · {decision.at}")
    for each in decision.profiles:
        yield ""
        yield from _profile(each)
    yield ""
    if decision.recorded is not None:
        yield from _recorded(decision, decision.recorded)
    ending = decision.ending
    yield f"then    {'it is running' if ending is None else printable(_ending(ending))}"


def _recorded(decision: DecisionView, recorded: RecordedPick) -> Iterator[str]:
    """Yield the recorded facts of a decision, as opposed to the reconstructed ones."""
    if decision.refused:
        yield printable(f"refused by this configuration: {decision.refused}")
    if not recorded.endpoint:
        yield "picked  nothing"
        return
    parts = [f"picked  {recorded.endpoint}"]
    if recorded.prefill:
        parts.append(f"prefill at {recorded.prefill}")
    parts.append(f"{recorded.cached_tokens} tokens predicted to be cached")
    if recorded.ttft_ms is not None:
        parts.append(f"ttft {recorded.ttft_ms:g} ms predicted")
    yield printable(", ".join(parts))


def _profile(each: Explanation) -> Iterator[str]:
    left_out = each.considered - each.passed
    candidates = "1 candidate" if each.passed == 1 else f"{each.passed} candidates"
    seen = candidates + (f", {left_out} filtered out" if left_out else "")
    yield printable(f"profile {each.profile}: {seen}, {each.prompt_tokens} prompt tokens")
    winner = f"winner  {each.winner}"
    if each.runner_up is not None:
        if each.margin is not None and each.margin < 0:
            why = _NOT_THE_BEST[each.measure]
            winner += f", though {each.runner_up} was better by {_margin(each)}: {why}"
        else:
            by = f", by {_margin(each)}" if each.margin is not None else ""
            winner += f"{by}, before {each.runner_up}"
    yield printable(winner)
    yield from _table([_head(each), *(_row(each, row) for row in each.candidates)])
    hidden = each.passed - len(each.candidates)
    if hidden > 0:
        yield f"and {hidden} more"
    weights = " + ".join(f"{weight:g} {_TERMS[name]}" for name, weight in each.weights.items())
    yield f"milliseconds; cost = queued + prefill + decode + {weights}"


def _head(each: Explanation) -> list[str]:
    scored = ["score", *each.candidates[0].scores] if each.measure == "score" else []
    return ["endpoint", "cached", "trust", "sent", *scored, "cost", "ttft", *_TERMS.values()]


def _row(each: Explanation, row: ExplainedCandidate) -> list[str]:
    scored = []
    if each.measure == "score":
        values = (row.score, *row.scores.values())
        scored = ["-" if value is None else f"{value:.3f}" for value in values]
    terms = [f"{row.terms_ms[name]:.1f}" for name in _TERMS]
    return [
        printable(row.endpoint),
        str(row.cached_tokens),
        f"{row.trust:.2f}",
        str(row.requests),
        *scored,
        f"{row.cost_ms:.1f}",
        f"{row.predicted_ttft_ms:.1f}",
        *terms,
    ]


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = [*zip(row, widths, strict=True)]
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        yield "  " + "  ".join(cells)


def _margin(each: Explanation) -> str:
    size = abs(each.margin or 0.0)
    return f"{size:g} ms of cost" if each.measure == "cost" else f"{size:g} of score"


def _ending(ending: EndingView) -> str:
    """Describe how a request ended."""
    parts = [ending.outcome]
    if ending.status is not None:
        parts.append(f"status {ending.status}")
    if (ending.sent_after_ms or 0) >= _WORTH_SAYING_MS:
        parts.append(f"sent after {ending.sent_after_ms:g} ms")
    if ending.ttft_ms is not None:
        parts.append(f"ttft {ending.ttft_ms:g} ms")
    if ending.cached_tokens is not None:
        parts.append(f"{ending.cached_tokens}/{ending.prompt_tokens} cached")
    if ending.duration_ms is not None:
        parts.append(f"{ending.duration_ms:g} ms in all")
    parts += [each for each in (ending.failure, ending.error) if each]
    return ", ".join(parts)
