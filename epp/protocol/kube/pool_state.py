"""A pool and its pods, as they are listed and watched, turned into what the fleet is told."""

from collections.abc import Collection, Iterable, Mapping

from epp.model.endpoint import Endpoint
from epp.model.events import Event, Listed
from epp.protocol.kube.address_claims import AddressClaims
from epp.protocol.kube.object_warnings import ObjectWarnings
from epp.protocol.kube.objects import InferencePool, KubePod
from epp.protocol.kube.pod_endpoints import active_ports, declared_ports, endpoints_of

Selector = Mapping[str, str]
"""Labels that a pod must have, all of them."""


class PoolState:
    """What is known of one pool; `events` and `notes` say what its changes amount to.

    `Listed` is among the events once pool and pods have both been told in full. A pool that goes
    takes its endpoints with it and is not complete until it is back with its pods.
    """

    def __init__(self, notes: ObjectWarnings) -> None:
        self.selector: Selector | None = None
        self.ports: tuple[int, ...] = ()
        self._notes = notes
        self._claims = AddressClaims()
        self._pods: dict[str, KubePod] = {}
        self._listed = False
        self._events: list[Event] = []

    @property
    def complete(self) -> bool:
        """Whether there is a pool, and all its pods are known."""
        return self.selector is not None and self._listed

    @property
    def endpoints(self) -> Collection[Endpoint]:
        """The endpoints that were told, events that wait included."""
        return self._claims.told

    def events(self) -> list[Event]:
        """Hand over what the fleet has not been told."""
        taken, self._events = self._events, []
        return taken

    # The pool.

    def pool_is(self, pool: InferencePool) -> None:
        """Take in the pool. With another selector its old pods stay until the new are listed."""
        self.select(pool.spec.selector.match_labels, pool.spec.ports)

    def select(self, selector: Selector, ports: tuple[int, ...]) -> None:
        """Take in which pods there are to be, and at which ports they serve.

        `selector` stays the same object for as long as nothing else is selected.
        """
        if selector != self.selector:
            self.selector = dict(selector)
        if ports != self.ports:
            self.ports = ports
            for pod in self._pods.values():
                self._claim(pod)

    def pool_gone(self) -> None:
        """Take in that there is no pool."""
        self.pods_gone(tuple(self._pods))
        self.selector, self.ports, self._listed = None, (), False

    # Its pods.

    def pods_are(self, pods: Iterable[KubePod]) -> None:
        """Take in pods as they are."""
        for pod in pods:
            self._pods[pod.metadata.name] = pod
            self._claim(pod)

    def pods_gone(self, names: Iterable[str]) -> None:
        """Take in that pods of these names are no more, or no more the pool's."""
        for name in names:
            if self._pods.pop(name, None) is not None:
                self._notes.settle(f"pod/{name}")
                self._events += self._claims.claim(name, ("", ""), ())

    def pods_listed(self, names: Collection[str]) -> None:
        """Take in that the pool's pods are these and no others."""
        self.pods_gone([name for name in self._pods if name not in names])
        if self.selector is not None and not self._listed:
            self._listed = True
            self._events.append(Listed())

    def _claim(self, pod: KubePod) -> None:
        self._check(pod)
        endpoints = endpoints_of(pod, self.ports)
        self._events += self._claims.claim(pod.metadata.name, pod.metadata.age, endpoints)

    def _check(self, pod: KubePod) -> None:
        """Note an annotation that cannot be read in full."""
        declared, name = declared_ports(pod), f"pod/{pod.metadata.name}"
        _, strange = active_ports(declared, self.ports)
        if declared is None or not strange:
            self._notes.settle(name)
            return
        self._notes.add(
            name, declared, "pod.active_ports_malformed", no_ports=strange, instead="passed over"
        )
