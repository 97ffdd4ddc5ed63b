"""Types of the flags of `epp replay`, as argparse calls them.

Each raises `argparse.ArgumentTypeError` for a text that it cannot read.
"""

import argparse
import re
from collections.abc import Callable, Sequence

from epp.replay.plan import Fault, FaultKind

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmM]?)")
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}
_FAULT = re.compile(
    r"(?:pod-)?(?P<pod>\d+):(?P<kind>die|stall|hang|fail|slow)(?:=(?P<factor>\d*\.?\d+))?"
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
            f"`{text}` is no fault; write POD:die@SECONDS[+SECONDS], POD:stall@SECONDS+SECONDS,"
            " POD:hang@SECONDS+SECONDS, POD:fail@SECONDS[+SECONDS] or"
            " POD:slow=FACTOR@SECONDS[+SECONDS]"
        )
    kind = found["kind"]
    if kind in {"stall", "hang"} and found["seconds"] is None:
        raise argparse.ArgumentTypeError(f"`{text}` says not how long; write POD:{kind}@60+5")
    try:
        return Fault(
            pod=int(found["pod"]),
            kind=FaultKind(kind),
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
