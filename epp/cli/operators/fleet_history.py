"""The rows of `epp top`: the endpoints now, and their responses of the last minute."""

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from operator import sub
from typing import Final

import msgspec

from epp.app.observing.fleet_view import EndpointsPage, EndpointView

WINDOW_SECONDS: Final = 60.0


class FleetRow(msgspec.Struct, frozen=True):
    """One endpoint. `hits` and `error` are shares of prompt tokens; None without a response."""

    now: EndpointView
    hits: float | None
    """The share that the engine had cached, of prompts answered in the window."""
    error: float | None
    """How far that was from the prediction."""
    responses: int
    """Responses in the window."""


class FleetColumn(msgspec.Struct, frozen=True):
    """A column: its head, the text of a cell, and what it is sorted by."""

    head: str
    text: Callable[[FleetRow], str]
    key: Callable[[FleetRow], float | str]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _age(row: FleetRow) -> str:
    return "never" if row.now.report_age is None else f"{row.now.report_age:.1f} s ago"


def _fill(row: FleetRow) -> float:
    return row.now.cached_tokens / row.now.cache_tokens if row.now.cache_tokens else 0.0


COLUMNS: Final = (
    FleetColumn("endpoint", lambda row: row.now.endpoint, lambda row: row.now.endpoint),
    FleetColumn("state", lambda row: row.now.state, lambda row: row.now.state),
    FleetColumn(
        "metrics",
        _age,
        lambda row: inf if row.now.report_age is None else row.now.report_age,
    ),
    FleetColumn("waiting", lambda row: f"{row.now.waiting:g}", lambda row: row.now.waiting),
    FleetColumn("running", lambda row: f"{row.now.running:g}", lambda row: row.now.running),
    FleetColumn("sent", lambda row: str(row.now.requests), lambda row: row.now.requests),
    FleetColumn(
        "prefill",
        lambda row: f"{row.now.queued_prefill_ms:.0f} ms",
        lambda row: row.now.queued_prefill_ms,
    ),
    FleetColumn("kv used", lambda row: _share(row.now.kv_usage), lambda row: row.now.kv_usage),
    FleetColumn("cache full", lambda row: _share(_fill(row)), _fill),
    FleetColumn("hits", lambda row: _share(row.hits), lambda row: _known(row.hits)),
    FleetColumn("error", lambda row: _share(row.error), lambda row: _known(row.error)),
    FleetColumn("trust", lambda row: f"{row.now.trust:.2f}", lambda row: row.now.trust),
    FleetColumn(
        "speed",
        lambda row: f"{row.now.prefill_tokens_per_second:,.0f} t/s",
        lambda row: row.now.prefill_tokens_per_second,
    ),
    FleetColumn("answers", lambda row: str(row.responses), lambda row: row.responses),
)


def _known(value: float | None) -> float:
    return -1.0 if value is None else value


class FleetHistory:
    """The pages of the last minute, two at least."""

    def __init__(self) -> None:
        self._pages: deque[EndpointsPage] = deque()

    def add(self, page: EndpointsPage) -> None:
        """Add a page; after a restart of the picker, drop the earlier ones."""
        last = self._pages[-1] if self._pages else page
        if page.at < last.at or page.decisions < last.decisions:
            self._pages.clear()
        self._pages.append(page)
        while len(self._pages) > 2 and page.at - self._pages[0].at > WINDOW_SECONDS:  # noqa: PLR2004 (a difference)
            self._pages.popleft()

    def rows(self, column: FleetColumn, *, reverse: bool) -> Sequence[FleetRow]:
        """Return the current rows, sorted by a column, then by name."""
        if not self._pages:
            return ()
        before: dict[str, EndpointView] = {}
        if len(self._pages) > 1:
            before = {each.endpoint: each for each in self._pages[0].endpoints}
        rows = [_row(each, before.get(each.endpoint)) for each in self._pages[-1].endpoints]
        rows.sort(key=lambda row: row.now.endpoint)
        return sorted(rows, key=column.key, reverse=reverse)

    @property
    def decisions_per_second(self) -> float:
        """The rate of decisions over the window."""
        if len(self._pages) < 2:  # noqa: PLR2004 (a difference)
            return 0.0
        first, last = self._pages[0], self._pages[-1]
        return (last.decisions - first.decisions) / max(1e-3, last.at - first.at)


def _row(now: EndpointView, before: EndpointView | None) -> FleetRow:
    """Return the row of an endpoint: the difference to `before`, or all of a new one's counts."""
    past = (0, 0, 0, 0)
    if before is not None and now.responses >= before.responses:  # neither new nor restarted
        past = _counts(before)
    responses, prompt, cached, error = map(sub, _counts(now), past)
    if prompt <= 0:
        return FleetRow(now, None, None, responses)
    return FleetRow(now, cached / prompt, error / prompt, responses)


def _counts(view: EndpointView) -> tuple[int, int, int, int]:
    return view.responses, view.prompt_tokens, view.cached_prompt_tokens, view.error_tokens
