"""A snapshot of caches and of what was learned, in a Redis server, where it outlives replicas.

One replica writes it each minute, and the last ones when they stop. A replica that starts and
finds no other one reads it, as it would the snapshot of another replica.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from epp.app.replicas.copies import SnapshotPart, snapshot, unmirrored
from epp.model.fleet import Fleet
from epp.protocol.replicas.fact_reader import FactReader
from epp.protocol.replicas.fact_writer import FactWriter
from epp.protocol.replicas.messages import Dropped, Rejected, read_facts, read_message

if TYPE_CHECKING:  # it needs an extra, `warmpick[redis]`
    from epp.adapters.replicas.redis_store import RedisStore

KEEP_SECONDS: Final = 60.0
"""How often it is written."""
_LEAVING_SECONDS: Final = 0.1
"""How long a replica that stops waits for others to say that they stop, too."""
_STOP_SECONDS: Final = 2.0
"""How long writing the last snapshot may take."""


class SnapshotKeeper:
    """Writes snapshots to a store, and reads them; without a store it does nothing."""

    def __init__(
        self,
        store: "RedisStore | None",
        fleet: Fleet,
        writer: FactWriter,
        reader: FactReader,
        clock: Callable[[], float],
    ) -> None:
        self._store: Final = store
        self._fleet: Final = fleet
        self._writer: Final = writer
        self._reader: Final = reader
        self._clock: Final = clock
        self._writing: Final = asyncio.Lock()

    async def run(self) -> None:
        """Write it from time to time, if it is this replica's turn, until cancelled.

        One whose memory is full knows less: another's turn comes first.
        """
        while True:
            await asyncio.sleep(KEEP_SECONDS)
            peers = self._reader.peers.values()
            others = [(each.full, each.number) for each in peers if each.present and each.settled]
            if all((self._writer.full, self._writer.own) < other for other in others):
                await self.keep()

    async def keep(self) -> None:
        """Write it now, if this replica knows what caches hold."""
        if self._store is not None and self._writer.settled and self._fleet.pods.values():
            async with self._writing:
                await self._store.keep(self._parts())

    async def keep_last(self) -> None:
        """Write it as this replica stops, which the others know, if all of them stop too."""
        if self._store is not None and self._reader.present:
            await asyncio.sleep(_LEAVING_SECONDS)
        if not self._reader.present:
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_SECONDS):
                    await self.keep()

    async def _parts(self) -> AsyncIterator[bytes]:
        async for part in snapshot(self._fleet, unmirrored(self._fleet)):
            yield self._writer.to_one([part], self._clock())

    async def kept(self) -> Sequence[SnapshotPart]:
        """Return the kept snapshot; nothing if it is not whole, or not of this pool."""
        parts = [] if self._store is None else await self._store.kept()
        try:
            return [fact for part in parts for fact in self._read(part)]
        except Rejected as rejected:
            self._reader.dropped[rejected.reason] += 1
            return []

    def _read(self, part: bytes) -> list[SnapshotPart]:
        message = read_message(part)
        if message.pool != self._writer.pool:
            raise Rejected(Dropped.POOL)
        facts, _ = read_facts(message)
        return [each for each in facts if isinstance(each, SnapshotPart)]
