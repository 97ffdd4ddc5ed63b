"""The place of an endpoint: its host, rack, zone and region, from labels of its pod."""

from typing import NamedTuple

import msgspec

from epp.model.endpoint import Endpoint


class TopologyLabels(msgspec.Struct, frozen=True):
    """The names of a pod's labels for its place, by default llm-d-router's and Kubernetes'."""

    hostname: str = "kubernetes.io/hostname"
    rack: str = "topology.kubernetes.io/rack"
    zone: str = "topology.kubernetes.io/zone"
    region: str = "topology.kubernetes.io/region"


TOPOLOGY_LABELS = TopologyLabels()


class Topology(NamedTuple):
    """The place of an endpoint, from the narrowest to the widest; "" if unknown."""

    hostname: str
    rack: str
    zone: str
    region: str

    def shared(self, other: "Topology") -> str:
        """Return the field of the narrowest place that both are in; empty for none."""
        both = zip(self._fields, self, other, strict=True)
        return next((name for name, mine, theirs in both if mine and mine == theirs), "")


def topology_of(endpoint: Endpoint, labels: TopologyLabels = TOPOLOGY_LABELS) -> Topology | None:
    """Return where an endpoint runs; None if that is not known.

    Without its label the host is the pod's `spec.hostname`, as in llm-d-router's
    `topology-extractor`; rack, zone and region come only from labels.
    """
    found = endpoint.labels
    place = Topology(
        hostname=found.get(labels.hostname, "") or endpoint.hostname,
        rack=found.get(labels.rack, ""),
        zone=found.get(labels.zone, ""),
        region=found.get(labels.region, ""),
    )
    return place if any(place) else None
