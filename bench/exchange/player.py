"""Runs `epp serve` in this process on a virtual loop, and plays it what a file says.

    python -m bench.exchange.player PLAY TOOK

Nothing here varies from run to run: time, chance, threads and sockets are made up before `epp` is
imported, of which only the command `epp serve` is known. So it plays any commit that has that.
Before each phase that counts, and after it, `getpriority` is called, where callgrind is told to
write down what it counted.
"""

import _thread
import asyncio
import os
import random
import runpy
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import cast

import msgspec

from bench.exchange.play import Phase, Play, Read, Took
from bench.exchange.virtual_loop import Clock, VirtualTransport, virtual_loop

_START_SECONDS = 1.0
_REST_SECONDS = 0.2
"""How long after each phase timers run."""
_FOUND_SECONDS = 3.0
"""How long the picker has to find endpoints in a file that is written in place, and to have polled
them."""
_cpu_seconds = time.process_time


class _Seeded(random.Random):
    """Chance that is the same in each run."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__(seed)


def make_certain() -> Clock:
    """Replace what varies; return the clock."""
    clock = Clock(1000.0)
    now = partial(attrgetter("now"), clock)  # no function of Python's own, which would count
    for name in ("monotonic", "perf_counter", "process_time"):
        setattr(time, name, now)
    random.Random = _Seeded  # type: ignore[assignment, misc]  # as it says
    threading.Thread.start = threading.Thread.run  # type: ignore[method-assign]  # here and now
    threads = _Threads()
    _thread.start_new_thread = threads.run  # type: ignore[assignment]
    threading.Event.wait = threads.wait  # type: ignore[method-assign, assignment]
    return clock


class _Waits(BaseException):
    """A thread waits for `seconds`; nobody ends its wait before."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class _Threads:
    """Runs on the loop what threads were to run: from the beginning again after each wait."""

    def __init__(self) -> None:
        self._waited = False

    def run(self, function: Callable[..., object], arguments: tuple[object, ...]) -> int:
        """Call a function up to where it waits, and later go on."""
        try:
            function(*arguments)
        except _Waits as waits:
            loop = asyncio.get_running_loop()
            loop.call_later(waits.seconds, self._go_on, function, arguments)
        return 0

    def _go_on(self, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self._waited = True
        self.run(function, arguments)

    def wait(self, timeout: float) -> bool:
        """Stand in for `threading.Event.wait`."""
        if not self._waited:
            raise _Waits(timeout)
        self._waited = False
        return False


class Player:
    """Plays to one picker, and writes down what each phase took."""

    def __init__(self, play: Play, clock: Clock) -> None:
        self._play = play
        self._clock = clock
        self._loop = virtual_loop(clock, play.page)
        self.took: list[Took] = []

    def run(self, main: Coroutine[object, object, None]) -> None:
        """Stand in for `uvloop.run`: start the picker, and play."""
        loop = self._loop
        asyncio.events._set_running_loop(loop)  # noqa: SLF001 (what a loop does that runs)
        serving = loop.create_task(main)
        loop.run_for(_START_SECONDS)
        if serving.done():
            serving.result()
        mark()  # what was counted up to here is the start
        connection = cast(asyncio.Protocol, loop.listening[self._play.port]())
        transport = VirtualTransport()
        connection.connection_made(transport)
        for phase in self._play.phases:
            self._take(phase, connection, transport)

    def _take(
        self, phase: Phase, connection: asyncio.Protocol, transport: VirtualTransport
    ) -> None:
        loop = self._loop
        if phase.endpoints:
            self.list_endpoints(phase.endpoints)
            loop.run_for(_FOUND_SECONDS)
        before, sent = _cpu_seconds(), transport.sent
        if phase.parts:
            mark()
        if phase.seconds:
            loop.run_for(phase.seconds)
        self._read(phase.reads, connection)
        if phase.parts:
            mark()
            seconds = _cpu_seconds() - before
            self.took.append(Took(name=phase.name, sent=transport.sent - sent, seconds=seconds))
        loop.run_for(_REST_SECONDS)

    def list_endpoints(self, endpoints: str) -> None:
        """Write the file that the picker reads."""
        Path(self._play.endpoints_file).write_text(endpoints, encoding="utf-8")

    def _read(self, reads: tuple[Read, ...], connection: asyncio.Protocol) -> None:
        """Hand over what is read; time passes, but no timer runs: what they do is counted apart."""
        clock, run_ready, received = self._clock, self._loop.run_ready, connection.data_received
        for read in reads:
            clock.now += read.after
            received(read.data)
            run_ready()


def make_classes(number: int) -> None:
    """Look something up in classes that nothing uses: each takes a version of Python's."""
    for _ in range(number):
        getattr(type("Unused", (), {})(), "nothing", None)


def mark() -> None:
    """Call what callgrind is told to watch."""
    os.getpriority(os.PRIO_PROCESS, 0)


def main() -> None:
    """Play, and write down what was seen."""
    _, played, took = sys.argv
    play = msgspec.msgpack.decode(Path(played).read_bytes(), type=Play)
    clock = make_certain()
    make_classes(play.classes)
    import uvloop  # noqa: PLC0415 (after time is virtual)

    player = Player(play, clock)
    player.list_endpoints(play.endpoints)
    uvloop.run = player.run  # type: ignore[assignment]  # as it says
    mark()  # Python itself, and this
    sys.argv = ["epp", *play.arguments]
    with suppress(SystemExit):
        runpy.run_module("epp", run_name="__main__")
    Path(took).write_bytes(msgspec.json.encode(player.took))


if __name__ == "__main__":
    main()
