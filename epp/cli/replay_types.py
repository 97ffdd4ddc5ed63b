"""Types of the flags of `epp replay`, as argparse calls them.

Each raises `argparse.ArgumentTypeError` for a text that it cannot read.
"""

import argparse
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from epp.cli.types import up_to
from epp.replay.plan import Fault, FaultKind

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmM]?)")
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}
_FAULT = re.compile(
    r"(?:pod-)?(?P<pod>\d{1,9}):(?P<kind>die|stall|hang|fail|late|slow)"
    r"(?:=(?P<value>\d*\.?\d+))?"
    r"@(?P<at>[\d.]+)(?:\+(?P<seconds>[\d.]+))?"
)
_MOST = 1_000_000_000
"""The largest number of anything: seconds, tokens, sequences."""
MAX_PODS = 10_000
_MIN_FACTOR, _MAX_FACTOR = 1e-6, 1e6


def tokens(text: str) -> int:
    """Return a number of tokens: `400000`, `400K`, `1.6M`."""
    found = _AMOUNT.fullmatch(text)
    number = float(found[1]) * _UNITS[found[2].lower()] if found else 0.0
    if not 1 <= number <= _MOST:
        raise argparse.ArgumentTypeError(f"`{text}` is not a number of tokens; write 400K or 1.6M")
    return int(number)


positive = up_to(_MOST)
POSITIVE: dict[str, Any] = {"type": positive, "metavar": "N"}


def seed(text: str) -> int:
    """Return a seed, 0 or more: -1 would draw the same as 1."""
    if not re.fullmatch(r"\d{1,18}", text):
        raise argparse.ArgumentTypeError(f"`{text}` is not a seed, which is a number from 0")
    return int(text)


def factor(text: str) -> float:
    """Return a number above 0, within bounds."""
    if not re.fullmatch(r"\d*\.?\d+", text) or not _MIN_FACTOR <= float(text) <= _MAX_FACTOR:
        raise argparse.ArgumentTypeError(
            f"`{text}` is not a number from {_MIN_FACTOR:f} to {_MAX_FACTOR:,.0f}"
        )
    return float(text)


def listed(kind: Callable[[str], float]) -> Callable[[str], Sequence[float]]:
    """Return the type of a flag that takes several values, with commas."""
    return lambda text: [kind(part) for part in text.split(",")]


def span(text: str) -> tuple[float, float]:
    """Return the first and the last minute of a span: `20-31`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)", text)
    if not found or float(found[1]) >= float(found[2]):
        raise argparse.ArgumentTypeError(f"`{text}` is not a span of minutes; write 20-31")
    return float(found[1]), float(found[2])


def fault(text: str) -> Fault:
    """Return the fault of a pod: `3:die@600+120`, `0:stall@60+5`, `1:slow=0.4@300`."""
    found = _FAULT.fullmatch(text)
    kind, value = (found["kind"], found["value"]) if found else ("", None)
    fits = {"slow": value is not None, "late": value is None or value.isdecimal()}
    if not found or not fits.get(kind, value is None):
        raise argparse.ArgumentTypeError(
            f"`{text}` is not a fault; write POD:die@SECONDS[+SECONDS], POD:stall@SECONDS+SECONDS,"
            " POD:hang@SECONDS+SECONDS, POD:fail@SECONDS[+SECONDS],"
            " POD:late[=RUNNING]@SECONDS[+SECONDS] or POD:slow=FACTOR@SECONDS[+SECONDS]"
        )
    if kind in {"stall", "hang"} and found["seconds"] is None:
        raise argparse.ArgumentTypeError(f"`{text}` does not say how long; write POD:{kind}@60+5")
    return Fault(
        pod=int(found["pod"]),
        kind=FaultKind(kind),
        at=_seconds(found["at"], text),
        seconds=None if found["seconds"] is None else _seconds(found["seconds"], text),
        factor=factor(value or "1") if kind == "slow" else 1.0,
        running=min(int(value), _MOST) if kind == "late" and value is not None else None,
    )


def _seconds(time: str, text: str) -> float:
    try:
        seconds = float(time)
    except ValueError:
        seconds = math.inf
    if seconds > _MOST:
        raise argparse.ArgumentTypeError(f"`{text}` has a time that is not a number of seconds")
    return seconds


def roles(text: str) -> Sequence[str]:
    """Return a role for each pod: `prefill=2,decode=6`."""
    found = [re.fullmatch(r"([a-z-]+)=(\d{1,5})", part) for part in text.split(",")]
    numbers = [int(each[2]) for each in found if each]
    if not all(found) or not 0 < sum(numbers) <= MAX_PODS:
        raise argparse.ArgumentTypeError(
            f"`{text}` is not a list of roles; write prefill=2,decode=6"
        )
    return [each[1] for each in found if each for _ in range(int(each[2]))]


def slo(text: str) -> tuple[float, float]:
    """Return the seconds of TTFT and of TPOT of an objective: `ttft=2,tpot=0.05`."""
    found = re.fullmatch(r"ttft=(\d*\.?\d+)(?:,tpot=(\d*\.?\d+))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"`{text}` is not an objective; write ttft=2,tpot=0.05")
    return float(found[1]), float(found[2] or "inf")
