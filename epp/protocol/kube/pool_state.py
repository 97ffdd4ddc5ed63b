"""The state of one pool, built from lists and watches: its pods become events of endpoints."""

from collections.abc import Collection, Iterable, Mapping

from epp.model.events import Event, Listed
from epp.protocol.kube.address_claims import AddressClaims
from epp.protocol.kube.object_warnings import ObjectWarnings
from epp.protocol.kube.objects import AnyPool, KubePod
from epp.protocol.kube.pod_endpoints import active_ports, endpoints_of, unreachable

Selector = Mapping[str, str] | str
"""The labels that a pod must have, all of them; or a selector in the API's own form."""


_LONGEST_SAID = 100
"""The most characters of an object's text that are logged."""


class PoolState:
    """One pool and its pods; every change adds to `drain_events` and to `warnings`.

    `Listed` is among the events once the pool and all its pods are known. A pool that is deleted
    takes its endpoints with it, and is not complete until it and its pods are back. `labels` are
    the pool's own, None while there is no pool.
    """

    def __init__(self, warnings: ObjectWarnings) -> None:
        self.selector: Selector | None = None
        self.labels: Mapping[str, str] | None = None
        self.ports: tuple[int, ...] = ()
        self.app_protocol = ""
        self._warnings = warnings
        self._claims = AddressClaims()
        self._pods: dict[str, KubePod] = {}
        self._listed = False
        self._events: list[Event] = []

    @property
    def complete(self) -> bool:
        """Whether the pool exists and all its pods are known."""
        return self.selector is not None and self._listed

    def drain_events(self) -> list[Event]:
        """Return and remove the events since the last call."""
        drained, self._events = self._events, []
        return drained

    # The pool.

    def set_pool(self, pool: AnyPool) -> None:
        """Set the pool. Pods of an earlier selector stay until those of this one are listed.

        One that is being deleted counts as deleted (GIE and llm-d-router: the same).
        """
        if pool.metadata.deletion_timestamp is not None:
            self.remove_pool()
            return
        self.labels = pool.metadata.labels
        self.select(pool.spec.pod_labels, pool.spec.ports, pool.spec.app_protocol)

    def select(self, selector: Selector, ports: tuple[int, ...], app_protocol: str = "") -> None:
        """Set the labels of the pool's pods, the ports at which they serve, and what they speak.

        The attribute `selector` stays the same object until other labels are selected.
        """
        if selector != self.selector:
            self.selector = selector if isinstance(selector, str) else dict(selector)
        if (ports, app_protocol) != (self.ports, self.app_protocol):
            self.ports, self.app_protocol = ports, app_protocol
            for pod in self._pods.values():
                self._claim(pod)

    def remove_pool(self) -> None:
        """Remove the pool, its pods and its endpoints."""
        self.remove_pods(tuple(self._pods))
        self.selector, self.ports, self.labels, self._listed = None, (), None, False

    # Its pods.

    def upsert_pods(self, pods: Iterable[KubePod]) -> None:
        """Add pods, or replace those of the same names."""
        for pod in pods:
            self._pods[pod.metadata.name] = pod
            self._claim(pod)

    def remove_pods(self, names: Iterable[str]) -> None:
        """Remove pods that were deleted, or that the pool does not select any more."""
        for name in names:
            if self._pods.pop(name, None) is not None:
                self._warnings.clear(f"pod/{name}")
                self._events += self._claims.claim(name, ("", ""), ())

    def retain_pods(self, names: Collection[str]) -> None:
        """Remove all pods but these: the pool's pods are listed in full."""
        self.remove_pods([name for name in self._pods if name not in names])
        if self.selector is not None and not self._listed:
            self._listed = True
            self._events.append(Listed())

    def _claim(self, pod: KubePod) -> None:
        self._check(pod)
        endpoints = endpoints_of(pod, self.ports, self.app_protocol)
        self._events += self._claims.claim(pod.metadata.name, pod.metadata.age, endpoints)

    def _check(self, pod: KubePod) -> None:
        """Warn of an address that is not one, and of active ports that are not port numbers."""
        name = f"pod/{pod.metadata.name}"
        _, invalid = active_ports(pod, self.ports)
        if unreachable(pod):
            address = pod.status.pod_ip[:_LONGEST_SAID]
            self._warnings.add(
                name, address, "pod.address_malformed", address=address, instead="left out"
            )
        elif invalid:
            said = invalid[:_LONGEST_SAID]
            self._warnings.add(
                name, said, "pod.active_ports_malformed", no_ports=said, instead="passed over"
            )
        else:
            self._warnings.clear(name)
