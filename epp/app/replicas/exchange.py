"""The exchange with other replicas: sends what this one sees, and applies what they send."""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

from epp.adapters.replicas.mesh import ReplicaMesh
from epp.adapters.replicas.settings import Keys, ReplicaSettings, derive_keys, mark_of
from epp.adapters.telemetry.histogram import Histogram
from epp.adapters.telemetry.series import FamilyText
from epp.app.observers import Observer
from epp.app.replicas.copies import DIGEST_SECONDS, CacheCopies
from epp.app.replicas.families import LAGS, families
from epp.app.replicas.keeping import SnapshotKeeper
from epp.app.replicas.shared_line import SharedLine
from epp.app.replicas.warm_boot import WarmBoot
from epp.errors import FAULTS
from epp.model.events import Event
from epp.model.fleet import Fleet
from epp.model.listeners import OnFault, reraise
from epp.model.request import RequestId
from epp.model.request_events import Admitted
from epp.policy.flow.line import Line
from epp.policy.plugins import Unseen
from epp.protocol.replicas.fact_reader import FactReader
from epp.protocol.replicas.fact_writer import SHARED_EVENTS, FactWriter
from epp.protocol.replicas.facts import AnyFact, LeavingFact, SnapshotQuery
from epp.protocol.replicas.messages import THIS_IS_YOU, Dropped, Reply, sender_of
from epp.system.logs import Log

if TYPE_CHECKING:  # it needs an extra, `warmpick[redis]`
    from epp.adapters.replicas.streams import RedisStreams

_log = Log(__name__)

_BATCH_SECONDS: Final = 0.001
"""How long facts are gathered before they are sent."""
_HEARTBEAT_SECONDS: Final = 1.0
"""Seconds between heartbeats."""
_LOOKING_SECONDS: Final = 0.1
"""The same while a replica is alone, or starts."""
_UNSETTLED_SECONDS: Final = 3 * DIGEST_SECONDS
"""How long a replica that started cold, or was full, learns before it may own endpoints."""

_NAME: Final = "observer/replicas"
"""The source under which errors in handling events and messages are counted."""

_REMEDIES: Final = {
    Dropped.STRANGER: "give all replicas the same secret, and let only these reach the port",
    Dropped.VERSION: "run one release: replicas of several do not read each other's messages",
    Dropped.POOL: "let only replicas of one pool reach each other",
}
"""What to do about what another process sends, by why it is not used."""


