"""What a failed poll says about the server: that it is not there, or that it is busy.

A host that is there takes connections and acknowledges bytes, however busy its server is.
"""

import ssl
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from epp.adapters.scrape.page_connection import NoAnswer, PageLost
from epp.model.endpoint import Endpoint
from epp.model.events import ScrapeFailure
from epp.system.port import NO_ROOM

_REASONS: Final[Sequence[tuple[type[Exception], ScrapeFailure]]] = (
    (TimeoutError, ScrapeFailure.LATE),
    (ConnectionRefusedError, ScrapeFailure.REFUSED),
    (ssl.SSLError, ScrapeFailure.NO_PAGE),  # something shook hands
    (OSError, ScrapeFailure.BROKEN),
    (NoAnswer, ScrapeFailure.BROKEN),
    (Exception, ScrapeFailure.NO_PAGE),
)
"""By the kind of an error; the first that fits."""
BROKEN: Final = (PageLost, ConnectionResetError)
"""Errors of a server that may be exiting, which the next connection shows."""
_ABSENT: Final = (ScrapeFailure.REFUSED, ScrapeFailure.BROKEN)
EVENTS: Final[Mapping[ScrapeFailure, str]] = {
    ScrapeFailure.REFUSED: "endpoint.unreachable",
    ScrapeFailure.BROKEN: "endpoint.unreachable",
    ScrapeFailure.LATE: "endpoint.metrics_late",
    ScrapeFailure.NO_PAGE: "endpoint.metrics_missing",
}
"""What is logged."""


def failure_of(endpoint: Endpoint, url: str, error: Exception) -> ScrapeFailure:
    """Return what an error of the page at `url` says about an endpoint.

    If another port has the page, its refusal does not say that the endpoint is gone. If there is no
    room for a connection here, nothing is known: the page is late.
    """
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return ScrapeFailure.LATE
    found = next(reason for kind, reason in _REASONS if isinstance(error, kind))
    own = _is_own(endpoint, url)
    return ScrapeFailure.NO_PAGE if found is ScrapeFailure.REFUSED and not own else found


def is_absent(endpoint: Endpoint, url: str, reason: ScrapeFailure) -> bool:
    """Whether a failure says that the endpoint itself is not there, or not yet."""
    return reason in _ABSENT and _is_own(endpoint, url)


def _is_own(endpoint: Endpoint, url: str) -> bool:
    return urlsplit(url).netloc == endpoint.target
