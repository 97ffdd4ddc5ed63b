"""ServeGen's clients (alibaba/ServeGen, data/**): arrivals and lengths of production traffic.

Each client is a file chunk-N-trace.csv of ten-minute windows, with the client's own pattern of
bursts, and a chunk-N-dataset.json of lengths. Both were fitted to a week, of which the busiest hour
is drawn.
"""

import math
import random
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from epp.errors import ConfigError
from epp.replay.traffic.bounds import MAX_REQUESTS, MAX_SECONDS, check_lengths, too_much
from epp.replay.traffic.calls import Call
from epp.replay.traffic.files.source import UNREADABLE, Problems, Source, SourceLine
from epp.replay.traffic.tabular import TimedLengths, exchanges

FILES = "*-trace.csv"
WINDOW_SECONDS = 600
HOUR = 3600
_COLUMNS = 6
_MAX_RATE = MAX_REQUESTS / WINDOW_SECONDS
_MIN_SHAPE = 0.01
"""The least shape of the distribution of pauses; the greatest is its inverse."""
_SHARE = re.compile(r"""(?<![\w.])(\d{1,9})['"]?\s*:\s*([\d.eE+-]+)""")
"""A length, and its share, in a dictionary as Python writes it."""
_INPUTS, _OUTPUTS = ("input_tokens", "text_tokens"), ("output_tokens",)


class _Window(NamedTuple):
    """Ten minutes of a client: when they begin, calls per second, and the pattern of arrivals."""

    start: int
    rate: float
    pattern: str
    shape: float


def read(source: Source, problems: Problems, seed: int) -> list[Call]:
    """Draw an hour of all clients in a folder, or of one in a file. Raises `ConfigError`."""
    files = [source.path]
    if source.is_folder:
        files = sorted(source.path.glob(FILES), key=lambda path: (len(path.name), path.name))
    clients = {path: _windows(path, problems) for path in files}
    load = defaultdict[int, float](float)
    for windows in clients.values():
        for window in windows:
            load[window.start // HOUR] += window.rate
    if not load:
        return []
    busiest = min(load, key=lambda hour: (-load[hour], hour))
    if load[busiest] * WINDOW_SECONDS > MAX_REQUESTS:
        raise too_much(str(source.path))
    draw, rows = random.Random(seed), list[TimedLengths]()
    for path, windows in clients.items():
        chosen = [window for window in windows if window.start // HOUR == busiest]
        if chosen:
            rows += _drawn(chosen, _lengths(path), draw)
    place = str(source.path)
    return exchanges(source, ((place, row) for row in rows), problems)


def is_window(line: bytes) -> bool:
    """Whether a line of CSV is a window of a client: two numbers, and four that may be missing."""
    values = line.split(b",")
    return len(values) == _COLUMNS and values[0].isdigit() and values[3] in _PATTERNS


def _windows(path: Path, problems: Problems) -> list[_Window]:
    found = []
    for line in Source(path).lines(problems):
        try:
            window = _window(line)
        except ValueError as error:
            problems.skip(line.place, "the line is cut off" if line.cut else str(error))
            continue
        if window is not None:
            found.append(window)
    return found


def _window(line: SourceLine) -> _Window | None:
    """Return a window in which requests come."""
    if not is_window(line.text):
        raise ValueError("it is not a window of a client")
    start, rate, _, pattern, shape, _ = line.text.decode().split(",")
    if not 0 <= float(rate) <= _MAX_RATE:
        raise ValueError(f"{rate} is not a rate of requests a second")
    if int(start) > MAX_SECONDS:
        raise ValueError("it begins after a year")
    if not pattern or not float(rate):
        return None
    if not _MIN_SHAPE <= float(shape) <= 1 / _MIN_SHAPE:
        raise ValueError(f"{shape} is not a shape of {pattern}")
    return _Window(int(start), float(rate), pattern, float(shape))


class _Lengths(NamedTuple):
    """Lengths and their shares, valid from a time on."""

    start: int
    inputs: Mapping[int, float]
    outputs: Mapping[int, float]


def _lengths(path: Path) -> list[_Lengths]:
    """Read a client's lengths, whose file is beside that of its windows. Raises `ConfigError`."""
    beside = path.with_name(path.name.replace("-trace.csv", "-dataset.json"))
    try:
        data = msgspec.json.decode(Source(beside).document(), type=dict[str, dict[str, str]])
        found = [
            _Lengths(int(start), _shares(fields, _INPUTS), _shares(fields, _OUTPUTS))
            for start, fields in data.items()
        ]
    except ConfigError as error:
        raise ConfigError(f"{error} (the lengths of {path})") from error
    except (*UNREADABLE, ValueError) as error:
        raise ConfigError(f"{beside} holds no lengths: {error}") from error
    return sorted(each for each in found if each.inputs and each.outputs)


def _shares(fields: Mapping[str, str], names: Sequence[str]) -> Mapping[int, float]:
    text = next((fields[name] for name in names if name in fields), "{}")
    shares = {int(length): float(share) for length, share in _SHARE.findall(text)}
    for length in shares:
        check_lengths(1, length)
    if shares and not 0 < sum(shares.values()) < math.inf:
        raise ValueError("the shares of its lengths add up to 0")
    return shares


def _drawn(
    windows: Sequence[_Window], lengths: Sequence[_Lengths], draw: random.Random
) -> list[TimedLengths]:
    rows: list[TimedLengths] = []
    for window in windows:
        known = [each for each in lengths if each.start <= window.start] or lengths[:1]
        if not known:
            continue
        times = _times(window, draw)
        inputs, outputs = (
            draw.choices(list(shares), list(shares.values()), k=len(times))
            for shares in (known[-1].inputs, known[-1].outputs)
        )
        rows += [
            TimedLengths(at, max(1, prompt), response)
            for at, prompt, response in zip(times, inputs, outputs, strict=True)
        ]
    return rows


def _times(window: _Window, draw: random.Random) -> list[float]:
    """Draw the times in a window, as many as its rate says, with pauses of its pattern."""
    expected = window.rate * WINDOW_SECONDS
    count = int(expected) + (draw.random() < expected % 1)
    # One pause more than requests: the last one is up to the end of the window.
    pauses = [_PATTERNS[window.pattern.encode()](draw, window.shape) for _ in range(count + 1)]
    whole, times, at = sum(pauses) or 1.0, [], 0.0
    for pause in pauses[:-1]:
        at += pause
        times.append(window.start + at / whole * WINDOW_SECONDS)
    return times


_PATTERNS: dict[bytes, Callable[[random.Random, float], float]] = {
    b"": lambda draw, _: draw.expovariate(1.0),
    b"Exponential": lambda draw, _: draw.expovariate(1.0),
    b"Gamma": lambda draw, shape: draw.gammavariate(shape, 1.0),
    b"Weibull": lambda draw, shape: draw.weibullvariate(1.0, shape),
}
