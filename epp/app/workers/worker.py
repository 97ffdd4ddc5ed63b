"""A worker's side: it receives connections, and reports its state."""

import asyncio
import os
import shutil
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from msgspec.structs import replace

from epp.adapters.extproc.contract import ExtProcServer
from epp.adapters.extproc.health import HealthServices
from epp.adapters.replicas.settings import ReplicaSettings, Siblings
from epp.adapters.workers.link import WorkerLink, WorkerState
from epp.app.options import ServeOptions
from epp.protocol.health import ServingStatus, answer

if TYPE_CHECKING:
    from epp.adapters.extproc.native import NativeServer

_BEAT_SECONDS: Final = 1.0
"""How often a worker reports its state if nothing changes."""
_SERVES: Final = answer(ServingStatus.SERVING)


class Worker:
    """One of several processes that serve as one.

    It follows readiness as a health server does, and reports it to the process that started it.
    """

    port = 0

    def __init__(self, link: WorkerLink) -> None:
        self._listening = False
        self._link: Final = link
        self._taken = 0
        self._ready = False
        self._server: NativeServer

    @property
    def pages(self) -> str:
        """The path of the socket at which it serves its pages."""
        return str(self._link.start.page_socket)

    def join(self, server: ExtProcServer, health: HealthServices) -> "Worker":
        """Pass connections to a server, and follow its health; return this worker."""
        self._server = cast("NativeServer", server)
        health.watch(b"", self._became)
        return self

    async def start(self, _address: str, _port: int) -> None:
        """Take connections, and report the state."""
        self._link.open(self._take, self._shed, self._stop)
        self._report()

    async def stop(self) -> None:
        """Report the state for the last time."""
        self._report()

    async def run(self) -> None:
        """Report the state again and again; never returns."""
        while True:
            self._report()
            await asyncio.sleep(_BEAT_SECONDS)

    def report_listening(self, *, listening: bool) -> None:
        """Report whether connections are taken."""
        self._listening = listening
        self._report()

    def _take(self, connection: socket.socket | None) -> None:
        self._taken += 1
        if connection is not None:
            self._server.take(connection)

    def _shed(self, connections: int) -> None:
        self._server.shed(connections)
        self._report()

    def _became(self, status: bytes) -> None:
        self._ready = status == _SERVES
        self._report()

    def _report(self) -> None:
        self._link.send_state(
            WorkerState(
                listening=self._listening,
                ready=self._ready,
                taken=self._taken,
                open=self._server.open_connections,
            )
        )

    def _stop(self) -> None:
        """Stop in order, and leave no files: the process that started this worker is gone."""
        shutil.rmtree(
            self._link.start.folder, ignore_errors=True
        )  # open connections are not affected
        os.kill(os.getpid(), signal.SIGTERM)


def as_worker(options: ServeOptions, link: WorkerLink) -> ServeOptions:
    """Return the options of one worker: its share of memory, and the others as replicas.

    Its pages are only for the process that started it, which checks who may read them.
    """
    me = link.start
    siblings = Siblings(folder=Path(me.folder), number=me.number, count=me.count)
    return replace(
        options,
        worker=Worker(link),
        metrics_access=None,
        metrics_cert_path=None,
        metrics_client_ca=None,
        sharers=me.count,
        hash_secret=options.hash_secret or me.secret,
        replicas=for_worker(options.replicas, siblings),
    )


def for_worker(elsewhere: ReplicaSettings | None, siblings: Siblings) -> ReplicaSettings:
    """Return the addresses of other replicas: in this pod, and at the ports of each other pod."""
    if elsewhere is None:
        return ReplicaSettings(peers=(), siblings=siblings)
    peers = [
        replace(peer, port=peer.port + number)
        for peer in elsewhere.peers
        for number in range(siblings.count)
    ]
    own = elsewhere.port and elsewhere.port + siblings.number
    return replace(elsewhere, peers=peers, port=own, siblings=siblings)
