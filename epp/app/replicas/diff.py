"""The caches as two replicas believe them to be, compared."""

import asyncio
import os
import time
from collections.abc import Sequence

import msgspec

from epp.adapters.replicas.mesh import ReplicaMesh
from epp.adapters.replicas.settings import PeerAddress, ReplicaSettings, derive_keys, mark_of
from epp.errors import ConfigError, reason
from epp.protocol.replicas.chains import read_words
from epp.protocol.replicas.digests import MAX_DIFFERENT, MIN_DIFFERENT
from epp.protocol.replicas.fact_reader import FactReader
from epp.protocol.replicas.fact_writer import FactWriter
from epp.protocol.replicas.facts import (
    ContentsReply,
    LearnedReply,
    LeavingFact,
    NoSnapshot,
    SnapshotQuery,
)
from epp.protocol.replicas.messages import Reply

_HERE = "127.0.0.1"
_LOOK_SECONDS = 0.02


class CacheDiff(msgspec.Struct, frozen=True, kw_only=True):
    """What two replicas hold of one endpoint, in blocks."""

    endpoint: str
    """The endpoint."""
    first: int
    """How many the first one has."""
    second: int
    """How many the second one has."""
    only_first: int
    """How many the first one alone has."""
    only_second: int
    """How many the second one alone has."""
    restarted: bool
    """Whether they speak of different starts of the engine."""

    @property
    def differs(self) -> bool:
        """Whether they differ by more than facts that are under way explain."""
        apart = self.only_first + self.only_second
        bound = max(MIN_DIFFERENT, MAX_DIFFERENT * max(self.first, self.second))
        return self.restarted or apart > bound


class _Dump:
    """Asks one replica for a snapshot, as a replica that knows nothing, and leaves."""

    def __init__(self, address: PeerAddress, secret: bytes, pool: str) -> None:
        self.parts: dict[str, ContentsReply] = {}
        self.done = asyncio.Event()
        self._knows = self._asked = False
        self._address = address
        mark, own = mark_of(secret, pool), int.from_bytes(os.urandom(7), "big")
        self._writer = FactWriter(mark, own, lambda _: None, lambda _: None)
        self._reader = FactReader(self._writer)
        settings = ReplicaSettings(peers=[address], port=0)
        self._mesh = ReplicaMesh(settings, derive_keys(secret), _HERE, self._receive, lambda: None)

    def _receive(self, data: bytes, _reply: Reply) -> None:
        for fact in self._reader.read(data, time.monotonic()).copies:
            if isinstance(fact, ContentsReply):
                self.parts[fact.endpoint] = fact
                if not fact.left:
                    self.done.set()
            elif isinstance(fact, LearnedReply):
                self._knows = True
            elif isinstance(fact, NoSnapshot):
                self.done.set()

    async def read(self, seconds: float) -> dict[str, ContentsReply]:
        """Return the caches as the replica believes them to be.

        Raises `ConfigError` if it does not answer in time, or has just started.
        """
        self._mesh.open()
        try:
            async with asyncio.timeout(seconds):
                await self._mesh.look_up()
                asked = self._writer.to_one([SnapshotQuery()], 0.0)
                while not self._mesh.send(asked):  # noqa: ASYNC110 (sockets connect by themselves)
                    await asyncio.sleep(_LOOK_SECONDS)
                self._asked = True
                await self.done.wait()
                self._mesh.send(self._writer.to_one([LeavingFact()], 0.0))
                await asyncio.sleep(_LOOK_SECONDS)  # sockets send in a thread of their own
        except TimeoutError:
            raise ConfigError(f"{self._address} {await self._problem(seconds)}") from None
        finally:
            self._mesh.close()
        if not self.parts and not self._knows:  # it answered with `NoSnapshot`
            raise ConfigError(
                f"{self._address} has just started, and still learns from others: ask it again in a"
                " minute"
            )
        return self.parts

    async def _problem(self, seconds: float) -> str:
        """Say why there is no answer after this time."""
        if self._asked:
            return f"does not answer within {seconds:g} s: is --pool-name the name of its pool?"
        try:
            async with asyncio.timeout(seconds):
                _, stream = await asyncio.open_connection(self._address.host, self._address.port)
        except TimeoutError:
            return f"cannot be reached: no connection within {seconds:g} s"
        except OSError as error:
            return f"cannot be reached: {reason(error)}"
        stream.close()
        return (
            "accepts connections, but does not accept the secret: does it listen for replicas there"
            " (--replicas-port), and is its secret the same (--hash-secret-file)?"
        )


async def diff(
    addresses: tuple[PeerAddress, PeerAddress], secret: bytes, pool: str, seconds: float
) -> Sequence[CacheDiff]:
    """Compare two replicas, endpoint by endpoint. Raises `ConfigError`."""
    first, second = await asyncio.gather(
        *(_Dump(address, secret, pool).read(seconds) for address in addresses)
    )
    return [compare(name, first.get(name), second.get(name)) for name in sorted({*first, *second})]


def compare(name: str, first: ContentsReply | None, second: ContentsReply | None) -> CacheDiff:
    """Compare what two replicas hold of an endpoint; None for a replica that does not know it."""
    one = set(read_words(first.hashes)) if first is not None else set[int]()
    other = set(read_words(second.hashes)) if second is not None else set[int]()
    epochs = {each.cache_epoch for each in (first, second) if each is not None}
    return CacheDiff(
        endpoint=name,
        first=len(one),
        second=len(other),
        only_first=len(one - other),
        only_second=len(other - one),
        restarted=len(epochs) > 1,
    )
