"""The start of a replica: before it takes requests, it asks another one for a snapshot.

A snapshot has what all caches hold, and what was learned of speeds and lengths. One that does not
come whole and in time changes nothing. The replica then starts with empty caches, logs that, and
learns from the digests of the others what the caches hold.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
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
"""How often to check for other replicas and their answers."""
_ALL_SECONDS: Final = 2.0
"""How long to wait until the broadcasts of all others arrive; then those of one are enough."""
_FIRST_SECONDS: Final = 1.0
"""How long a replica waits for another one before it is the first."""
_PAGES_SECONDS: Final = 0.5
"""How long it waits, once it has a snapshot, for endpoints to report when they started."""
_LISTENER: Final = "observer/replicas: warm boot"


class WarmBoot:
    """Asks for a snapshot, and applies it. `limit` is how long that may take, in seconds.

    `ask` asks a replica, by its number; `kept` returns a snapshot that outlived all replicas.
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
        self._parts: dict[EndpointId, ContentsReply] = {}
        self._learned: LearnedReply | None = None
        self._stored: ResponsesCopied | None = None
        self._answered: asyncio.Future[bool] | None = None
        self._cleared: Final[set[EndpointId]] = set()

    def receive(self, sender: int, fact: SnapshotFact) -> None:
        """Collect a part of the snapshot that was asked for."""
        answered = self._answered
        if answered is None or answered.done() or sender != self._asked:
            return
        if isinstance(fact, NoSnapshot):
            answered.set_result(False)
        elif isinstance(fact, LearnedReply):
            self._learned = fact
        elif isinstance(fact, StoredReply):
            self._stored = stored_from(fact)
        else:
            total = fact.endpoints or fact.left + 1  # 0: the sender does not say
            expected = self._left if self._parts else total
            self._left = fact.left
            self._parts[fact.endpoint] = fact
            if expected != fact.left + 1:
                answered.set_exception(ValueError("a part is missing"))
            elif not fact.left:
                answered.set_result(True)

    async def run(self) -> bool:
        """Warm up; return whether this replica now knows what the others know.

        That is true of the first replica, too.
        """
        self._fleet.subscribe((CacheCleared,), self._clear, _LISTENER)
        try:
            return await self._warm_up()
        finally:
            self._fleet.unsubscribe(_LISTENER)

    def _clear(self, event: Event, _now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        """Ignore the snapshot of a cache that was cleared meanwhile: it may be older than that."""
        if isinstance(event, CacheCleared):
            self._cleared.add(event.endpoint_id)

    async def _warm_up(self) -> bool:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._limit):
                copied = await self._snapshot(began) or await self._from_store()
        except TimeoutError:
            _log.warning("replicas.cold", after=self._limit, starts_with="empty caches")
            return False
        finally:
            self._answered, self._parts = None, {}
        if self._learned is not None:
            told = self._learned
            learned = LearnedCopied(told.classes, told.endpoints, told.responses, told.ttft_share)
            self._apply([learned] if self._stored is None else [learned, self._stored])
        elif not copied:
            _log.info("replicas.first", heard=self._reader.present)
            return True
        for event in copied:  # all of it, however long that takes
            if event.endpoint_id not in self._cleared:
                self._apply([event])
            await asyncio.sleep(0)
        took = round(loop.time() - began, 3)
        _log.info("replicas.warm", seconds=took, blocks=self._fleet.indexed_blocks)
        return self._learned is None or self._learned.settled

    async def _snapshot(self, began: float) -> Sequence[CacheCopied] | None:
        """Return the whole snapshot of another replica; None if none has caches."""
        asked, without = set[int](), set[int]()
        loop = asyncio.get_running_loop()
        while True:
            spent = loop.time() - began
            first = spent >= _FIRST_SECONDS and not self._may_come(without)
            unsettled = first and self._learned is None
            peer = self._next_peer(asked, patient=spent < _ALL_SECONDS, unsettled=unsettled)
            if peer is not None:
                asked.add(peer.number)
                told = self._learned, self._stored
                try:
                    copied = await self._pull(peer)
                except ValueError:
                    self._learned, self._stored = told
                    continue
                if copied is not None:
                    return copied
                without.add(peer.number)
            elif first:
                return None
            else:
                await asyncio.sleep(_LOOK_SECONDS)

    async def _from_store(self) -> Sequence[CacheCopied]:
        """Return what caches hold by the snapshot that earlier replicas kept in the store.

        Of the rest of it, what a settled replica has said counts first, as it is newer.
        """
        kept = await self._kept()
        self._parts = {each.endpoint: each for each in kept if isinstance(each, ContentsReply)}
        try:
            copied = await self._contents()
            stored = [stored_from(each) for each in kept if isinstance(each, StoredReply)]
        except ValueError:
            return ()
        learned = [each for each in kept if isinstance(each, LearnedReply)]
        if learned and (self._learned is None or not self._learned.settled):
            self._learned, self._stored = learned[0], next(iter(stored), None)
        return copied

    def _next_peer(self, asked: set[int], *, patient: bool, unsettled: bool) -> Peer | None:
        """Return the next peer to ask: one whose broadcasts arrive, so that nothing is missed.

        With `patient` the broadcasts of all peers must arrive first. Peers whose memory is full
        come last, as they know less: with such a snapshot, this replica would soon own endpoints
        that others know better. With `unsettled`, peers count that may know less than others did.
        """
        present = [each for each in self._reader.peers.values() if each.present]
        if patient and not all(each.broadcasts_arrive for each in present):
            return None
        able = [each for each in present if each.broadcasts_arrive and (each.settled or unsettled)]
        left = [each for each in able if each.number not in asked]
        return min(left, key=lambda each: each.full, default=None)  # the first of several

    def _may_come(self, without: set[int]) -> bool:
        """Whether a peer may have a snapshot: it has one, or has not said that it has none.

        A peer that answers may not have connected itself yet, and so sent no heartbeat.
        """
        present = [each for each in self._reader.peers.values() if each.present]
        return any(each.settled is not False and each.number not in without for each in present)

    async def _pull(self, peer: Peer) -> Sequence[CacheCopied] | None:
        """Return the snapshot of a peer; None if it has no caches.

        Raises `ValueError` if the snapshot is broken, or the peer leaves before it is complete.
        """
        self._answered = answered = asyncio.get_running_loop().create_future()
        self._asked, self._parts, self._learned, self._stored = peer.number, {}, None, None
        self._ask(peer.number)
        while not answered.done() and peer.present:
            await asyncio.wait([answered], timeout=_LOOK_SECONDS)
        if not answered.done():
            raise ValueError("the peer has left")
        if not answered.result():
            return None
        return await self._contents()

    async def _contents(self) -> list[CacheCopied]:
        """Return what caches hold by the snapshot, once its endpoints are known here.

        It may come before endpoints are listed, or before their first pages, for which this does
        not wait long. Raises `ValueError` for contents that cannot be true.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + _PAGES_SECONDS
        while self._unlisted() or (self._unread() and loop.time() < end):  # noqa: ASYNC110 (none is set)
            await asyncio.sleep(_LOOK_SECONDS)
        parts = ((self._fleet.pods.get(name), fact) for name, fact in self._parts.items())
        copied = [copied_from(pod, fact) for pod, fact in parts if pod is not None]
        return [each for each in copied if each is not None]

    def _unlisted(self) -> bool:
        """Whether an endpoint of the snapshot is unknown, but may still be listed."""
        return not self._fleet.synced and any(
            self._fleet.pods.get(name) is None for name in self._parts
        )

    def _unread(self) -> bool:
        """Whether an endpoint of the snapshot has not reported yet when it started."""
        pods = (self._fleet.pods.get(name) for name in self._parts)
        return any(
            pod is not None
            and pod.load.started_at is None
            and epoch_now(pod) != self._parts[pod.endpoint.id].cache_epoch
            for pod in pods
        )
