"""Durations, quantities and booleans as configurations write them: Go's and Kubernetes' forms."""

import re

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)"
_DURATION = re.compile(f"(?:{_PART})+")
_LONGEST = 9.2e9
"""Seconds of Go's longest duration, 292 years."""
_SCALES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_SCALES |= {f"{prefix}i": 1 << 10 * power for power, prefix in enumerate("KMGTPE", 1)}
_QUANTITY = re.compile(
    r"(\d{1,18}(?:\.\d{1,9})?)(?:[eE]([-+]?(?:\d|1[0-8]))|(k|[MGTPE]|[KMGTPE]i|))"
)

SWITCHES = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
"""Go's booleans, in lower case."""


def seconds(text: str, *, zero: bool = False) -> float:
    """Return a Go duration (`500ms`, `1m30s`) in seconds.

    Raises `ValueError` for anything else, for what is too long for Go, and for no time at all
    unless `zero` is allowed.
    """
    if zero and text == "0":
        return 0.0
    if not _DURATION.fullmatch(text):
        raise ValueError(f"`{text}` is not a duration; write 500ms, 5s or 1m30s")
    total = sum(float(value) * _UNITS[unit] for value, unit in re.findall(_PART, text))
    if total > _LONGEST:
        raise ValueError(f"`{text}` is longer than 292 years")
    if total <= 0 and not zero:
        raise ValueError(f"`{text}` must be above 0")
    return total


def quantity(value: str | float) -> int:
    """Return a Kubernetes quantity (`16Mi`, `1k`, `1e9`, `65536`) as a number, rounded up.

    Raises `ValueError` for anything else, and below 0.
    """
    found = _QUANTITY.fullmatch(str(value))
    if found is None:
        raise ValueError(f"`{value}` is not a quantity; write 1000, 1k or 16Mi")
    scale = 10.0 ** int(found[2]) if found[2] else _SCALES[found[3]]
    return -int(-float(found[1]) * scale // 1)
