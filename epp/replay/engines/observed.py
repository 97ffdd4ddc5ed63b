"""How long engines took, read from their metrics pages or from a log of requests."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from epp.errors import ConfigError
from epp.protocol.metrics.page import Page
from epp.replay.engines.contract import Limits
from epp.replay.traffic.bounds import MAX_TOKENS
from epp.replay.traffic.files.packed import broken, opened
from epp.replay.traffic.files.source import UNREADABLE, Problems, Source

_PREFIX = b"vllm:"
_PREFILL = "request_prefill_time_seconds"
_FIRST = "time_to_first_token_seconds"
_COMPUTED = "request_prefill_kv_computed_tokens"
_BETWEEN = ("inter_token_latency_seconds", "time_per_output_token_seconds")
"""The second is the name before vLLM 0.11."""
_TOTALS = ("prompt_tokens_total", "generation_tokens_total", "prefix_cache_hits_total")
_RUNNING = "num_requests_running"
_HISTOGRAMS = (_PREFILL, _FIRST, _COMPUTED, *_BETWEEN)
_MAX_PAGE_BYTES = 64 << 20
_DIGITS = 10
_CONFIG = b"vllm:cache_config_info"


_MIN_SECONDS, _MAX_SECONDS, _MAX_RUNNING = 1e-6, 1e6, 1e6
_Seconds = Annotated[float, Meta(ge=_MIN_SECONDS, le=_MAX_SECONDS)]


class Measurement(NamedTuple):
    """One request, or the mean of several; times in seconds, NaN if they are unknown.

    `uncached` tokens of the prompt were computed in `prefill`, `cached` ones were not. A token
    after the first took `between`, with `running` requests that look back at `context` each.
    """

    uncached: float
    cached: float
    prefill: float
    between: float
    running: float
    context: float


class Observed(NamedTuple):
    """What was read. `queued`: the prefill times may include waiting."""

    rows: Sequence[Measurement]
    queued: bool
    limits: Limits | None = None


class _LogRow(msgspec.Struct, frozen=True):
    """A line of a log: tokens, and times in seconds."""

    prompt_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
    ttft: _Seconds
    cached_tokens: Annotated[int, Meta(ge=0)] = 0
    tpot: _Seconds | None = None
    completion_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 0
    running: Annotated[float, Meta(ge=1, le=_MAX_RUNNING)] = 1.0


def read_observed(paths: Sequence[Path]) -> Observed:
    """Read metrics pages of one server, the oldest first, or logs of requests.

    Raises `ConfigError` that names what is wrong, and where.
    """
    if not paths:
        raise ConfigError("nothing to calibrate with: give metrics pages, or a log of requests")
    logs = [path for path in paths if _is_log(path)]
    if logs and len(logs) < len(paths):
        (page, *_) = [path for path in paths if path not in logs]
        raise ConfigError(f"{page} is a metrics page and {logs[0]} a log: give one or the other")
    if logs:
        return Observed([row for path in logs for row in _log_rows(path)], queued=True)
    return _read_pages(paths)


def _is_log(path: Path) -> bool:
    """Return whether a file has lines of JSON."""
    head = _read(path, 64).lstrip()
    if not head:
        raise ConfigError("is empty: neither a metrics page nor a log of requests", str(path))
    return not head.startswith((b"#", _PREFIX)) and not head[:1].isalpha()


def _read(path: Path, most: int) -> bytes:
    """Read the first bytes of a file."""
    with opened(path) as file:
        try:
            return file.read(most)
        except broken() as error:
            raise ConfigError(f"is cut off or damaged: {error}", str(path)) from error


def _log_rows(path: Path) -> Iterator[Measurement]:
    found = False
    for line in Source(path).lines(Problems(strict=True)):
        found = True
        try:
            row = msgspec.json.decode(line.text, type=_LogRow)
        except UNREADABLE as error:
            fields = ", ".join(_LogRow.__struct_fields__)
            raise ConfigError(f"{error} (a line has {fields})", line.place) from error
        if row.cached_tokens >= row.prompt_tokens:
            raise ConfigError(
                f"{row.cached_tokens} of {row.prompt_tokens} tokens are cached, but the last one is"
                " always computed",
                line.place,
            )
        yield Measurement(
            row.prompt_tokens - row.cached_tokens,
            row.cached_tokens,
            row.ttft,
            math.nan if row.tpot is None else row.tpot,
            row.running,
            row.prompt_tokens + row.completion_tokens / 2,
        )
    if not found:
        raise ConfigError("has no lines: a log has one for each request", str(path))


def _read_pages(paths: Sequence[Path]) -> Observed:
    pages = [(path, Page(_read(path, _MAX_PAGE_BYTES))) for path in paths]
    counts = [(path, _counts(path, page)) for path, page in pages]
    if len(counts) == 1:
        path, only = counts[0]
        before = dict.fromkeys(only, 0.0) | {_RUNNING: only.get(_RUNNING, 0.0)}
        counts = [(path, before), (path, only)]
    spans = [(path, earlier, later) for (_, earlier), (path, later) in pairwise(counts)]
    rows = [_mean(path, earlier, later) for path, earlier, later in spans]
    queued = _PREFILL + "_sum" not in counts[0][1]
    return Observed(rows, queued, _limits(pages[-1][1]))


def _counts(path: Path, page: Page) -> dict[str, float]:
    """Return a page's counters, summed over its engines, and how many requests each engine runs."""
    names = [f"{each}_{part}" for each in _HISTOGRAMS for part in ("sum", "count")]
    found: dict[str, float] = {}
    for name in (*names, *_TOTALS, _RUNNING):
        values = [
            sample[0]
            for sample in page.samples(_PREFIX + name.encode(), frozenset())
            if sample is not None
        ]
        if values:
            found[name] = sum(values) / (len(values) if name == _RUNNING else 1)
    needed = {
        "vllm:request_prefill_time_seconds or vllm:time_to_first_token_seconds": (
            f"{_PREFILL}_sum" in found or f"{_FIRST}_sum" in found
        ),
        "vllm:prompt_tokens_total": "prompt_tokens_total" in found,
    }
    missing = [name for name, there in needed.items() if not there]
    if missing:
        raise ConfigError(
            f"has no {', no '.join(missing)}: is it the /metrics of a vLLM server that runs"
            " without --disable-log-stats?",
            str(path),
        )
    return found


