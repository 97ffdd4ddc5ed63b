"""A page that is polled at every endpoint: its address, how often it is read, and its readers."""

import ssl
from collections.abc import Callable

import msgspec

from epp.adapters.scrape.page_client import H2C as H2C_SCHEME
from epp.adapters.scrape.page_client import unverified
from epp.adapters.scrape.page_readers import LoadReader, MakeReader
from epp.model.endpoint import H2C, HTTPS, Endpoint, target_of
from epp.protocol.metrics.metric_names import BUILT_IN_ENGINES, EngineCatalog

TEXT = "text/plain;version=0.0.4"
"""Prometheus text format 0.0.4, "Content-Type": `text/plain; version=0.0.4`."""
JSON = "application/json"

_SCHEMES = {H2C: H2C_SCHEME, HTTPS: "https"}


class ScrapeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times (in seconds) and limits of polling, and the address of the page at an endpoint.

    At the endpoint's target, the page is read over the endpoint's `app_protocol`.
    """

    interval: float = 1.0
    """How often a server is polled."""
    retry: float = 2.0
    """How often a failing server is polled, if that is longer."""
    late: float = 1.0
    """After how long a page is late; also limits connecting without TLS."""
    timeout: float = 10.0
    """After how long a poll is given up."""
    max_bytes: int = 4 * 2**20
    """The longest page; a longer one is a failure."""
    scheme: str = "http"
    """`http`, unless the endpoint's protocol says otherwise, or `https`."""
    path: str = "/metrics"
    """The page's path."""
    port: int | None = None
    """The port at the endpoint's address; None: the page is at `metrics_host`, or the target."""
    use_node_address: bool = False
    """With a port: the page is at the address of the endpoint's node, if that is known."""

    def url(self, endpoint: Endpoint) -> str:
        """Return the URL of an endpoint's page."""
        host = endpoint.metrics_host or endpoint.target
        if self.port is not None:
            node = endpoint.node_address if self.use_node_address else ""
            host = target_of(node or endpoint.address, self.port)
        scheme = self.scheme
        if (scheme, host) == ("http", endpoint.target):
            scheme = _SCHEMES.get(endpoint.app_protocol, scheme)
        return f"{scheme}://{host}{self.path}"


class PageSource(msgspec.Struct, frozen=True, kw_only=True):
    """A page that is polled at every endpoint, and its readers.

    `name` is in the logs, `accept` is the type of the page. `engines` are those whose pages are
    known. `tls` returns what a connection of `https` is made with. `vital`: an endpoint whose
    page fails counts as failed itself.
    """

    name: str = "metrics-data-source"
    settings: ScrapeSettings = ScrapeSettings()
    read: MakeReader = LoadReader
    engines: EngineCatalog = BUILT_IN_ENGINES
    tls: Callable[[], ssl.SSLContext] = unverified
    accept: str = TEXT
    vital: bool = True
