"""The recorder: takes notes on the event loop, which a thread writes to disk.

On the loop a request costs some reads and a `put`. Notes that the thread or the disk cannot take
are dropped and counted: no request waits or fails because of the recording.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from epp.adapters.recording.notes import note_of
from epp.adapters.recording.writer import RecordingSettings, RecordingWriter
from epp.model.quote import Quote
from epp.model.request import RequestId
from epp.protocol.extproc.record import RequestRecord
from epp.protocol.recording import RecordedEndpoint, RecordedPool

MAX_NOTES: Final = 8192
_MAX_BLOCKS: Final = 1 << 20
"""Blocks of notes that wait for the thread: some 30 MB."""
_MAX_OPEN: Final = 1 << 16
"""Quotes of requests that have not ended."""


class Recorder:
    """Records the requests of one pool. `clock` returns seconds.

    `quoted`, `ended` and `saw` are called on the event loop, between `start` and `stop`. At most
    `most_notes` requests wait for the thread.
    """

    def __init__(
        self,
        settings: RecordingSettings,
        clock: Callable[[], float],
        *,
        most_notes: int = MAX_NOTES,
    ) -> None:
        self._clock = clock
        self._began = clock()
        self._most_notes = most_notes
        self._quotes: dict[RequestId, Quote] = {}
        self._blocks_put = 0
        self._endpoints: tuple[RecordedEndpoint, ...] = ()
        self._writer = RecordingWriter(settings, clock, self._began)
        self._queue = self._writer.queue
        self.start, self.stop = self._writer.start, self._writer.stop

    def quoted(self, quote: Quote) -> None:
        """Remember the prompts of a request until it ends."""
        quotes = self._quotes
        if len(quotes) >= _MAX_OPEN:
            del quotes[next(iter(quotes))]
        quotes[quote.request_id] = quote

    def ended(self, record: RequestRecord) -> None:
        """Note a request that is over."""
        quote = self._quotes.pop(record.id, None)
        blocks = self._blocks_put + (0 if quote is None else quote.blocks)
        if (
            self._queue.qsize() >= self._most_notes
            or blocks - self._writer.blocks_taken > _MAX_BLOCKS
        ):
            self._writer.dropped += 1
            return
        self._blocks_put = blocks
        self._queue.put(note_of(record, quote))

    def saw(self, endpoints: Sequence[RecordedEndpoint]) -> None:
        """Note the endpoints, if they have changed."""
        found = tuple(endpoints)
        if found != self._endpoints:
            self._endpoints = found
            at = round(self._clock() - self._began, 6)
            self._queue.put(RecordedPool(at=at, endpoints=found))

    @property
    def counts(self) -> Iterator[tuple[str, int]]:
        """Requests by the outcome of their records: `written`, `dropped` or `failed`."""
        writer = self._writer
        for name in ("written", "dropped", "failed"):
            yield name, getattr(writer, name)

    @property
    def bytes(self) -> int:
        """Bytes that were written."""
        return self._writer.bytes
