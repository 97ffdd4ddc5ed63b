"""The streams of a Redis or Valkey server through which replicas share what they see.

One stream is for messages to all, and each replica has one of its own for answers. They are
bounded, and expire some time after their last writer. What cannot be written at once is dropped,
and receivers find out what they miss, as with the mesh.

Someone who can write to the server may repeat old messages to all. Therefore a sender's messages
count only once it has sent one to this replica, whose name is drawn when it starts.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from math import inf
from typing import Final

from epp.adapters.replicas.redis_link import FAILURES, Command, RedisLink
from epp.adapters.replicas.redis_server import RedisServer
from epp.adapters.replicas.redis_store import RedisStore
from epp.adapters.replicas.sealing import Seal
from epp.protocol.replicas.messages import THIS_IS_YOU, Dropped, Receive, Rejected
from epp.system.logs import Log

_log = Log(__name__)

MAX_BROADCASTS: Final = 32_768
"""Messages to all that are kept, about: a replica that was away reads these."""
_MAX_ANSWERS: Final = 4_096
"""Messages to one replica that are kept, about; it removes them each second."""
_KEPT_SECONDS: Final = 600
"""How long the stream for all outlives the last replica."""
_ANSWERS_KEPT_SECONDS: Final = 60
"""How long a replica's own stream outlives it."""
_MAX_QUEUED: Final = 16 << 20
"""The most bytes that wait to be written."""
_WRITTEN_AT_ONCE: Final = 1 << 20
"""Bytes that are written at once, about: the server has to accept them in time."""
_LONG: Final = 1 << 16
"""The size in bytes from which on an answer must wait for room, so that facts need not."""
_AT_ONCE: Final = 128
"""Entries that are read at once; fewer after a read that took too long."""
_BLOCK_SECONDS: Final = 1.0
"""How long a read waits for an entry."""
_GATHER_SECONDS: Final = 0.001
"""How long to wait between two reads, since reading entries one by one costs more."""
_TURN_SECONDS: Final = 0.001
"""How long entries are handled at a stretch while other tasks wait for the event loop."""
_UPKEEP_SECONDS: Final = 1.0
_PAUSE_SECONDS, _LONGEST_PAUSE = 0.1, 2.0
"""Seconds between attempts to connect, at first and at most."""
_KNOWN_SECONDS: Final = 60.0
"""How long a silent replica counts as known."""
_ASK_SECONDS: Final = 1.0
"""Seconds between two questions to a replica whether it runs."""
_ASKS_WHETHER_IT_RUNS, _RUNS = b"?", b"!"
_START: Final = b"0-0"
_FIELD: Final = b"m"


