"""Shared parts of the tests of the adapter: objects for the API, and recorders of updates."""

import contextlib
from pathlib import Path

from epp.adapters.kube.api_connection import ApiConnection
from epp.adapters.kube.kube_discovery import KubeDiscovery
from epp.adapters.kube.kube_settings import KubeAccess, KubeSettings, ReflectorSettings
from epp.adapters.kube.reflector import Reflector, Sink
from epp.model.events import EndpointRemoved, EndpointUpserted, Listed
from epp.protocol.kube.resources import Selection, pods
from tests.kubeapi import FakeKubernetes
from tests.protocol.kube import objects
from tests.tasks import Changed, running

CRDS = sorted((Path(__file__).parents[3] / "manifests" / "crds").glob("inference*.yaml"))
POOLS = [path for path in CRDS if "inferencepools" in path.name]
QUICK = ReflectorSettings(
    page_size=3, min_backoff=0.01, max_backoff=0.05, probe_delay=0.01, refused_delay=0.05
)


def pod(name, ip="10.0.0.1", **more):
    """A pod that the API takes: it has a container, and the API gives it its uid and age."""
    made = objects.pod(name, ip, **more)
    del made["metadata"]["uid"], made["metadata"]["creationTimestamp"]
    return made | {"spec": {"containers": [{"name": "vllm", "image": "vllm"}]}}


def rewrite(name, *rules, **more):
    made = objects.rewrite(name, *rules, **more)
    del made["metadata"]["creationTimestamp"]
    return made


class Seen(Changed):
    """A recorder of a reflector's updates: its objects, and how often all were listed."""

    def __init__(self):
        super().__init__()
        self.objects = {}
        self.lists = 0
        self.removed = []

    @property
    def names(self):
        return set(self.objects)

    @property
    def sink(self):
        return Sink(upsert=self._put, remove=self._gone, retain=self._listed)

    def _put(self, objects):
        self.objects |= {each.metadata.name: each for each in objects}
        self()

    def _gone(self, names):
        self.removed += [name for name in names if self.objects.pop(name, None) is not None]
        self()

    def _listed(self, names):
        self.lists += 1
        self._gone([name for name in self.objects if name not in names])


@contextlib.asynccontextmanager
async def connected(api: FakeKubernetes, folder, **user):
    """A connection to the API, as the administrator or as `user` of a kubeconfig."""
    path = api.kubeconfig(folder / "kubeconfig", user=user or None)
    connection = ApiConnection(KubeAccess(kubeconfig=str(path), environ={}))
    await connection.open()
    try:
        yield connection
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def following(connection, resource=None, selection=None, settings=QUICK):
    """A reflector at work (default: on all pods), and what it sees."""
    seen = Seen()
    reflector = Reflector(
        connection, resource or pods("default"), selection or Selection(), seen.sink, settings
    )
    async with running(reflector.run()):
        yield seen


async def watched(api, resource="pods", after=0):
    """Wait until a watch of the resource is open, past so many requests."""
    return await api.asked(lambda ask: (ask.verb, ask.resource) == ("watch", resource), after=after)


class StandInFleet(Changed):
    """A stand-in for the fleet: the endpoints of the events that it was given."""

    def __init__(self):
        super().__init__()
        self.endpoints = {}
        self.listed = 0
        self.ready = []
        self.told_at_removals = []

    def apply(self, event):
        match event:
            case EndpointUpserted(endpoint):
                self.endpoints[endpoint.id] = endpoint
            case EndpointRemoved(endpoint_id):
                del self.endpoints[endpoint_id]
                self.told_at_removals.append(self.ready[-1:])
            case Listed():
                self.listed += 1
            case _:
                raise AssertionError(event)
        self()

    @property
    def targets(self):
        return sorted(each.target for each in self.endpoints.values())


@contextlib.asynccontextmanager
async def discovering(api, folder, protocol_fault=lambda _: "", **settings):
    """A discovery of the pool `pool` at work, and the fleet that it tells."""
    path = api.kubeconfig(folder / "kubeconfig")
    fleet = StandInFleet()

    def changed():
        fleet.ready.append(made.ready)
        fleet()

    made = KubeDiscovery(
        KubeSettings(
            **{"namespace": "default", "pool": "pool", "reflector": QUICK, **settings},
            access=KubeAccess(kubeconfig=str(path), environ={}),
        ),
        fleet.apply,
        changed,
        protocol_fault,
    )
    await made.load()
    async with running(made.run()):
        yield made, fleet
