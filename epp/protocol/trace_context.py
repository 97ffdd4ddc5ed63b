"""W3C Trace Context: the header `traceparent`, and which traces are sampled.

https://www.w3.org/TR/trace-context/ and OpenTelemetry's samplers. Ids are integers.
"""

import re
from typing import Final

import msgspec

TRACEPARENT: Final = "traceparent"
SAMPLED: Final = 1
"""The flag of a trace that is recorded (Trace Context §3.2.2.5.1)."""
_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_FIRST_VERSION: Final = "00"
_INVALID_VERSION: Final = "ff"
LOW_BITS: Final = (1 << 64) - 1
"""The bits of a trace's id that samplers compare with their bounds."""


class ParentSpan(msgspec.Struct, frozen=True):
    """The span that a request belongs to, by its header."""

    trace_id: int
    span_id: int
    flags: int

    @property
    def sampled(self) -> bool:
        """Whether the sender records the trace."""
        return bool(self.flags & SAMPLED)


class BegunSpan(msgspec.Struct, frozen=True):
    """The span of a request whose trace is sampled, from its decision on.

    `parent_id` is 0 for the first span of a trace. `at` is when the request was answered with its
    destination, in seconds of the picker's clock.
    """

    trace_id: int
    span_id: int
    parent_id: int
    flags: int
    at: float


class TraceSampling(msgspec.Struct, frozen=True):
    """Which traces are recorded: a `ratio` (0..1) of them, by their ids.

    `parent_based`: only of those that begin here; others are recorded if their parents are.
    """

    ratio: float
    parent_based: bool = True

    @property
    def bound(self) -> int:
        """A trace is sampled if the low 64 bits of its id are below this (OpenTelemetry)."""
        return round(self.ratio * (1 << 64))


def parse(header: str) -> ParentSpan | None:
    """Return the span in a header; None for a malformed one, which counts as missing."""
    found = _FORM.fullmatch(header)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == _INVALID_VERSION or (version == _FIRST_VERSION and more):
        return None
    parent = ParentSpan(int(trace, 16), int(span, 16), int(flags, 16))
    return parent if parent.trace_id and parent.span_id else None


def traceparent(trace_id: int, span_id: int, flags: int) -> str:
    """Return the header that names a span."""
    return f"{_FIRST_VERSION}-{trace_id:032x}-{span_id:016x}-{flags:02x}"
