"""Bounds on the part of the metrics page that clients control: label values, and its length."""

from collections.abc import Hashable, Iterable
from hashlib import blake2b
from math import inf
from typing import Final, Generic, TypeVar

OTHER: Final = "other"
FLOW_BYTES: Final = 2_750_000
"""Bytes of a page for the series of requests; the rest of 5 MB is for a pool of 1,000 endpoints."""
IDLE_SECONDS: Final = 600.0
"""After this idle time names may lose their series to others."""
_MAX_CHARACTERS: Final = 64
_DIGEST_BYTES: Final = 4
_KEPT: Final = _MAX_CHARACTERS - 2 * _DIGEST_BYTES - 1

# What `families` makes of one flow, counted on a page; the tests compare.
_LINES: Final = 314
_LINE_BYTES: Final = 64
_ALIAS_LINES: Final = 165
_ALIAS_LINE_BYTES: Final = 68
_FLOW_LABELS: Final = 62
_ALIAS_LABELS: Final = 35

Flow = tuple[str, str, str, str]
"""Label values: model name, target model name, fairness id, priority."""

Key = TypeVar("Key", bound=Hashable)


class Idle(Generic[Key]):
    """Finds keys to forget: those not counted for `IDLE_SECONDS`, by looking that often."""

    def __init__(self) -> None:
        self._looked_at = -inf
        self._counts: dict[Key, int] = {}

    def among(self, counts: Iterable[tuple[Key, int]], now: float, *, full: bool) -> set[Key]:
        """Return the keys whose count is that of the last look; their counts then start again.

        Returns none if the last look was recent, or while there is room for others.
        """
        if now - self._looked_at < IDLE_SECONDS:
            return set()
        before, self._counts, self._looked_at = self._counts, dict(counts), now
        if not full:
            return set()
        idle = {key for key, times in self._counts.items() if before.get(key) == times}
        for key in idle:  # it may come back, and be counted as often by the next look
            del self._counts[key]
        return idle


def label(value: str) -> str:
    """Return the label value for a name that a client chose; `other` if it is not printable.

    A name of more than 64 characters is cut to 55, followed by `~` and a digest of all. Surrogates,
    which stand for bytes that are not UTF-8, and line breaks are not printable.
    """
    if not value.isprintable():
        return OTHER
    if len(value) <= _MAX_CHARACTERS:
        return value
    digest = blake2b(value.encode(), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{value[:_KEPT]}~{digest}"


class FlowBytes:
    """An upper bound of the bytes that flows take of a page; at most `FLOW_BYTES`.

    Deprecated families have one series for all flows of the same two models.
    """

    def __init__(self) -> None:
        self._taken = 0
        self._pairs: dict[tuple[str, str], int] = {}

    def fits(self, flow: Flow, share: float = 1.0) -> bool:
        """Whether that share of the room has place for one more flow."""
        first = (flow[0], flow[1]) not in self._pairs
        return self._taken + _flow_bytes(flow, alone=first) <= FLOW_BYTES * share

    def take(self, flow: Flow) -> None:
        """Count a flow."""
        pair = (flow[0], flow[1])
        flows = self._pairs.get(pair, 0)
        self._pairs[pair] = flows + 1
        self._taken += _flow_bytes(flow, alone=flows == 0)

    def give_back(self, flow: Flow) -> None:
        """Stop counting a flow."""
        pair = (flow[0], flow[1])
        left = self._pairs.pop(pair) - 1
        if left:
            self._pairs[pair] = left
        self._taken -= _flow_bytes(flow, alone=left == 0)


def _flow_bytes(flow: Flow, *, alone: bool) -> int:
    models = _written(flow[0]) + _written(flow[1])
    labels = models + _written(flow[2]) + _written(flow[3])
    taken = _LINES * (_LINE_BYTES + _FLOW_LABELS + labels)
    if alone:
        taken += _ALIAS_LINES * (_ALIAS_LINE_BYTES + _ALIAS_LABELS + models)
    return taken


def _written(value: str) -> int:
    """Return the bytes of a value on the page, where quotes and backslashes are escaped."""
    return len(value.encode()) + value.count('"') + value.count("\\")
