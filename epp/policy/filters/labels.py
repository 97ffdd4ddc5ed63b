"""Filters by labels of endpoints: roles, selectors, places."""

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import msgspec

from epp.label_selector import Requirement
from epp.model.endpoint import ROLE_LABEL
from epp.model.request import InferenceRequest
from epp.model.topology import Topology
from epp.policy.attribute_sources import TopologyInfo, find_producer, shared_places
from epp.policy.plugins import Candidates, PluginContext, PluginParameters

Labels = Mapping[str, str]

_NAME = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_NAME}")
_VALUE = re.compile(rf"({_NAME})?")


class LabelFilter(PluginParameters, frozen=True):
    """Keeps the endpoints whose labels it wants: all of them, unless a subclass narrows that."""

    def wants(self, labels: Labels) -> bool:
        """Return whether an endpoint with these labels is kept."""
        return True

    @property
    def sees_roles(self) -> bool:
        """Whether it distinguishes endpoints by their roles."""
        return True

    def filter(self, request: InferenceRequest, candidates: Candidates) -> Candidates:
        """Return those that it wants, in their order."""
        return [each for each in candidates if self.wants(each.endpoint.labels)]


class RoleFilter(LabelFilter, frozen=True):
    """Keeps endpoints with one of some roles; if `unlabelled`, also those without a role."""

    roles: ClassVar[frozenset[str]] = frozenset()
    unlabelled: ClassVar[bool] = False

    def wants(self, labels: Labels) -> bool:
        """Return whether an endpoint's role is one of these."""
        role = labels.get(ROLE_LABEL)
        return self.unlabelled if role is None else role in self.roles


class DecodeFilter(RoleFilter, frozen=True):
    """Keeps endpoints that decode, those without a role among them."""

    roles: ClassVar[frozenset[str]] = frozenset(
        ("decode", "prefill-decode", "both", "encode-prefill-decode")
    )
    unlabelled: ClassVar[bool] = True


class PrefillFilter(RoleFilter, frozen=True):
    """Keeps endpoints that prefill."""

    roles: ClassVar[frozenset[str]] = frozenset(
        ("prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode")
    )


class EncodeFilter(RoleFilter, frozen=True):
    """Keeps endpoints that encode images and sounds."""

    roles: ClassVar[frozenset[str]] = frozenset(
        ("encode", "encode-prefill", "encode-prefill-decode")
    )


class LabelRequirement(Requirement, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One requirement of a Kubernetes label selector, all of it checked."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: Sequence[str] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        if not _KEY.fullmatch(self.key):
            raise ValueError(f"`{self.key}` is not a label key")
        for value in self.values:
            if not _VALUE.fullmatch(value):
                raise ValueError(f"`{value}` is not a label value")
        if self.operator in {"In", "NotIn"} and not self.values:
            raise ValueError(f"`values` is empty, but operator {self.operator} needs some")
        if self.operator in {"Exists", "DoesNotExist"} and self.values:
            raise ValueError(f"operator {self.operator} takes no `values`")


class LabelSelectorFilter(LabelFilter, frozen=True):
    """Keeps the endpoints that a `metav1.LabelSelector` selects; an empty one selects all."""

    match_labels: dict[str, str] = {}
    match_expressions: list[LabelRequirement] = []

    def __post_init__(self) -> None:
        for key, value in self.match_labels.items():
            LabelRequirement(key=key, operator="In", values=[value])

    @property
    def sees_roles(self) -> bool:
        """Whether the label of roles is in it."""
        keys = [*self.match_labels, *(each.key for each in self.match_expressions)]
        return ROLE_LABEL in keys

    def wants(self, labels: Labels) -> bool:
        """Return whether the labels meet every requirement."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            each.holds(labels) for each in self.match_expressions
        )


class ByLabelFilter(LabelFilter, frozen=True):
    """Keeps endpoints with one of some values of a label, or without it.

    A label that is missing counts as empty.
    """

    label: str
    valid_values: list[str] = []
    allows_no_label: bool = False

    def __post_init__(self) -> None:
        if not self.label:
            raise ValueError("`label` is empty")
        if not self.valid_values and not self.allows_no_label:
            raise ValueError("one of `validValues` and `allowsNoLabel` is needed")

    @property
    def sees_roles(self) -> bool:
        """Whether it is about roles."""
        return self.label == ROLE_LABEL

    def wants(self, labels: Labels) -> bool:
        """Return whether the label's value is one of these."""
        value = labels.get(self.label)
        return (value is None and self.allows_no_label) or (value or "") in self.valid_values


_PLACES = {"": 1, "host": 1, "rack": 2, "zone": 3, "region": 4}


class TopologyAffinityFilter(PluginParameters, frozen=True):
    """Keeps endpoints near the one that a handler chose for the previous stage.

    An empty `min_affinity` stands for the default.
    """

    min_affinity: Literal["host", "rack", "zone", "region", ""] = "host"
    topology_producer_name: str = ""

    def start(self, context: PluginContext) -> "_NearPeer":
        """Return the started plug-in."""
        fields = Topology._fields[: _PLACES[self.min_affinity]]
        return _NearPeer(
            frozenset(fields), find_producer(context, self.topology_producer_name, TopologyInfo)
        )


class _NearPeer(msgspec.Struct, frozen=True):
    places: frozenset[str]
    producer: TopologyInfo

    def filter(self, request: InferenceRequest, candidates: Candidates) -> Candidates:
        """Return those in the same place; all if there are none, or nothing to be near to."""
        shared = shared_places(self.producer, request, candidates)
        near = zip(candidates, shared, strict=True)
        return [each for each, place in near if place in self.places] or candidates
