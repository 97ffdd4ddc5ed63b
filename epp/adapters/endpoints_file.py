"""Discovery from a file: reads it, polls it for changes, and turns them into events."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from epp.errors import ConfigError
from epp.model.endpoint import Endpoint, EndpointId
from epp.model.events import EndpointRemoved, EndpointUpserted, Event, Listed
from epp.protocol.endpoints import parse_endpoints

_log = structlog.get_logger(__name__)

Signature = tuple[int, int, int, int]
"""mtime and ctime (ns), inode and size of the file, or of the target of a symlink.

Kubernetes updates a mounted ConfigMap by turning a symlink to another directory.
"""


class EndpointsFile:
    """The endpoints listed in the file at `path`, which is checked every `poll` seconds.

    Passes an event of each difference to `apply`, removals first; `Listed` follows the first
    read. While the file is missing or invalid its last valid content counts, and one error is
    logged.
    """

    def __init__(self, path: Path, apply: Callable[[Event], None], *, poll: float = 0.5) -> None:
        self._path = path
        self._apply = apply
        self._poll = poll
        self._known: dict[EndpointId, Endpoint] = {}
        self._signature: Signature | None = None
        self._problem = ""

    def load(self) -> None:
        """Read the file; comes before `run`. Raises `ConfigError` if it is missing or invalid."""
        self._signature = _signature(self._path)
        self._replace(_read(self._path))
        self._apply(Listed())

    async def run(self) -> None:
        """Check the file until cancelled; never returns."""
        while True:
            await asyncio.sleep(self._poll)
            self._refresh()

    def _refresh(self) -> None:
        signature = _signature(self._path)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            self._replace(_read(self._path))
        except ConfigError as error:
            self._report(str(error))
            return
        if self._problem:
            self._problem = ""
            _log.info("endpoints_file.recovered", path=str(self._path))

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            _log.error("endpoints_file.rejected", path=str(self._path), error=problem)

    def _replace(self, endpoints: tuple[Endpoint, ...]) -> None:
        """Apply the difference, removals first; another address or rank is another engine."""
        listed = {endpoint.id: endpoint for endpoint in endpoints}
        for key, known in self._known.items():
            if key not in listed or listed[key].engine != known.engine:
                self._apply(EndpointRemoved(key))
        for key, endpoint in listed.items():
            if self._known.get(key) != endpoint:
                self._apply(EndpointUpserted(endpoint))
        self._known = listed


def _signature(path: Path) -> Signature | None:
    """Return a value that changes with the file; None while it is missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size


def _read(path: Path) -> tuple[Endpoint, ...]:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    return parse_endpoints(text)
