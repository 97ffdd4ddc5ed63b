"""Whole caches, compared and copied between replicas, apart from the requests.

Lost or reordered facts leave caches that differ. Every 15 seconds the owner of an endpoint sends a
digest of what it believes the endpoint's cache to hold. A replica that differs by more than facts
under way explain asks for what differs, and adopts it. If they differ for the first time, or the
owner has missed facts of that replica since, the owner asks in turn, and each adds what the other
holds, so that both have what either side of a partition has seen.

A replica whose memory for caches is full is believed only by replicas whose memory is full, too. It
believes only such owners, and takes as many blocks as it drops: it would forget any more again.

Long loops run in a thread, and caches change a little at a time.
"""

import asyncio
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from epp.model.endpoint import EndpointId
from epp.model.events import Event, ResponsesCopied
from epp.model.fleet import Fleet
from epp.model.kv_changes import CacheCleared, CacheCopied
from epp.model.learning.stored_responses import MOST, StoredState
from epp.model.pods.pod import Pod
from epp.model.prompts.hashing import BlockHash
from epp.protocol.replicas.chains import read_sizes, read_words, written_sizes, written_words
from epp.protocol.replicas.digests import (
    BUCKETS,
    changes,
    differing,
    digest,
    owner_of,
    too_different,
    within,
)
from epp.protocol.replicas.epochs import cache_epoch
from epp.protocol.replicas.fact_reader import FactReader
from epp.protocol.replicas.fact_writer import FactWriter
from epp.protocol.replicas.facts import (
    AnyFact,
    BucketsQuery,
    BucketsReply,
    ContentsReply,
    CopyFact,
    DigestFact,
    LearnedReply,
    NoSnapshot,
    SnapshotQuery,
    StoredReply,
)
from epp.protocol.replicas.messages import LONGEST, Dropped

DIGEST_SECONDS: Final = 15.0
"""How often the owner of an endpoint sends its digest."""
_MAX_WAITING: Final = 4096
"""The most facts about caches that wait to be handled."""
_AT_ONCE: Final = 1024
"""Blocks that are copied at once: a fraction of a millisecond."""
_DIGESTS_AT_ONCE: Final = 64
"""Digests in a message."""
_MOST_BLOCKS: Final = LONGEST // 13
"""Blocks in a message, about, of 12 bytes each."""
_ROOM_SECONDS: Final = 1.0
"""How long a long answer waits for room."""
_LOOK_SECONDS: Final = 0.01
"""How often a waiting answer checks for room."""

_Key = tuple[int, EndpointId]
"""A replica, and an endpoint that it was asked about, or answered about."""
SnapshotPart = LearnedReply | StoredReply | ContentsReply
"""A part of a snapshot: first what was learned, then stored responses, then each cache."""
SnapshotFact = SnapshotPart | NoSnapshot
"""What answers `SnapshotQuery`."""


