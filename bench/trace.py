"""The calls of one exchange, from Envoy's first message to the end of the response, from source.

    python -m bench trace

Compiled modules show no calls, so the exchange runs in a process of its own with
WARMPICK_NATIVE=off. The rows are the modules in the order in which the exchange enters them.
"""

import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from types import FrameType

import msgspec

import epp
from bench.child import printed
from bench.figures import Report, single
from bench.options import Options
from bench.progress import Progress

_ENDPOINTS, _BYTES = 10, 2 << 10
_WARM = 39
"""Exchanges before the one that is traced: learned lengths and open caches are the usual case."""
NOTES = (
    f"One chat completion of {_BYTES:,} bytes with a JSON response, {_ENDPOINTS} endpoints.",
    "Calls of Python functions in the package epp, in pure Python; bytes in, bytes out.",
)


async def measure(progress: Progress, options: Options) -> Report:
    """Trace one exchange; the counts do not vary, so `options` change nothing."""
    del options
    progress.step("one exchange, function by function")
    calls = await printed(__name__, list[str], WARMPICK_NATIVE="off", PYTHONHASHSEED="0")
    modules = Counter(calls)
    figures = (
        single("calls", "calls of functions", "", len(calls)),
        single("modules", "modules that are entered", "", len(modules)),
        *(single(name, "calls into this module", "", count) for name, count in modules.items()),
    )
    return Report(name="trace", figures=figures, notes=NOTES)


def traced() -> list[str]:
    """Return the module of every call of one exchange, in order."""
    from bench.request_path import Messages, RequestPath, bodies  # noqa: PLC0415 (child only)
    from epp.adapters.telemetry.logs import configure_logs  # noqa: PLC0415

    configure_logs("error", "json")
    path = RequestPath(_ENDPOINTS)
    *before, last = [Messages.about(body) for body in islice(bodies(_BYTES), _WARM + 1)]
    for each in before:
        path.exchange(each)
    root = Path(epp.__file__).parent
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        source = Path(frame.f_code.co_filename)
        if event == "call" and source.is_relative_to(root):
            calls.append(".".join(source.relative_to(root).with_suffix("").parts))

    sys.setprofile(note)
    path.exchange(last)
    sys.setprofile(None)
    return calls


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(traced()))