def _mean(path: Path, earlier: Mapping[str, float], later: Mapping[str, float]) -> Measurement:
    """Return the mean of the requests between two pages."""

    def more(name: str) -> float:
        return later.get(name, math.nan) - earlier.get(name, 0.0)

    first = _PREFILL if f"{_PREFILL}_sum" in later else _FIRST
    requests = more(f"{first}_count")
    if requests < 0 or more("prompt_tokens_total") < 0:
        raise ConfigError("counts less than the page before: was the server restarted?", str(path))
    if not requests:
        raise ConfigError("counts no request, or none since the page before", str(path))
    prompt = more("prompt_tokens_total") / requests
    computed = more(f"{_COMPUTED}_sum") / (more(f"{_COMPUTED}_count") or math.nan)
    if math.isnan(computed):
        computed = prompt - (more("prefix_cache_hits_total") / requests or 0.0)
    if not computed > 0:
        computed = prompt
    between = next((each for each in _BETWEEN if f"{each}_sum" in later), _BETWEEN[0])
    tokens = more(f"{between}_count")
    running = (earlier.get(_RUNNING, 0.0) + later.get(_RUNNING, 0.0)) / 2
    generated = more("generation_tokens_total") / requests
    found = Measurement(
        computed,
        max(0.0, prompt - computed),
        more(f"{first}_sum") / requests,
        more(f"{between}_sum") / tokens if tokens > 0 else math.nan,
        max(1.0, running),
        prompt + (0.0 if math.isnan(generated) else generated / 2),
    )
    times = [found.prefill] if math.isnan(found.between) else [found.prefill, found.between]
    lengths = (found.uncached, found.cached, found.context)
    if not (
        all(_MIN_SECONDS <= each <= _MAX_SECONDS for each in times)
        and all(0 <= each <= MAX_TOKENS for each in lengths)
        and found.running <= _MAX_RUNNING
    ):
        raise ConfigError("has impossible counts: times or lengths beyond reason", str(path))
    return found


def _limits(page: Page) -> Limits | None:
    """Return what the page says about the cache; None if it says nothing."""
    wanted = frozenset((b"block_size", b"num_gpu_blocks"))
    for sample in page.samples(_CONFIG, wanted):
        if sample is None:
            continue
        labels = sample[1]
        numbers = [labels.get(name, b"") for name in (b"block_size", b"num_gpu_blocks")]
        if all(each.isdigit() and len(each) < _DIGITS for each in numbers):
            size, blocks = map(int, numbers)
            if size > 0 and blocks > 1:
                return Limits(block_size=size, num_gpu_blocks=blocks)
    return None