class RedisStreams:
    """Sends messages to all other replicas, and passes what they send to `receive`.

    `pool` is the namespace and the name of the pool. `dropped` is called with the reason why an
    entry is not used. While the server does not answer, it counts as one known replica.
    """

    def __init__(
        self,
        server: RedisServer,
        secret: bytes,
        pool: str,
        receive: Receive,
        dropped: Callable[[Dropped], None],
    ) -> None:
        self.unsent = 0
        self._server: Final = server
        self._seal: Final = Seal(secret)
        self._prefix: Final = prefix_of(pool)
        self._all: Final = self._prefix + b"all"
        self._own: Final = self._stream_of(self._seal.sender)
        self._receive: Final = receive
        self._dropped: Final = dropped
        self._places: Final[dict[bytes, bytes]] = {}
        self._queue: list[Command] = []
        self._queued_bytes = 0
        self._queued: Final = asyncio.Event()
        # By sender: the number of its first message to this, and when any of its was read last.
        self._running: Final[dict[bytes, tuple[float, float]]] = {}
        self._asked: Final[dict[bytes, float]] = {}
        self._read_at = 0.0
        self._at_once = _AT_ONCE
        self._works: Final = {"write": False, "read": False}
        self._tried: Final = asyncio.Event()
        self._logged: Final[set[str]] = set()

    @property
    def known(self) -> int:
        """How many other replicas wrote in the last minute before the server's last answer."""
        return max(self._others(), not self.works)

    @property
    def works(self) -> bool:
        """Whether the server can be written to and read."""
        return all(self._works.values())

    def _others(self) -> int:
        since = self._read_at - _KNOWN_SECONDS
        return sum([at > since for _, at in self._running.values()])

    @property
    def store(self) -> RedisStore:
        """The store in the same server."""
        return RedisStore(self._server, self._seal, self._prefix)

    async def tried(self) -> None:
        """Wait until the server has answered, or has not in time."""
        await self._tried.wait()

    async def run(self) -> None:
        """Read and write, and connect again when that fails; never returns."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep("write", self._write), name="replicas: writes to Redis")
            tasks.create_task(self._keep("read", self._read), name="replicas: reads of Redis")

    async def _keep(self, what: str, talk: Callable[[RedisLink], Awaitable[None]]) -> None:
        pause = _PAUSE_SECONDS
        while True:
            link = RedisLink(self._server)
            try:
                await link.open()
                await talk(link)
            except FAILURES as error:
                pause = _PAUSE_SECONDS if self._works[what] else min(2 * pause, _LONGEST_PAUSE)
                self._fails(what, error)
            finally:
                await link.close()
            await asyncio.sleep(pause)

    # Out.

    def send(self, message: bytes) -> int:
        """Send a message to all; return to how many, at least 1 if it can be written."""
        if self._put(self._all, message, MAX_BROADCASTS):
            return max(1, self._others())
        self.unsent += 1
        return 0

    def _answer(self, sender: bytes, message: bytes) -> bool:
        stream = self._stream_of(sender)
        if len(message) > _LONG and self._queued_bytes > _WRITTEN_AT_ONCE:
            return False
        if message == THIS_IS_YOU or not self._put(stream, message, _MAX_ANSWERS):
            return False
        self._queue.append((b"EXPIRE", stream, _ANSWERS_KEPT_SECONDS))
        return True

    def _put(self, stream: bytes, message: bytes, most: int) -> bool:
        if not self._works["write"] or self._queued_bytes + len(message) > _MAX_QUEUED:
            return False
        sealed = self._seal.seal(stream, message)
        self._queue.append((b"XADD", stream, b"MAXLEN", b"~", most, b"*", _FIELD, sealed))
        self._queued_bytes += len(sealed)
        self._queued.set()
        return True

    async def _write(self, link: RedisLink) -> None:
        """Write what is queued, until writing fails."""
        hello = self._seal.seal(self._own, b"")
        await link.ask([(b"XADD", self._own, b"*", _FIELD, hello), *self._upkeep()])
        self._succeeds("write")
        loop = asyncio.get_running_loop()
        kept = loop.time()
        while True:
            await self._queued.wait()
            commands = self._take_queue()
            if loop.time() - kept >= _UPKEEP_SECONDS:
                kept = loop.time()
                commands += self._upkeep()
                self._forget()
            try:
                await link.ask(commands)
            except FAILURES:
                self.unsent += sum(each[0] == b"XADD" for each in commands + self._queue)
                self._queue, self._queued_bytes = [], 0  # it is late by the next connection
                self._queued.clear()
                raise

    def _take_queue(self) -> list[Command]:
        """Return the commands that are to be written next."""
        size = count = 0
        while count < len(self._queue) and size < _WRITTEN_AT_ONCE:
            command = self._queue[count]
            size += len(command[-1]) if isinstance(command[-1], bytes) else 0
            count += 1
        commands, self._queue = self._queue[:count], self._queue[count:]
        self._queued_bytes -= size
        if not self._queue:
            self._queued.clear()
        return commands

    def _upkeep(self) -> list[Command]:
        """Return the commands that keep streams in use alive, and remove what was read."""
        return [
            (b"EXPIRE", self._all, _KEPT_SECONDS),
            (b"EXPIRE", self._own, _ANSWERS_KEPT_SECONDS),
            (b"XTRIM", self._own, b"MINID", b"~", self._places.get(self._own, _START)),
        ]

    def _forget(self) -> None:
        """Forget the replicas that are no longer known."""
        since = self._read_at - _KNOWN_SECONDS
        for gone in [sender for sender, (_, at) in self._running.items() if at <= since]:
            del self._running[gone]
        for gone in [sender for sender, at in self._asked.items() if at <= since]:
            del self._asked[gone]

    async def stop(self) -> None:
        """Send the rest, within a second, and remove this replica's own stream."""
        if not self._works["write"]:
            return
        link = RedisLink(self._server)
        try:
            async with asyncio.timeout(1.0):
                await link.open()
                while self._queue:
                    await link.ask(self._take_queue())
                await link.ask([*self._upkeep(), (b"DEL", self._own)])
        except FAILURES as error:
            self._fails("write", error)
        finally:
            await link.close()

    # In.

    async def _read(self, link: RedisLink) -> None:
        """Read entries and handle them, until reading fails."""
        await self._find_places(link)
        loop = asyncio.get_running_loop()
        blocking = b"BLOCK", round(1000 * _BLOCK_SECONDS)
        while True:
            streams = b"STREAMS", *self._places, *self._places.values()
            wanted: Command = (b"XREAD", b"COUNT", self._at_once, *blocking, *streams)
            try:
                (answer,) = await link.ask([wanted], _BLOCK_SECONDS)
            except TimeoutError:  # there may be too many for the time
                self._at_once = max(1, self._at_once // 4)
                raise
            self._at_once = min(_AT_ONCE, 2 * self._at_once)
            self._read_at = loop.time()
            self._succeeds("read")
            end = self._read_at + _TURN_SECONDS
            for stream, place, entry in _entries(answer):
                self._take(stream, entry)
                self._places[stream] = place
                if loop.time() > end:
                    await asyncio.sleep(0)
                    end = loop.time() + _TURN_SECONDS
            if answer:
                await asyncio.sleep(_GATHER_SECONDS)

    async def _find_places(self, link: RedisLink) -> None:
        """Find where to continue: where this replica was, or at the start of a new stream.

        When it starts, a replica reads only later entries of the stream for all.
        """
        for stream in (self._all, self._own):
            (answer,) = await link.ask([(b"XREVRANGE", stream, b"+", b"-", b"COUNT", 1)])
            last = next((place for place, _ in _pairs(answer)), _START)
            place = self._places.get(stream, last if stream == self._all else _START)
            self._places[stream] = _START if _order(last) < _order(place) else place

    def _take(self, stream: bytes, entry: list[bytes]) -> None:
        sealed = entry[1] if entry[::2] == [_FIELD] and entry[1:] else b""
        if self._seal.is_own(sealed):
            return
        try:
            to_this = stream == self._own
            sender, number, message = self._seal.open(stream, sealed, remember=to_this)
        except Rejected as rejected:
            self._dropped(rejected.reason)
            return
        first, _ = self._running.get(sender, (number if to_this else inf, 0.0))
        if number < first:
            self._ask_whether_it_runs(sender)
            return
        self._running[sender] = first, self._read_at
        if message == _ASKS_WHETHER_IT_RUNS:
            self._answer(sender, _RUNS)
        elif message != _RUNS:
            self._receive(message, partial(self._answer, sender))

    def _ask_whether_it_runs(self, sender: bytes) -> None:
        if self._read_at - self._asked.get(sender, -inf) >= _ASK_SECONDS:
            self._asked[sender] = self._read_at
            self._answer(sender, _ASKS_WHETHER_IT_RUNS)

    def _stream_of(self, sender: bytes) -> bytes:
        return b"%bto:%b" % (self._prefix, sender.hex().encode())

    # The log.

    def _succeeds(self, what: str) -> None:
        if self._works[what]:
            return
        self._works[what] = True
        if self.works:
            self._tried.set()
            self._logged.clear()
            _log.info("replicas.redis_works", server=str(self._server))

    def _fails(self, what: str, error: Exception) -> None:
        """Log each kind of failure once, until all works again."""
        self._works[what] = False
        self._tried.set()
        kind = type(error).__name__
        if kind in self._logged:
            return
        self._logged.add(kind)
        _log.warning(
            "replicas.redis_fails",
            server=str(self._server),
            problem=f"{kind}: {error}" if str(error) else kind,
            goes_on="with what it sees itself",
        )


def prefix_of(pool: str) -> bytes:
    """Return the prefix of a pool's keys; the braces keep them together in a cluster."""
    return b"warmpick:{%b}:" % pool.encode(errors="surrogateescape")


def _entries(answer: object) -> Iterator[tuple[bytes, bytes, list[bytes]]]:
    """Yield stream, place and fields of each entry. Raises one of `FAILURES` otherwise."""
    for stream, entries in _pairs(answer):
        for place, fields in _pairs(entries):
            yield stream, place, fields if isinstance(fields, list) else []


def _pairs(answer: object) -> Iterator[tuple[bytes, object]]:
    if answer is None:
        return
    if not isinstance(answer, list):
        raise TypeError("the server answers as Redis does not")
    for each in answer:
        first, second = each
        yield first, second


def _order(place: bytes) -> tuple[int, int]:
    milliseconds, _, number = place.partition(b"-")
    return int(milliseconds), int(number)
