"""Fleets that exchange what they see, and their caches, over real sockets."""

import contextlib

from epp.adapters.replicas.settings import PeerAddress, ReplicaSettings
from epp.app.replicas.exchange import Replicas
from epp.model.events import EndpointRemoved
from epp.model.listeners import reraise
from epp.model.prefix_index.index import BUDGET
from epp.model.request import RequestId, Usage
from epp.model.request_events import Finished
from tests.model.rig import Rig
from tests.strategies import text
from tests.tasks import running, until

SECRET = b"a secret of sixteen bytes and more"
DEADLINE = 30
HERE = "127.0.0.1"
MANY = 30


class Started(Rig):
    """A fleet with its exchange; its clock goes on only as it is told."""

    def __init__(
        self, *ports, secret=SECRET, pool="pool", index_bytes=BUDGET, on_fault=reraise, **more
    ):
        super().__init__(index_bytes=index_bytes)
        self.addresses = [PeerAddress(HERE, port) for port in ports]
        settings = ReplicaSettings(
            peers=self.addresses,
            port=0,
            reconnect=(0.01, 0.05),
            look_up=0.05,
            **more,
        )
        self.replicas = Replicas(
            self.fleet,
            settings,
            secret,
            pool=pool,
            bind_address=HERE,
            clock=lambda: self.now,
            on_fault=on_fault,
        )
        observer = self.replicas.observer
        assert observer.start is not None
        assert observer.run is not None
        assert observer.stop is not None
        assert observer.collect is not None
        self.start, self.run, self.stop = observer.start, observer.run, observer.stop
        self.collect = observer.collect

    @property
    def port(self):
        mesh = self.replicas.mesh
        return 0 if mesh is None else mesh.port

    def meets(self, other):
        """Have it reach another one that started later."""
        self.addresses.append(PeerAddress(HERE, other.port))

    @contextlib.asynccontextmanager
    async def running(self):
        self.start()
        try:
            async with running(self.run()):
                yield self
        finally:
            await self.stop()

    def metrics(self):
        lines = "".join(each.lines() for each in self.collect()).splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def dropped(self):
        return sum(value for name, value in self.metrics().items() if "dropped" in name)

    async def hears(self, number=1):
        await until(lambda: self.metrics()["warmpick_replicas_heard"] == number)

    def in_flight_here(self):
        return {name: each.pod.endpoint.name for name, each in self.fleet.in_flight.items()}


def started(*ports, **more):
    return Started(*ports, **more).running()


@contextlib.asynccontextmanager
async def two(**more):
    async with started(**more) as one, started(one.port) as other:
        one.meets(other)
        for each in (one, other):
            await each.hears()
            await until(lambda each=each: each.metrics()["warmpick_replicas_reached"] == 1)
        yield one, other


def serve_many(rig, count=MANY, seed="", pod="pod-0"):
    for number in range(count):
        name = f"{seed}{number}"
        rig.send(pod, name, text(300, seed=f"{seed}x{number}y"))
        rig.apply(Finished(RequestId(name), Usage(300, 1, 0)))


def unheard(rig):
    """Have what follows not be told."""
    rig.replicas._writer.applying = True


def heard(rig):
    rig.replicas._writer.applying = False


async def settled(*rigs):
    """Wait until each may own endpoints, and all others know."""
    await until(lambda: all(each.replicas._writer.settled for each in rigs))
    await until(lambda: all(peer.owns for each in rigs for peer in peers(each)))


def peers(rig):
    return list(rig.replicas.reader.peers.values())


def compared(rig, result):
    return rig.metrics()[f'warmpick_replica_caches_compared_total{{result="{result}"}}']


async def compare(*rigs):
    """Have digests go round, and wait until each endpoint's was looked at."""
    before = sum(compared(each, result) for each in rigs for result in ("same", "different"))
    for each in rigs:
        await each.replicas.copies.send_own_digests()
    await until(
        lambda: (
            sum(compared(each, result) for each in rigs for result in ("same", "different"))
            == before + 2
        )
    )


def speeds(rig):
    """Return what a prompt of 1,000 tokens takes at each, in seconds."""
    paces = {pod.endpoint.name: pod.pace for pod in rig.fleet.pods.values()}
    return {
        name: pace.prefill_slowness.value * pace.of_class.prefill.seconds(1000, 0)
        for name, pace in paces.items()
    }


@contextlib.asynccontextmanager
async def starting(one, *, listed):
    """A replica that begins to start beside another, and all endpoints; it may know none yet."""
    fresh = Started(one.port)
    endpoints = fresh.fleet.endpoints
    if not listed:
        for each in endpoints:
            fresh.apply(EndpointRemoved(each.id))
    async with fresh.running():
        one.meets(fresh)
        yield fresh, endpoints