class Replicas:
    """One replica among others. Raises `ConfigError` for a secret that is too short.

    `pool` is the pool's name: messages of other pools are dropped, even with the same secret. In
    a Redis server, `namespace` distinguishes pools of the same name. `became_warm` is called once
    it is `warm`: it knows what the others know, or has given up asking. An error in handling a
    message goes to `on_fault`, and the next message is handled. `reached` is the number of replicas
    that the last heartbeat could be sent to.
    """

    def __init__(  # noqa: PLR0913 (what it joins)
        self,
        fleet: Fleet,
        settings: ReplicaSettings,
        secret: bytes,
        *,
        pool: str,
        namespace: str = "default",
        bind_address: str,
        clock: Callable[[], float],
        became_warm: Callable[[], None] = lambda: None,
        on_fault: OnFault = reraise,
    ) -> None:
        self._on_fault: Final = on_fault
        self._fleet: Final = fleet
        self._clock: Final = clock
        self._settings: Final = settings
        own, mark = int.from_bytes(os.urandom(7), "big"), mark_of(secret, pool)
        lookups = fleet.pods.endpoint, self._admission
        self._writer: Final = FactWriter(mark, own, *lookups, self._flush_soon)
        self.reader: Final = FactReader(self._writer)
        self.mesh: Final = self._mesh_of(derive_keys(secret), bind_address)
        self.streams: Final = self._streams_of(secret, f"{namespace}/{pool}")
        self._transports: Final = [each for each in (self.mesh, self.streams) if each is not None]
        store = None if self.streams is None else self.streams.store
        self._keeper: Final = SnapshotKeeper(store, fleet, self._writer, self.reader, clock)
        self._boot: Final = WarmBoot(
            fleet,
            self.reader,
            lambda number: self._answer(number, [SnapshotQuery(unsettled=True)]),
            self._apply,
            settings.warm_limit,
            self._keeper.kept,
        )
        self.copies: Final = CacheCopies(
            fleet,
            self._writer,
            self.reader,
            self._send_to_all,
            self._answer,
            self._apply,
            self._boot.receive,
        )
        self._warmed: Final = asyncio.Event()
        self._became_warm: Final = became_warm
        self._replies: dict[int, Reply] = {}
        self._siblings: set[int] = set()
        self._lags: Final = Histogram(LAGS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._line: SharedLine | None = None
        self._full_at = -inf
        self.reached = 0
        self._alone_since = inf
        self._logged_alone: bool | None = None  # neither was logged yet
        self._logged_drops: set[Dropped] = set()
        fleet.subscribe(SHARED_EVENTS, self._writer.note, _NAME)

    def _mesh_of(self, keys: Keys, bind_address: str) -> ReplicaMesh | None:
        """Return what sends to the others' ports and to other workers; None if a server does."""
        settings = self._settings
        if settings.redis is not None and settings.siblings is None:
            return None
        stranger = partial(self._drop, Dropped.STRANGER)
        far, near = self._receive_far, self._receive_near
        return ReplicaMesh(settings, keys, bind_address, far, stranger, near=near)

    def _streams_of(self, secret: bytes, pool: str) -> "RedisStreams | None":
        """Return the transport through a server; None without one."""
        if self._settings.redis is None:
            return None
        from epp.adapters.replicas.streams import RedisStreams  # noqa: PLC0415 (an extra)

        return RedisStreams(self._settings.redis, secret, pool, self._receive_far, self._drop)

    @property
    def known(self) -> int:
        """How many other replicas are known; a server that does not answer knows one, at least."""
        near = 0 if self.mesh is None else self.mesh.known
        if self.streams is None:
            return near
        # The server knows the other workers, too.
        return near + max(self.streams.known - near, not self.streams.works)

    @property
    def unsent(self) -> int:
        """How many messages were dropped."""
        return sum([each.unsent for each in self._transports])

    @property
    def warm(self) -> bool:
        """Whether it knows what the others know, or has given up asking."""
        return self._warmed.is_set()

    async def warmed(self) -> None:
        """Wait until it is warm."""
        await self._warmed.wait()

    def share(self, line: Line) -> None:
        """Join the requests that wait here, and at the other replicas, in one line."""
        self._line = SharedLine(line, self._send_to_all, self._clock)

    @property
    def observer(self) -> Observer:
        """The observer that runs it."""
        return Observer(
            name="replicas", start=self._start, run=self._run, collect=self.collect, stop=self._stop
        )

    def unseen(self, now: float) -> Unseen:
        """Return an estimate of decisions of other replicas that are not known here yet."""
        return Unseen(*self.reader.unseen(now))

    # Out.

    def _flush_soon(self) -> None:
        if self._loop is not None:
            self._loop.call_later(_BATCH_SECONDS, self._flush)

    def _flush(self) -> None:
        """Send the facts that were noted."""
        if not self.reached:
            self._writer.skip()
            return
        for message in self._writer.messages():
            self._send(message)

    def _send(self, message: bytes) -> int:
        """Send a message to all others; return how many it could be sent to.

        A server counts the other workers, too.
        """
        return max([each.send(message) for each in self._transports])

    def _send_to_all(self, facts: Sequence[AnyFact]) -> None:
        if self.reached:
            self._flush()
            self._send(self._writer.to_all(facts, self._clock()))

    def _admission(self, request: RequestId) -> Admitted | None:
        found = self._fleet.in_flight.get(request)
        if found is None:
            return None
        prefill, encode = [
            None if each is None else each.pod.endpoint.id for each in (found.prefill, found.encode)
        ]
        return Admitted(found.quote, found.pod.endpoint.id, prefill, encode)

    # In.

    def _receive_far(self, data: bytes, reply: Reply) -> None:
        """Handle a message from a port, unless it is from another worker of this process."""
        if self._siblings and sender_of(data) in self._siblings:
            reply(THIS_IS_YOU)
        else:
            self._receive(data, reply)

    def _receive_near(self, data: bytes, reply: Reply) -> None:
        """Handle a message from another worker of this process."""
        sender = self._receive(data, reply)
        if sender:
            self._siblings.add(sender)

    def _receive(self, data: bytes, reply: Reply) -> int:
        """Handle a message; return its sender, 0 if it was dropped."""
        try:
            return self._handle(data, reply)
        except FAULTS as error:  # whatever it is, the next one is handled
            self._on_fault(_NAME, error)
            return 0

    def _handle(self, data: bytes, reply: Reply) -> int:
        now = self._clock()
        received = self.reader.read(data, now)
        if received.own:
            reply(THIS_IS_YOU)
            return 0
        if received.sender and received.sender != self.copies.snapshot_to:
            self._replies[received.sender] = reply
        if received.lag is not None:
            self._lags.observe(received.lag)
        self._apply_at(received.events, now)
        for fact in received.copies:
            self.copies.take(received.sender, fact)
        if received.waiting and self._line is not None:
            self._line.receive(received.sender, received.waiting[-1])
        if received.answers:
            self._answer(received.sender, received.answers)
        return received.sender

    def _answer(self, sender: int, facts: Sequence[AnyFact]) -> bool:
        """Answer one replica if there is room, after the facts that the answer may refer to."""
        self._flush()
        reply = self._replies.get(sender)
        return reply is not None and reply(self._writer.to_one(facts, self._clock()))

    def _apply(self, events: Iterable[Event]) -> None:
        self._apply_at(events, self._clock())

    def _apply_at(self, events: Iterable[Event], now: float) -> None:
        self._writer.applying = True
        try:
            for event in events:
                self._fleet.apply(event, now)
        finally:
            self._writer.applying = False

    def _drop(self, reason: Dropped) -> None:
        self.reader.dropped[reason] += 1

    # Its life.

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._alone_since = self._clock()
        if self.mesh is not None:
            self.mesh.open()
            if self.mesh.port:
                _log.info("replicas.listening", port=self.mesh.port)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for each in self._transports:
                tasks.create_task(each.run(), name=f"replicas: {type(each).__name__}")
            tasks.create_task(self.copies.run(), name="replicas: copies")
            tasks.create_task(self.copies.send_digests(), name="replicas: digests")
            tasks.create_task(self._keeper.run(), name="replicas: what is kept")
            tasks.create_task(self._warm_up(), name="replicas: warm boot")
            while True:
                self._heartbeat()
                calm = self.reached and self.warm
                await asyncio.sleep(_HEARTBEAT_SECONDS if calm else _LOOKING_SECONDS)

    async def _warm_up(self) -> None:
        """Warm up once; a replica that could not counts as warm, but owns no endpoint yet."""
        if self._writer.settled:
            return
        if self.streams is not None:
            await self.streams.tried()
        settled = not self.warm and await self._boot.run()
        self._writer.warm = True
        self._warmed.set()
        self._became_warm()
        if self.streams is not None and not self.streams.works:  # not all could be asked
            settled = False
            while not self.streams.works:  # noqa: ASYNC110 (none is set)
                await asyncio.sleep(_HEARTBEAT_SECONDS)
        if not settled:
            await asyncio.sleep(_UNSETTLED_SECONDS)
        self._writer.settled = True

    def _heartbeat(self) -> None:
        now = self._clock()
        if self._fleet.full:
            self._full_at = now
        self._writer.full = now < self._full_at + _UNSETTLED_SECONDS
        self._flush()
        self.reached = self._send(self._writer.to_all([self._writer.heartbeat(now)], now))
        if self.mesh is not None and self.reader.present > self.known:
            self.mesh.look_up_soon()
        self._apply_at(self.reader.lapse(now), now)
        for gone in self._replies.keys() - self.reader.peers.keys():
            del self._replies[gone]
        self._siblings &= self.reader.peers.keys()
        self._log_others(now)

    def _others(self) -> int:
        """Return how many replicas are present; only in other pods, if there may be any."""
        elsewhere = self._settings.peers or self._settings.redis
        near = self._siblings if elsewhere else ()
        peers = self.reader.peers.items()
        return sum([peer.present and number not in near for number, peer in peers])

    def _log_others(self, now: float) -> None:
        """Log once that this replica is alone, that it no longer is, and what it does not use."""
        for why, remedy in _REMEDIES.items():
            if self.reader.dropped[why] and why not in self._logged_drops:
                self._logged_drops.add(why)
                _log.warning("replicas.rejected", reason=why.value, remedy=remedy)
        others = self._others()
        if others:
            if self._logged_alone is not False:
                _log.info("replicas.heard", replicas=others)
            self._logged_alone, self._alone_since = False, now
            return
        if not self._logged_alone and now - self._alone_since >= self._settings.alone:
            self._logged_alone = True
            _log.warning("replicas.alone", known=self.known, goes_on="with what it sees itself")

    async def _stop(self) -> None:
        self._flush()
        self._send(self._writer.to_all([LeavingFact()], self._clock()))
        await self._keeper.keep_last()
        await asyncio.gather(*(each.stop() for each in self._transports))

    def collect(self) -> Iterator[FamilyText]:
        """Yield the families."""
        return families(self, self._writer, self._lags)
