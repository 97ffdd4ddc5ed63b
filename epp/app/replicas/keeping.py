"""A snapshot of caches and of what was learned, in a Redis server, where it outlives replicas.

One replica writes it each minute, and the last one when it stops. A replica that starts and
finds no other one reads it, as it would the snapshot of another replica.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from epp.adapters.replicas.transport import Store
from epp.app.replicas.copies import SnapshotPart, snapshot, unmirrored
from epp.model.fleet import Fleet
from epp.protocol.replicas.fact_reader import FactReader
from epp.protocol.replicas.fact_writer import FactWriter
from epp.protocol.replicas.messages import Dropped, Rejected, read_facts, read_message

KEEP_SECONDS: Final = 60.0
"""How often it is written."""
_STOP_SECONDS: Final = 2.0
"""How long a replica that stops has for that."""


class Keeper:
    """Writes it to a store, and reads it; without one it does nothing.

    `facts` is the replica's writer and reader of them, `mark` that of its pool.
    """

    def __init__(
        self,
        store: Store | None,
        fleet: Fleet,
        facts: tuple[FactWriter, FactReader],
        mark: bytes,
        clock: Callable[[], float],
    ) -> None:
        self._store: Final = store
        self._fleet: Final = fleet
        self._writer, self._reader = facts
        self._mark: Final = mark
        self._clock: Final = clock

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
            await self._store.keep(self._parts())

    async def keep_last(self) -> None:
        """Write it as this replica stops, if it is the last one."""
        if self._reader.present:
            return
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self.keep()
        except TimeoutError:
            return

    async def _parts(self) -> AsyncIterator[bytes]:
        async for part in snapshot(self._fleet, unmirrored(self._fleet)):
            yield self._writer.to_one([part], self._clock())

    async def kept(self) -> Sequence[SnapshotPart]:
        """Return what was written; nothing if it is not whole, or not of this pool."""
        parts = [] if self._store is None else await self._store.kept()
        try:
            return [fact for part in parts for fact in self._read(part)]
        except Rejected as rejected:
            self._reader.dropped[rejected.reason] += 1
            return []

    def _read(self, part: bytes) -> list[SnapshotPart]:
        message = read_message(part)
        if message.pool != self._mark:
            raise Rejected(Dropped.POOL)
        facts, _ = read_facts(message)
        return [each for each in facts if isinstance(each, SnapshotPart)]
