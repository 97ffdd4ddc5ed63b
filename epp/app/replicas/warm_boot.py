"""The start of a replica: it asks another one for what it knows before it takes requests.

It asks what all caches hold, and what was learned of speeds and lengths. A snapshot that does not
come whole and in time changes nothing. The replica then starts with empty caches, logs that, and
learns from the digests of the others what the caches hold.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from epp.app.replicas.copies import SnapshotFact, SnapshotPart, copied_from, epoch_now, stored_from
from epp.model.endpoint import EndpointId
from epp.model.events import Event, LearnedCopied, ResponsesCopied
from epp.model.fleet import Fleet
from epp.model.kv_changes import CacheCleared, CacheCopied
from epp.protocol.replicas.fact_reader import FactReader
from epp.protocol.replicas.facts import ContentsReply, LearnedReply, NoSnapshot, StoredReply
from epp.protocol.replicas.peers import Peer
from epp.system.logs import Log

_log = Log(__name__)

_LOOK_SECONDS: Final = 0.02
"""How often it is looked whether another replica is heard."""
_ALL_SECONDS: Final = 2.0
"""How long it waits for what all others tell to arrive; then for what one tells."""
_FIRST_SECONDS: Final = 1.0
"""How long a replica waits for another one to be heard before it is the first."""
_PAGES_SECONDS: Final = 0.5
"""How long it waits for endpoints to say when they were started, once it has a snapshot."""
_LISTENER: Final = "observer/replicas: warm boot"


class WarmBoot:
    """Asks for a snapshot, and applies it. `limit` is how long that may take, in seconds.

    `ask` asks the replica of a number for one; `kept` returns one that outlived all replicas.
    """

    def __init__(  # noqa: PLR0913, PLR0917 (what it joins)
        self,
        fleet: Fleet,
        reader: FactReader,
        ask: Callable[[int], object],
        apply: Callable[[Iterable[Event]], None],
        limit: float,
        kept: Callable[[], Awaitable[Sequence[SnapshotPart]]],
    ) -> None:
        self._fleet: Final = fleet
        self._reader: Final = reader
        self._ask: Final = ask
        self._apply: Final = apply
        self._limit: Final = limit
        self._kept: Final = kept
        self._asked = self._left = 0
        self._parts: dict[str, ContentsReply] = {}
        self._learned: LearnedReply | None = None
        self._stored: ResponsesCopied | None = None
        self._told: asyncio.Future[bool] | None = None
        self._cleared: Final[set[EndpointId]] = set()

    def hear(self, sender: int, fact: SnapshotFact) -> None:
        """Take in a part of the snapshot that was asked for."""
        told = self._told
        if told is None or told.done() or sender != self._asked:
            return
        if isinstance(fact, NoSnapshot):
            told.set_result(False)
            return
        if isinstance(fact, LearnedReply):
            self._learned = fact
            return
        if isinstance(fact, StoredReply):
            self._stored = stored_from(fact)
            return
        expected = self._left if self._parts else fact.endpoints or fact.left + 1
        self._left = fact.left
        self._parts[fact.endpoint] = fact
        if expected != fact.left + 1:
            told.set_exception(ValueError("a part is missing"))
        elif not fact.left:
            told.set_result(True)

    async def run(self) -> bool:
        """Warm up; return whether this replica knows now what the others know.

        The first of all replicas does, too.
        """
        self._fleet.subscribe((CacheCleared,), self._clear, _LISTENER)
        try:
            return await self._warm_up()
        finally:
            self._fleet.unsubscribe(_LISTENER)

    def _clear(self, event: Event, _now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        """Take in nothing of a cache that was cleared meanwhile: it may have been told before."""
        if isinstance(event, CacheCleared):
            self._cleared.add(event.endpoint_id)

    async def _warm_up(self) -> bool:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._limit):
                copied = await self._snapshot(began) or await self._outlived()
        except TimeoutError:
            _log.warning("replicas.cold", after=self._limit, starts_with="empty caches")
            return False
        finally:
            self._told, self._parts = None, {}
        if self._learned is not None:
            self._apply([_learned_from(self._learned)])
            self._apply(() if self._stored is None else [self._stored])
        elif not copied:
            _log.info("replicas.first", heard=self._reader.present)
            return True
        for event in copied or ():  # all of it, however long that takes
            if event.endpoint_id not in self._cleared:
                self._apply([event])
            await asyncio.sleep(0)
        took = round(loop.time() - began, 3)
        _log.info("replicas.warm", seconds=took, blocks=self._fleet.indexed_blocks)
        return True

    async def _snapshot(self, began: float) -> Sequence[CacheCopied] | None:
        """Return a whole snapshot of another replica; None if there is none that has caches."""
        asked, without = set[int](), set[int]()
        loop = asyncio.get_running_loop()
        while True:
            peer = self._sibling(asked, patient=loop.time() - began < _ALL_SECONDS)
            if peer is not None:
                asked.add(peer.number)
                with suppress(ValueError):
                    copied = await self._pull(peer)
                    if copied is not None:
                        return copied
                    without.add(peer.number)
            elif loop.time() - began >= _FIRST_SECONDS and not self._may_come(without):
                return None
            else:
                await asyncio.sleep(_LOOK_SECONDS)

    async def _outlived(self) -> Sequence[CacheCopied]:
        """Return what all replicas that were there before knew, as far as it was kept."""
        kept = await self._kept()
        self._parts = {each.endpoint: each for each in kept if isinstance(each, ContentsReply)}
        await self._endpoints_known()
        try:
            copied = list(self._copied())
            stored = [stored_from(each) for each in kept if isinstance(each, StoredReply)]
        except ValueError:
            return ()
        learned = [each for each in kept if isinstance(each, LearnedReply)]
        if learned:
            self._learned, self._stored = learned[0], next(iter(stored), None)
        return copied

    def _sibling(self, asked: set[int], *, patient: bool) -> Peer | None:
        """Return one to ask, of those whose facts arrive: what comes after the snapshot is told.

        With `patient` those of all are to arrive first.
        """
        present = [each for each in self._reader.peers.values() if each.present]
        if patient and not all(each.tells for each in present):
            return None
        able = (each for each in present if each.settled and each.tells)
        return next((each for each in able if each.number not in asked), None)

    def _may_come(self, without: set[int]) -> bool:
        """Whether there is one that knows what caches hold, or has not said yet that it does not.

        One that answers here may not have connected yet, and beats go over its own connections.
        """
        present = [each for each in self._reader.peers.values() if each.present]
        return any(each.settled is not False and each.number not in without for each in present)

    async def _pull(self, peer: Peer) -> Sequence[CacheCopied] | None:
        """Return its snapshot, None if it has no caches to tell of.

        Raises `ValueError` for one that is broken.
        """
        self._told = asyncio.get_running_loop().create_future()
        self._asked, self._parts, self._learned, self._stored = peer.number, {}, None, None
        self._ask(peer.number)
        if not await self._told:
            return None
        await self._endpoints_known()
        return list(self._copied())

    async def _endpoints_known(self) -> None:
        """Wait until the endpoints of the snapshot are known here, as far as they will be soon.

        Another replica may answer before endpoints are listed, or their first pages have come.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + _PAGES_SECONDS
        while self._unlisted() or (self._unread() and loop.time() < end):  # noqa: ASYNC110 (none is set)
            await asyncio.sleep(_LOOK_SECONDS)

    def _unlisted(self) -> bool:
        """Whether an endpoint of the snapshot may be listed yet."""
        return not self._fleet.synced and any(
            self._fleet.pods.get(EndpointId(name)) is None for name in self._parts
        )

    def _unread(self) -> bool:
        """Whether one of them has not said yet when it was started."""
        pods = (self._fleet.pods.get(EndpointId(name)) for name in self._parts)
        return any(
            pod is not None
            and pod.load.started_at is None
            and epoch_now(pod) != self._parts[pod.endpoint.id].epoch
            for pod in pods
        )

    def _copied(self) -> Iterator[CacheCopied]:
        for name, fact in self._parts.items():
            pod = self._fleet.pods.get(EndpointId(name))
            event = None if pod is None else copied_from(pod, fact)
            if event is not None:
                yield event


def _learned_from(fact: LearnedReply) -> LearnedCopied:
    return LearnedCopied(fact.classes, fact.endpoints, fact.responses, fact.ttft_share)
