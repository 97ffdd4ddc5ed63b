"""The figures that `epp up` shows: those of the last half minute, from the pages of both processes.

The number of requests is Envoy's, which counts them whether the picker was asked or not. The rest
is the picker's.
"""

import math
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping

import msgspec

WINDOW_SECONDS, RECENT_SECONDS = 30.0, 5.0

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)", re.MULTILINE)
_LE = re.compile(r'\ble="([^"]+)"')
_TTFT = "llm_d_epp_request_ttft_seconds_bucket"
_SUMS = {
    "llm_d_epp_ready_endpoints": "healthy",
    "llm_d_epp_request_input_tokens_sum": "prompt_tokens",
    "llm_d_epp_request_cached_tokens_sum": "cached_tokens",
    "llm_d_epp_request_cached_tokens_count": "cached_answers",
}
_STAT = re.compile(r"^http\.gateway\.downstream_rq_(active|total): (\d+)$", re.MULTILINE)


class PickerPage(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of the picker's metrics page.

    `ttft` has for each upper bound, in seconds, how many streamed answers began within it.
    """

    healthy: float = 0
    prompt_tokens: float = 0
    cached_tokens: float = 0
    cached_answers: float = 0
    ttft: dict[float, float] = {}


class ProxyPage(msgspec.Struct, frozen=True):
    """Envoy's count of clients' requests: those under way, and all since its start."""

    active: int = 0
    total: int = 0


class LiveFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the live line; None if they are not known.

    `per_second` is the rate of the last seconds, `ttft` the median of streamed answers in seconds,
    and `cached` the share of prompt tokens that model servers had cached.
    """

    active: int
    per_second: float
    ttft: float | None
    cached: float | None
    healthy: int


def picker_page(text: str) -> PickerPage:
    """Read the page of the picker; series that it lacks are 0."""
    sums = dict.fromkeys(_SUMS.values(), 0.0)
    ttft: dict[float, float] = {}
    for name, labels, value in _SAMPLE.findall(text):
        if name in _SUMS:
            sums[_SUMS[name]] += float(value)
        elif name == _TTFT and 'streaming="true"' in labels and (bound := _LE.search(labels)):
            at = float(bound[1])
            ttft[at] = ttft.get(at, 0.0) + float(value)
    return PickerPage(ttft=ttft, **sums)


def proxy_page(text: str) -> ProxyPage:
    """Read Envoy's `/stats` in its plain form."""
    found = {name: int(value) for name, value in _STAT.findall(text)}
    return ProxyPage(found.get("active", 0), found.get("total", 0))


_NO_PAGES = 0.0, PickerPage(), ProxyPage()


class Window:
    """The pages of the last `WINDOW_SECONDS`, from which it computes figures."""

    def __init__(self) -> None:
        self._pages: deque[tuple[float, PickerPage, ProxyPage]] = deque()

    def add(self, now: float, picker: PickerPage | None, proxy: ProxyPage | None) -> None:
        """Add the pages read at a time, in seconds of a clock; counts of a new process begin at 0.

        In place of a missing page (None), the process's last one is used; if both are missing,
        nothing is added.
        """
        if self._pages and picker is None and proxy is None:
            return
        _, last_picker, last_proxy = self._pages[-1] if self._pages else _NO_PAGES
        picker, proxy = picker or last_picker, proxy or last_proxy
        began_again = (
            proxy.total < last_proxy.total
            or picker.prompt_tokens < last_picker.prompt_tokens
            or picker.ttft.get(math.inf, 0) < last_picker.ttft.get(math.inf, 0)
        )
        if began_again:
            self._pages.clear()
        self._pages.append((now, picker, proxy))
        while now - self._pages[0][0] > WINDOW_SECONDS:
            self._pages.popleft()

    def figures(self) -> LiveFigures:
        """Return the figures as of the last `add`."""
        _, first, _ = self._pages[0]
        now, picker, proxy = self._pages[-1]
        before, _, recent = next(page for page in self._pages if now - page[0] <= RECENT_SECONDS)
        seconds = now - before
        return LiveFigures(
            active=proxy.active,
            per_second=(proxy.total - recent.total) / seconds if seconds else 0.0,
            ttft=median({at: count - first.ttft.get(at, 0) for at, count in picker.ttft.items()}),
            cached=_cached(first, picker),
            healthy=int(picker.healthy),
        )


def _cached(before: PickerPage, after: PickerPage) -> float | None:
    """Return the cached share; None if no server reported one (vLLM does on request)."""
    prompt = after.prompt_tokens - before.prompt_tokens
    if prompt <= 0 or after.cached_answers <= before.cached_answers:
        return None
    return max(0.0, min(1.0, (after.cached_tokens - before.cached_tokens) / prompt))


def median(cumulative: Mapping[float, float]) -> float | None:
    """Return the median of a histogram with cumulative counts by upper bound; None when empty.

    Within a bucket, values are assumed to be spread evenly, as in Prometheus' `histogram_quantile`.
    """
    bounds = sorted(cumulative)
    if not bounds or cumulative[bounds[-1]] <= 0:
        return None
    wanted = cumulative[bounds[-1]] / 2
    place = bisect_left(bounds, wanted, key=cumulative.__getitem__)
    bound, low = bounds[place], bounds[place - 1] if place else 0.0
    if math.isinf(bound):
        return low
    under = cumulative.get(low, 0.0)
    return low + (bound - low) * (wanted - under) / (cumulative[bound] - under)


def status_line(figures: LiveFigures, servers: int, *, picking: bool) -> str:
    """Return the live line; if not `picking`, requests bypass the picker."""
    parts = [
        f"{figures.active} under way",
        f"{figures.per_second:.1f}/s",
        f"TTFT p50 {_time(figures.ttft)}",
        "cached -" if figures.cached is None else f"cached {figures.cached:.0%}",
        f"{figures.healthy} of {servers} healthy",
    ]
    if not picking:
        parts[2:] = ["no picker: servers take turns"]
    return ", ".join(parts)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
