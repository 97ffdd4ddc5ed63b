"""The parts of a request, by the functions that they begin with, and what is counted beside them.

What a part costs is what its functions cost with all that they call, less the parts within it.
"""

import re
from collections import Counter
from collections.abc import Mapping

import msgspec

from bench.exchange.callgrind import Counts


class Part(msgspec.Struct, frozen=True):
    """A part of a request; `functions` is a pattern of whole names.

    `within` names the part that calls them; it is empty for what nothing counted here calls.
    """

    name: str
    functions: str
    within: str = ""


PARTS = (
    Part("HTTP/2", r"__pyx_pw_\w+_\d+(session|http2)_\d+(Session|Stream)_\d+\w+"),
    Part("decode", r"__pyx_pw_\w+_\d+codec_\d+(decode|Decoder_\d+__call__)"),
    Part(
        "encode",
        r"__pyx_pw_\w+_\d+codec_\d+(encode|encode_chunk|chunk|headers_reply|Encoder_\d+__call__)",
    ),
    Part("exchange", r"CPyDef_exchange___Exchange___(receive|proceed|half_closed|cancelled)"),
    Part("exchange", r"CPyDef_(app___)?(director|service)_____mypyc_lambda__\d+_exchange\w+"),
    Part("body", r"CPyDef_(extproc___)?request___Request___(collect|body|read)", "exchange"),
    Part(
        "decide", r"CPyDef_(scheduler___Scheduler|flow_control___FlowControl)___route", "exchange"
    ),
    Part("quote", r"CPyDef_scheduler___Scheduler___quote|CPyDef_fleet___Fleet____ask", "decide"),
    Part("commit", r"CPyDef_fleet___Fleet____admitted", "decide"),
    Part("end", r"CPyDef_exchange___Exchange____(end|settle)", "exchange"),
    Part("telemetry", r"CPyDef_metrics___Telemetry___scheduled", "exchange"),
    Part("telemetry", r"CPyDef_metrics___Telemetry___finished", "end"),
)
NAMES = tuple(dict.fromkeys(part.name for part in PARTS))
REST = "driver, connection, loop"
"""With what they free: all that is in no part."""
_ALLOCATIONS = re.compile(r"_PyObject_Malloc|malloc")
_OBJECTS = re.compile(r"_PyObject_GC_Link")
"""Every object that the collector knows is linked once, unless it comes from a free list."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What one request costs, or one chunk, or one second: instructions by part, and the rest."""

    instructions: float
    allocations: float
    objects: float
    parts: dict[str, float]


def cost_of(counts: Counts, number: int) -> Cost:
    """Share out what was counted of `number` requests."""
    spent = Counter({part.name: 0 for part in PARTS})
    outermost = 0
    for part in PARTS:
        found = _matching(counts.inclusive, re.compile(part.functions))
        spent[part.name] += found
        if part.within:
            spent[part.within] -= found
        else:
            outermost += found
    spent[REST] = counts.instructions - outermost
    return Cost(
        instructions=counts.instructions / number,
        allocations=_matching(counts.calls, _ALLOCATIONS) / number,
        objects=_matching(counts.calls, _OBJECTS) / number,
        parts={name: spent[name] / number for name in (*NAMES, REST)},
    )


def _matching(values: Mapping[str, int], pattern: re.Pattern[str]) -> int:
    return sum(value for name, value in values.items() if pattern.fullmatch(name))
