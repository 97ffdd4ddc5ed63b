"""Builds the pollers of endpoints' pages from the configuration's data layer."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from epp.adapters.scrape.client_tls import ClientTlsSettings, client_tls
from epp.adapters.scrape.page_readers import (
    LoadReader,
    MakeReader,
    ModelsReader,
    NumbersReader,
    SeveralReaders,
)
from epp.adapters.scrape.page_source import JSON, TEXT, PageSource, ScrapeSettings
from epp.adapters.scrape.scraper import Scraper
from epp.adapters.telemetry import families
from epp.adapters.telemetry.series import FamilyText, expose
from epp.app.process import file_of
from epp.config.data_layer import DataLayerSettings, PolledPages
from epp.model.endpoint import Endpoint, EndpointId
from epp.model.events import Event
from epp.policy.attributes import CORE_EXTRACTOR
from epp.policy.flow.settings import stale_after


class DataSources:
    """Polls the pages of all sources of watched endpoints.

    `interval`, in seconds, is that of sources without their own; a page that does not answer is
    polled every `retry` seconds if that is longer. A load that is older than `stale_after` seconds
    is stale. Raises `ConfigError` for certificates that cannot be used.
    """

    def __init__(
        self,
        settings: DataLayerSettings,
        interval: float,
        apply: Callable[[Event], None],
        clock: Callable[[], float],
        *,
        retry: float = 2.0,
    ) -> None:
        self._scrapers = [
            Scraper(apply, clock, _page_source(each, interval, retry)) for each in settings.pages
        ]
        self._kinds: dict[str, list[Scraper]] = {}
        for pages, scraper in zip(settings.pages, self._scrapers, strict=True):
            self._kinds.setdefault(pages.source.kind, []).append(scraper)
        self._vital = next((each for each in self._scrapers if each.source.vital), None)
        every = self._vital.source.settings.interval if self._vital is not None else 0.0
        self.stale_after: Final = stale_after(every)

    def watch(self, endpoint: Endpoint) -> None:
        """Poll an endpoint's pages; another engine under the same id starts from nothing."""
        for each in self._scrapers:
            each.watch(endpoint)

    def unwatch(self, endpoint_id: EndpointId) -> None:
        """Stop polling an endpoint; no event of it follows."""
        for each in self._scrapers:
            each.unwatch(endpoint_id)

    def poll_now(self, endpoint_id: EndpointId) -> None:
        """Poll an endpoint that may be gone at once, but not more often than every 0.25 s."""
        if self._vital is not None:
            self._vital.poll_now(endpoint_id)

    async def polled_once(self, seconds: float) -> None:
        """Wait until every endpoint that is watched was polled, for at most `seconds`."""
        if self._vital is not None:
            await self._vital.polled_once(seconds)

    async def answered(self, endpoint_id: EndpointId) -> None:
        """Wait until each page of an endpoint was read, or fails although the endpoint is there."""
        for each in self._scrapers:
            await each.answered(endpoint_id)

    def collect(self) -> Iterator[FamilyText]:
        """Yield the families of failed polls and of pages that could not be used."""
        kinds = self._kinds.items()
        failed = [((kind,), sum(each.errors for each in found)) for kind, found in kinds]
        yield from expose(families.POLL_ERRORS, failed)
        unknown = [
            ((kind, CORE_EXTRACTOR), sum(each.unknown for each in found)) for kind, found in kinds
        ]
        yield from expose(families.EXTRACT_ERRORS, [each for each in unknown if each[1]])

    async def run(self) -> None:
        """Poll until cancelled; never returns."""
        async with asyncio.TaskGroup() as tasks:
            for each in self._scrapers:
                each.start(tasks)
            try:
                await asyncio.Event().wait()
            finally:
                for each in self._scrapers:
                    each.stop()


def _page_source(pages: PolledPages, interval: float, retry: float) -> PageSource:
    source, (port, on_node) = pages.source, pages.source.port_and_node
    # Endpoints may speak https themselves.
    tls = ClientTlsSettings(verify=not source.insecure_skip_verify)
    if source.scheme == "https":
        tls = msgspec.structs.replace(tls, **source.certificates._asdict())
    with file_of(pages.name):
        context = client_tls(tls)
    return PageSource(
        name=pages.name,
        settings=ScrapeSettings(
            interval=source.every or interval,
            retry=retry,
            max_bytes=source.most_bytes,
            scheme=source.scheme,
            path=source.url_path,
            port=port,
            use_node_address=on_node,
        ),
        read=_reader(tuple(_readers(pages))),
        engines=pages.engines,
        tls=context,
        accept=JSON if source.content == "models" else TEXT,
        vital=pages.vital,
    )


def _readers(pages: PolledPages) -> Iterator[MakeReader]:
    if pages.load or pages.attributes:
        yield partial(LoadReader, attributes_only=pages.attributes)
    if pages.numbers:
        yield partial(NumbersReader, metrics=pages.numbers)
    if pages.models:
        yield partial(ModelsReader, serves_others=pages.serves_others)


def _reader(readers: Sequence[MakeReader]) -> MakeReader:
    return readers[0] if len(readers) == 1 else partial(SeveralReaders, makers=readers)
