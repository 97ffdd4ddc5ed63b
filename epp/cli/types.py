"""Types of flag values, as argparse calls them: durations, sizes, ports, Go's booleans.

Each raises `argparse.ArgumentTypeError` for a text that it cannot read.
"""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from epp.model.endpoint import LAST_PORT
from epp.quantities import seconds

T = TypeVar("T")

_SIZES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_DEBUG_VERBOSITY = 4
"""The lowest klog level at which llm-d-router logs debug messages."""
_TRUE, _FALSE = {"true", "1", "t", "yes"}, {"false", "0", "f", "no"}


def unless_empty(kind: Callable[[str], T], default: T | None = None) -> Callable[[str], T | None]:
    """Return the type of a flag that an empty value leaves at its default, as llm-d-router's do."""

    def value(text: str) -> T | None:
        return kind(text) if text else default

    return value


def duration(text: str) -> float:
    """Return a Go duration (`500ms`, `30s`, `1m30s`) or plain seconds, in seconds."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    try:
        return seconds(text, zero=True)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def size(text: str) -> int:
    """Return a number of bytes: `65536`, `16Mi`, `1G`."""
    found = re.fullmatch(r"(\d+)(K|M|G|Ki|Mi|Gi)?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"`{text}` is not a size; write 65536, 16Mi or 1G")
    return int(found[1]) * _SIZES[found[2] or ""]


_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)([kKMGT]i?|)[Bb]?")


def quantity(text: str) -> int:
    """Return a size in the syntax of llm-d-router's gRPC flags: `16Mi`, `10MiB`, `25MB`, `1.5G`."""
    found = _QUANTITY.fullmatch(text.strip())
    if not found or found[2] == "ki":
        raise argparse.ArgumentTypeError(f"`{text}` is not a size; write 4194304, 16Mi or 25MB")
    base = 1024 if found[2].endswith("i") else 1000
    return int(float(found[1]) * base ** " KMGT".index(found[2][:1].upper() or " "))


def count(text: str) -> int:
    """Return a number of 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"`{text}` is not a number of 0 or more")
    return int(text)


def up_to(most: int) -> Callable[[str], int]:
    """Return the type of a flag that takes a number of 1 to `most`."""

    def number(text: str) -> int:
        if not re.fullmatch(r"\d{1,18}", text) or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"`{text}` is not a number from 1 to {most:,}")
        return int(text)

    return number


def one_of(*known: str) -> Callable[[str], str]:
    """Return the type of a flag that takes one of some words, in any case."""

    def word(text: str) -> str:
        if text.lower() not in known:
            raise argparse.ArgumentTypeError(f"`{text}` is not one of {', '.join(known)}")
        return text.lower()

    return word


def words(text: str) -> tuple[str, ...]:
    """Return words that are separated by commas."""
    return tuple(filter(None, (part.strip() for part in text.split(","))))


def port_number(text: str) -> int:
    """Return a port; 0 is any free one."""
    if not text.isdecimal() or int(text) > LAST_PORT:
        raise argparse.ArgumentTypeError(f"`{text}` is not a port; write 0 to {LAST_PORT}")
    return int(text)


def interval(text: str) -> float:
    """Return a duration of more than 0, in seconds."""
    found = duration(text)
    if found <= 0:
        raise argparse.ArgumentTypeError(f"`{text}` is not an interval; write 500ms or 1s")
    return found


_MIN_REFRESH = 0.05


def refresh_interval(text: str) -> float:
    """Return a duration in seconds, at least 50 ms."""
    return max(duration(text), _MIN_REFRESH)


def boolean(text: str) -> bool:
    """Return a boolean in one of Go's spellings, or yes or no."""
    if text.lower() not in _TRUE | _FALSE:
        raise argparse.ArgumentTypeError(f"`{text}` is neither true nor false")
    return text.lower() in _TRUE


def verbosity(text: str) -> str:
    """Return the name of the log level for a klog verbosity; one below 0 is the default."""
    if not text.removeprefix("-").isdecimal():
        raise argparse.ArgumentTypeError(f"`{text}` is not a level; write 2, or 4 for more")
    return "debug" if int(text) >= _DEBUG_VERBOSITY else "info"


_ZAP_LEVELS = {"debug": "debug", "info": "info", "warn": "warning", "error": "error"}


def zap_level(text: str) -> str:
    """Return the name of the log level for a level of zap, or for a verbosity."""
    if text.isdecimal():
        return verbosity(text)
    if text.lower() in {"dpanic", "panic", "fatal"}:
        return "error"
    if text.lower() not in _ZAP_LEVELS:
        raise argparse.ArgumentTypeError(f"`{text}` is not a level; write debug, info or error")
    return _ZAP_LEVELS[text.lower()]


_KEY, _VALUE = r"[\w./-]*\w", r"[\w.-]*"
_EQUALITY = re.compile(rf"\s*({_KEY})\s*==?\s*({_VALUE})\s*")
_REQUIREMENT = re.compile(
    rf"\s*(?:!?\s*{_KEY}|{_KEY}\s*(?:!=|==?|[<>])\s*{_VALUE}"
    rf"|{_KEY}\s+(?:in|notin)\s*\(\s*{_VALUE}\s*(?:,\s*{_VALUE}\s*)*\))\s*"
)


def labels(text: str) -> dict[str, str] | str:
    """Return the labels that a selector demands (`app=vllm,role=decode`).

    A selector with other operators than `=` (`env in (a,b),tier!=x,key,!key`) is returned as it
    is: the Kubernetes API evaluates it.
    """
    parts = re.split(r",(?![^()]*\))", text)
    pairs = [_EQUALITY.fullmatch(part) for part in parts]
    if all(pairs):
        return {pair[1]: pair[2] for pair in pairs if pair}
    if not all(map(_REQUIREMENT.fullmatch, parts)):
        raise argparse.ArgumentTypeError(
            f"`{text}` is not a selector; write app=vllm,role=decode or role in (decode,both)"
        )
    return text


def port_list(text: str) -> tuple[int, ...]:
    """Return one or more ports (`8000,8001`), which must not be 0."""
    ports = tuple(port_number(part.strip()) for part in text.split(","))
    if 0 in ports:
        raise argparse.ArgumentTypeError(f"`{text}` has a port 0; write 8000,8001")
    return ports


# Arguments of `add_argument`, by type.
BOOL: dict[str, Any] = {"type": boolean, "nargs": "?", "const": True, "metavar": "BOOL"}
"""`--flag`, `--flag=true` and `--flag=false`, as Go's."""
COUNT: dict[str, Any] = {"type": count, "metavar": "N"}
FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
INTERVAL: dict[str, Any] = {"type": interval, "metavar": "TIME"}
PORT: dict[str, Any] = {"type": port_number, "metavar": "PORT"}
SIZE: dict[str, Any] = {"type": size, "metavar": "SIZE"}
TIME: dict[str, Any] = {"type": duration, "metavar": "TIME"}


def number(most: int) -> dict[str, Any]:
    """Return the arguments of a flag that takes a number from 1 to `most`."""
    return {"type": up_to(most), "metavar": "N"}
