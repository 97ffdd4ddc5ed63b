"""Discovery from a file: reads it, polls it for changes, and turns them into events."""

import asyncio
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from epp.errors import ConfigError
from epp.model.endpoint import Endpoint, EndpointId
from epp.model.events import EndpointRemoved, EndpointUpserted, Event, Listed
from epp.protocol.endpoints import MAX_BYTES, KnownEndpoints, endpoints_steps
from epp.system.daemon_thread import in_daemon_thread
from epp.system.files import FollowedFile
from epp.system.host_names import HostNames
from epp.system.logs import Log

_log = Log(__name__)

_RUN_SECONDS, _REST_SECONDS = 0.001, 0.0005
"""How long the reading thread keeps the interpreter, and how long it leaves it to the loop."""
_APPLIED_AT_ONCE = 16
"""Events of a change that are applied in one turn of the loop."""
_NAMES_IN_A_LINE = 8
"""Endpoints whose names a line of the log has."""


class EndpointsFile:
    """The endpoints listed in the file at `path`, which is checked every `poll` seconds.

    Passes an event of each difference to `apply`, removals first; `Listed` follows the first
    read. While the file is missing or invalid its last valid content counts, and one error is
    logged. It is read in a thread. With `names` addresses may be host names, which are resolved
    again every `names.interval` seconds.

    A file has no routing rules, and there is no leader election.
    """

    ready = True
    lease = routing = None

    def __init__(
        self,
        path: Path,
        apply: Callable[[Event], None],
        *,
        poll: float = 1.0,
        names: "ClusterNames | None" = None,
    ) -> None:
        self._file = FollowedFile(path, MAX_BYTES)
        self._apply = apply
        self._poll = poll
        self._names = names
        self._known = KnownEndpoints()
        self._problem = ""

    async def load(self) -> None:
        """Read the file; comes before `run`.

        Raises `ConfigError`, with the path as its place, if it is missing or invalid.
        """
        try:
            endpoints = await in_daemon_thread(self._read)
        except ConfigError as error:
            raise ConfigError(self._problem_of(error), str(self._file.path)) from None
        for event in self._known.differences(endpoints or ()):
            self._apply(event)
        self._apply(Listed())

    async def run(self) -> None:
        """Check the file until cancelled; never returns."""
        over = threading.Event()
        try:
            while True:
                await self._follow(over)
        finally:
            over.set()

    async def _follow(self, over: threading.Event) -> None:
        """Apply the next change, or report the next problem."""
        try:
            endpoints = await in_daemon_thread(self._next, over)
        except ConfigError as error:
            self._report(self._problem_of(error))
        else:
            await self._replace(endpoints)

    def _problem_of(self, error: ConfigError) -> str:
        """Return the problem and its place in the file, without the file's path."""
        return error.problem if error.place == str(self._file.path) else str(error)

    async def _replace(self, endpoints: tuple[Endpoint, ...]) -> None:
        """Apply the content in turns of the loop; read it again if one of its events fails."""
        before, touched = self._known.ids(), set[EndpointId]()
        try:
            for number, event in enumerate(self._known.differences(endpoints), 1):
                self._apply(event)
                touched.add(_id_of(event))
                if number % _APPLIED_AT_ONCE == 0:
                    await asyncio.sleep(0)
        except Exception:  # whatever an event ran into, the job that is restarted reads it again
            self._file.forget()
            raise
        path, after = str(self._file.path), self._known.ids()
        if self._problem:
            self._problem = ""
            _log.info("endpoints_file.recovered", path=path)
        if touched:
            told = {
                "added": after - before,
                "removed": before - after,
                "changed": touched & before & after,
            }
            fields = {what: _names(ids) for what, ids in told.items() if ids}
            _log.info("endpoints_file.changed", path=path, **fields, endpoints=len(after))

    def _next(self, over: threading.Event) -> tuple[Endpoint, ...]:
        """Return the endpoints of the file once it has changed. Raises `ConfigError`.

        One thread checks until then: neither the loop nor another thread starts for a check.
        Returns nothing once `over` is set.
        """
        while not over.wait(self._poll):
            endpoints = self._read()
            if endpoints is not None:
                return endpoints
        return ()

    def _read(self) -> tuple[Endpoint, ...] | None:
        """Return the endpoints of the file if it changed, else None. Raises `ConfigError`."""
        if self._names is not None and self._names.due():
            self._file.forget()
        text = self._file.changed()
        if text is None:
            return None
        if self._names is not None:
            self._names.begin()
        steps = endpoints_steps(text, self._names)
        end = time.perf_counter() + _RUN_SECONDS
        while True:
            try:
                next(steps)
            except StopIteration as done:
                endpoints: tuple[Endpoint, ...] = done.value
                return endpoints
            # A thread that asks for the interpreter waits 5 ms for one that keeps it
            # (`sys.getswitchinterval`), each time.
            if time.perf_counter() > end:
                time.sleep(_REST_SECONDS)
                end = time.perf_counter() + _RUN_SECONDS

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            _log.error("endpoints_file.rejected", path=str(self._file.path), error=problem)


def _id_of(event: EndpointUpserted | EndpointRemoved) -> EndpointId:
    return event.endpoint_id if isinstance(event, EndpointRemoved) else event.endpoint.id


def _names(ids: Collection[EndpointId]) -> str:
    first = ", ".join(sorted(ids)[:_NAMES_IN_A_LINE])
    more = len(ids) - _NAMES_IN_A_LINE
    return f"{first} and {more} more" if more > 0 else first


class ClusterNames:
    """Resolves the host names of clusters, in the thread that calls it; `clock` returns seconds.

    A name keeps its address as long as `HostNames` has it among others. A name without an address
    is logged once, until it has one.
    """

    def __init__(self, interval: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.interval = interval
        self._clock = clock
        self._names = HostNames(clock)
        self._chosen: dict[tuple[str, int], str] = {}
        self._missing: set[str] = set()
        self._at = clock()

    def due(self) -> bool:
        """Return whether names are to be resolved again."""
        return self._clock() - self._at >= self.interval

    def begin(self) -> None:
        """Start the interval after which names are to be resolved again."""
        self._at = self._clock()

    def __call__(self, name: str, port: int) -> str:
        """Return an IP address of a name whose cluster listens at a port; "" if it has none."""
        self.begin()  # a slow name server has an interval's rest, too
        found, problem = self._names.resolve(name, port)
        if problem and name not in self._missing:
            _log.warning("endpoints_file.unresolved", name=name, error=problem)
        (self._missing.add if problem else self._missing.discard)(name)
        if self._chosen.get((name, port)) not in found:
            self._chosen[name, port] = next(iter(found), "")
        return self._chosen[name, port]