class CacheCopies:
    """Compares what caches hold with what the endpoints' owners believe, and copies.

    `send` sends facts to all, `answer` to one replica by its number, and returns whether there was
    room. `on_snapshot` is called with each fact that answers `SnapshotQuery`. `compared` counts
    comparisons by whether they differed, `copied` counts blocks. `snapshot_to` is the replica that
    is sent a snapshot, 0 if none: the parts take one way, so that they arrive in order.
    """

    def __init__(  # noqa: PLR0913, PLR0917 (what it joins)
        self,
        fleet: Fleet,
        writer: FactWriter,
        reader: FactReader,
        send: Callable[[Sequence[AnyFact]], None],
        answer: Callable[[int, Sequence[AnyFact]], bool],
        apply: Callable[[Iterable[Event]], None],
        on_snapshot: Callable[[int, SnapshotFact], None],
    ) -> None:
        self.compared: Final = Counter[bool]()
        self.copied = self.snapshot_to = 0
        self._fleet: Final = fleet
        self._writer: Final = writer
        self._reader: Final = reader
        self._send: Final = send
        self._answer: Final = answer
        self._apply: Final = apply
        self._on_snapshot: Final = on_snapshot
        self._waiting: Final = asyncio.Queue[tuple[int, CopyFact]](_MAX_WAITING)
        self._asked: Final[dict[_Key, int]] = {}  # the losses then
        self._reconciled: Final[dict[_Key, int]] = {}  # ... when both added last
        fleet.subscribe((CacheCleared,), self._withdraw, "observer/replicas")

    @property
    def busy(self) -> bool:
        """Whether any fact waits to be handled."""
        return not self._waiting.empty()

    def take(self, sender: int, fact: CopyFact) -> None:
        """Keep a fact for `run`; if there is no room for it, a later digest makes up for it."""
        if not self._waiting.full():
            self._waiting.put_nowait((sender, fact))

    async def run(self) -> None:
        """Handle the facts of others until cancelled."""
        while True:
            sender, fact = await self._waiting.get()
            try:
                await self._handle(sender, fact)
            except ValueError:
                self._reader.dropped[Dropped.NONSENSE] += 1

    async def _handle(self, sender: int, fact: CopyFact) -> None:
        match fact:
            case DigestFact():
                await self._compare(sender, fact)
            case BucketsQuery():
                await self._send_buckets(sender, fact)
            case BucketsReply():
                await self._apply_buckets(sender, fact)
            case SnapshotQuery():
                await self._send_snapshot(sender, fact)
            case _:
                self._on_snapshot(sender, fact)

    async def send_digests(self) -> None:
        """Send the digests of own endpoints again and again, until cancelled."""
        while True:
            await asyncio.sleep(DIGEST_SECONDS)
            await self.send_own_digests()

    async def send_own_digests(self) -> None:
        """Send the digests of the endpoints that this replica owns, once."""
        self._forget()
        facts: list[AnyFact] = []
        for pod in list(self._own()):
            sums = await asyncio.to_thread(digest, pod.scheduler.cache.hashes())
            facts.append(DigestFact(pod.endpoint.id, epoch_now(pod), sums))
            if len(facts) >= _DIGESTS_AT_ONCE:
                self._send(facts)
                facts = []
        if facts:
            self._send(facts)

    def _forget(self) -> None:
        """Forget queries to replicas, and about endpoints, that are gone."""
        for key in [*self._asked, *self._reconciled]:
            sender, endpoint = key
            if sender not in self._reader.peers or self._fleet.pods.get(endpoint) is None:
                self._asked.pop(key, None)
                self._reconciled.pop(key, None)

    def _own(self) -> Iterator[Pod]:
        if not self._writer.settled:
            return
        peers = self._reader.peers.values()
        others = [each.number for each in peers if each.owns]
        if self._writer.full:
            if others:
                return
            others = [each.number for each in peers if each.present and each.settled]
        for pod in unmirrored(self._fleet):
            if owner_of(pod.endpoint.id, [self._writer.own, *others]) == self._writer.own:
                yield pod

    def _pod(self, fact: DigestFact | BucketsQuery | BucketsReply | ContentsReply) -> Pod | None:
        """Return the pod of a fact, if it is about this start of its engine."""
        pod = self._fleet.pods.get(fact.endpoint)
        if pod is None or pod.scheduler.mirror is not None:  # its engine reports what it holds
            return None
        if epoch_now(pod) != fact.cache_epoch:
            self._reader.dropped[Dropped.STALE_ENDPOINT] += 1
            return None
        return pod

    # Comparing.

    async def _compare(self, sender: int, fact: DigestFact) -> None:
        pod = self._pod(fact)
        if pod is None:
            return
        hashes = pod.scheduler.cache.hashes()
        buckets = differing(await asyncio.to_thread(digest, hashes), fact.sums)
        differs = too_different(len(buckets), len(hashes))
        self.compared[differs] += 1
        owner = self._reader.peers.get(sender)
        if differs and (not self._fleet.full or (owner is not None and owner.full)):
            self._ask(sender, BucketsQuery(fact.endpoint, fact.cache_epoch, buckets))

    def _ask(self, sender: int, wanted: BucketsQuery) -> None:
        peer = self._reader.peers.get(sender)
        self._asked[sender, wanted.endpoint] = 0 if peer is None else peer.losses
        self._answer(sender, [wanted])

    def _withdraw(self, event: Event, _now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        """Ignore answers under way about a cache that was cleared."""
        if isinstance(event, CacheCleared):
            for key in [each for each in self._asked if each[1] == event.endpoint_id]:
                del self._asked[key]

    async def _send_buckets(self, sender: int, fact: BucketsQuery) -> None:
        pod = self._pod(fact)
        if pod is None or not all(each < BUCKETS for each in fact.buckets):
            return
        peer, key = self._reader.peers.get(sender), (sender, fact.endpoint)
        reconciled = peer is None or self._reconciled.get(key, -1) >= peer.losses
        asks_back = not (fact.added or reconciled or self._fleet.full)  # a full memory adds nothing
        if asks_back:
            self._ask(sender, replace(fact, added=True))
        contents, buckets = pod.scheduler.cache.contents(), fact.buckets
        hashes, sizes = await asyncio.to_thread(within, *contents, buckets)
        if len(hashes) > _MOST_BLOCKS:  # it would not be read
            buckets = buckets[: len(buckets) * _MOST_BLOCKS // len(hashes)]
            hashes, sizes = await asyncio.to_thread(within, *contents, buckets)
        written = written_words(hashes), written_sizes(sizes), fact.added or asks_back
        reply = BucketsReply(fact.endpoint, fact.cache_epoch, buckets, *written)
        await self._answer_in_time(sender, reply)

    async def _answer_in_time(self, sender: int, fact: BucketsReply | SnapshotPart) -> bool:
        """Answer once there is room; return whether there was."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _ROOM_SECONDS
        while not self._answer(sender, [fact]):
            if loop.time() > end:
                self._drop_questions(sender)
                return False
            await asyncio.sleep(_LOOK_SECONDS)
        return True

    def _drop_questions(self, sender: int) -> None:
        """Drop the other queries of a replica that takes no answer, since others wait behind them.

        It may be gone, after asking about every endpoint.
        """
        for _ in range(self._waiting.qsize()):
            asked = self._waiting.get_nowait()
            if asked[0] != sender or not isinstance(asked[1], BucketsQuery | SnapshotQuery):
                self._waiting.put_nowait(asked)

    async def _apply_buckets(self, sender: int, fact: BucketsReply) -> None:
        key = sender, fact.endpoint
        if key not in self._asked:
            raise ValueError("it was not asked for")
        try:
            await self._take_over(key, fact)
        finally:
            losses = self._asked.pop(key, None)
        if fact.added and losses is not None:  # else it was cleared meanwhile
            self._reconciled[key] = losses

    async def _take_over(self, key: tuple[int, str], fact: BucketsReply) -> None:
        pod = self._pod(fact)
        if pod is None:
            return
        theirs, sizes = _read_blocks(fact)
        ours, cache = pod.scheduler.cache.hashes(), pod.scheduler.cache
        come, tokens, gone = await asyncio.to_thread(changes, ours, theirs, sizes, fact.buckets)
        full = self._fleet.full
        if fact.added:
            gone = array("Q")
        if full:
            some = min(len(come), len(gone))
            come, tokens, gone = come[:some], tokens[:some], gone[:some]
        for copied in _pieces(pod.endpoint.id, come, tokens, gone):
            # It has started again, or was cleared.
            if pod.scheduler.cache is not cache or key not in self._asked:
                return
            if self._fleet.full and not full:  # other blocks would be forgotten for these
                return
            self.copied += len(copied.hashes) + len(copied.gone)
            self._apply([copied])
            await asyncio.sleep(0)

    # Snapshots.

    async def _send_snapshot(self, sender: int, fact: SnapshotQuery) -> None:
        if not (self._writer.settled or (fact.unsettled and self._writer.warm)):
            self._answer(sender, [NoSnapshot()])
            return
        pods, self.snapshot_to = unmirrored(self._fleet), sender
        try:
            async for part in snapshot(self._fleet, pods, settled=self._writer.settled):
                if not await self._answer_in_time(sender, part):  # all or nothing
                    return
        finally:
            self.snapshot_to = 0
        if not pods:
            self._answer(sender, [NoSnapshot()])


def _pieces(
    endpoint: EndpointId, come: "array[int]", sizes: "array[int]", gone: "array[int]"
) -> Iterator[CacheCopied]:
    """Yield changes a few at a time; added blocks come in the order in which they are evicted.

    Each step also drops the blocks that it replaces, so the cache is never fuller than before.
    """
    for done in range(0, max(len(come), len(gone)), _AT_ONCE):
        end = max(0, len(come) - done)
        some = slice(max(0, end - _AT_ONCE), end)
        left = gone[done : done + _AT_ONCE]
        yield CacheCopied(endpoint, _named(come[some]), sizes[some], _named(left))


def unmirrored(fleet: Fleet) -> Sequence[Pod]:
    """Return the pods whose caches replicas share: those whose engines do not report them."""
    return [each for each in fleet.pods.values() if each.scheduler.mirror is None]


async def snapshot(
    fleet: Fleet, pods: Sequence[Pod], *, settled: bool = True
) -> AsyncIterator[SnapshotPart]:
    """Yield what was learned, the stored responses, and what the caches of these pods hold."""
    state = fleet.pods.learned(fleet.output_lengths)
    learned = state.classes, state.endpoints, state.responses, state.ttft_share
    yield LearnedReply(*learned, settled)
    stored = fleet.responses.state()
    if stored:
        yield await asyncio.to_thread(_stored_reply, stored)
    for position, pod in enumerate(pods, 1):
        yield contents_reply(pod, len(pods) - position, len(pods))
        await asyncio.sleep(0)


def _stored_reply(stored: Sequence[StoredState]) -> StoredReply:
    """Return which engines have which responses."""
    engines = {engine: place for place, engine in enumerate({engine for _, engine in stored})}
    keys, places = [key for key, _ in stored], [engines[engine] for _, engine in stored]
    return StoredReply(list(engines), written_words(keys), written_sizes(places))


def contents_reply(pod: Pod, left: int, total: int) -> ContentsReply:
    """Return an endpoint's cache, as far as a message has room: a part of a snapshot of `total`."""
    cache = pod.scheduler.cache
    hashes, sizes = cache.contents()
    closed = cache.closed and len(hashes) <= _MOST_BLOCKS
    written = written_words(hashes[:_MOST_BLOCKS]), written_sizes(sizes[:_MOST_BLOCKS])
    return ContentsReply(pod.endpoint.id, epoch_now(pod), *written, closed, left, total)


def stored_from(fact: StoredReply) -> ResponsesCopied:
    """Return stored responses as an event: the latest ones, if there are more than are kept.

    Raises `ValueError` for a reply that cannot be true.
    """
    keys, places, engines = read_words(fact.keys), read_sizes(fact.places), fact.engines
    if len(keys) != len(places):
        raise ValueError("each response has an engine")
    keys, places = keys[-MOST:], places[-MOST:]
    if max(places, default=-1) >= len(engines):
        raise ValueError("each response has one of the engines")
    return ResponsesCopied([(key, engines[place]) for key, place in zip(keys, places, strict=True)])


def copied_from(pod: Pod, fact: ContentsReply) -> CacheCopied | None:
    """Return a cache's contents as an event; None if they are of another start of the engine.

    Raises `ValueError` for contents that cannot be true.
    """
    hashes, sizes = _read_blocks(fact)
    if epoch_now(pod) != fact.cache_epoch:
        return None
    return CacheCopied(pod.endpoint.id, _named(hashes), sizes, closed=fact.closed)


def epoch_now(pod: Pod) -> int:
    """Return the epoch of an endpoint's engine, as far as its start is known (`cache_epoch`)."""
    return cache_epoch(pod.endpoint, pod.load.started_at)


def _read_blocks(fact: ContentsReply | BucketsReply) -> "tuple[array[int], array[int]]":
    """Read the hashes of blocks and their sizes. Raises `ValueError` if they cannot be true."""
    hashes, sizes = read_words(fact.hashes), read_sizes(fact.sizes)
    if len(hashes) != len(sizes):
        raise ValueError("as many sizes as blocks")
    return hashes, sizes


def _named(hashes: "array[int]") -> Sequence[BlockHash]:
    return hashes  # type: ignore[return-value]  # the same integers
