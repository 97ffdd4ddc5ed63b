"""Producers of facts about endpoints that their pods' labels contain.

Names, parameters and defaults are llm-d-router's, whose data layer copies labels into attributes;
here labels are read when a plug-in asks.
"""

import math

from epp.model.endpoint import Endpoint
from epp.model.topology import TOPOLOGY_LABELS, Topology, TopologyLabels, topology_of
from epp.policy.plugins import PluginParameters


class TopologyExtractor(PluginParameters, frozen=True):
    """Knows where endpoints run, by labels that name host, rack, zone and region.

    An empty name stands for the default. A pod without the host's label runs on its
    `spec.hostname`.
    """

    hostname: str = TOPOLOGY_LABELS.hostname
    rack: str = TOPOLOGY_LABELS.rack
    zone: str = TOPOLOGY_LABELS.zone
    region: str = TOPOLOGY_LABELS.region

    def topology(self, endpoint: Endpoint) -> Topology | None:
        """Return where an endpoint runs; None if it is not known."""
        default = TOPOLOGY_LABELS
        return topology_of(
            endpoint,
            TopologyLabels(
                hostname=self.hostname or default.hostname,
                rack=self.rack or default.rack,
                zone=self.zone or default.zone,
                region=self.region or default.region,
            ),
        )


class LabelMapping(PluginParameters, frozen=True):
    """A label of a pod, and the attribute that has its value."""

    label: str
    attribute_key: str

    def __post_init__(self) -> None:
        if not self.label or not self.attribute_key:
            raise ValueError("`label` and `attributeKey` are needed")


class LabelProducer(PluginParameters, frozen=True):
    """Makes attributes of the labels of pods.

    `labels` has all of them; `label`, `attribute_key` and `value_type` (`string` or `number`) are
    the older form, for one. A number that cannot be read is 0.
    """

    labels: list[LabelMapping] = []
    label: str = ""
    attribute_key: str = ""
    value_type: str = ""

    def __post_init__(self) -> None:
        if self.value_type not in {"", "string", "number"}:
            raise ValueError(f"`valueType` must be `string` or `number`, not `{self.value_type}`")
        if bool(self.label) != bool(self.attribute_key):
            raise ValueError("`label` and `attributeKey` are needed together")
        keys = [each.attribute_key for each in self.labels]
        keys += [self.attribute_key] if self.attribute_key else []
        if not keys:
            raise ValueError("it needs `labels`, each with `label` and `attributeKey`")
        if repeated := {key for key in keys if keys.count(key) > 1}:
            raise ValueError(f"attributeKey `{min(repeated)}` is listed twice")

    def text(self, endpoint: Endpoint, attribute_key: str) -> str | None:
        """Return the value of an attribute; None if the pod has no such label."""
        return endpoint.labels.get(self._label_of(attribute_key))

    def number(self, endpoint: Endpoint, attribute_key: str) -> float | None:
        """Return the number of an attribute; None if it is text, or another one than this."""
        if self.value_type != "number" or attribute_key != self.attribute_key:
            return None
        try:
            value = float(endpoint.labels.get(self.label, ""))
        except ValueError:
            return 0.0
        return value if math.isfinite(value) else 0.0

    def _label_of(self, attribute_key: str) -> str:
        if self.attribute_key and attribute_key == self.attribute_key:
            return self.label
        found = (each.label for each in self.labels if each.attribute_key == attribute_key)
        return next(found, "")
