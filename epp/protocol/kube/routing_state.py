"""The routing table of one pool, built from InferenceObjectives and InferenceModelRewrites."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import msgspec

from epp.protocol.kube.object_warnings import ObjectWarnings
from epp.protocol.kube.objects import (
    InferenceModelRewrite,
    InferenceObjective,
    PoolRef,
    Rule,
    TargetModel,
)
from epp.protocol.routing_table import RoutingTable, WeightedTargets

R = TypeVar("R", InferenceObjective, InferenceModelRewrite)


class PoolName(msgspec.Struct, frozen=True):
    """A pool as a `poolRef` of the same namespace names it."""

    name: str
    group: str

    def matches(self, ref: PoolRef) -> bool:
        """Whether a reference is to this pool."""
        return (ref.name, ref.group, ref.kind) == (self.name, self.group, "InferencePool")


class PoolObjects(Generic[R]):
    """The objects of one kind that refer to the pool, by API group and name."""

    def __init__(
        self, kind: str, groups: Sequence[str], pool: PoolName, warnings: ObjectWarnings
    ) -> None:
        self._kind = kind
        self._pool = pool
        self._warnings = warnings
        self._objects: dict[str, dict[str, R]] = {group: {} for group in groups}

    def upsert(self, group: str, objects: Iterable[R]) -> None:
        """Add or replace objects; those of other pools are ignored, with a warning."""
        for each in objects:
            name, ref = each.metadata.name, each.spec.pool_ref
            if self._pool.matches(ref):
                self._objects[group][name] = each
                self._warnings.clear(self._named(group, name))
                continue
            self._objects[group].pop(name, None)
            self._warnings.add(
                self._named(group, name),
                f"{ref.kind}.{ref.group}/{ref.name}",
                "object.foreign_pool",
                pool_ref=f"{ref.kind}.{ref.group}/{ref.name}",
                instead="ignored",
            )

    def remove(self, group: str, names: Iterable[str]) -> None:
        """Remove objects by name."""
        for name in names:
            self._objects[group].pop(name, None)
            self._warnings.clear(self._named(group, name))

    def retain(self, group: str, names: Iterable[str]) -> None:
        """Remove all objects but these."""
        self.remove(group, set(self._objects[group]).difference(names))

    def values(self) -> Iterator[R]:
        """Yield every object, those of the first group first."""
        for objects in self._objects.values():
            yield from objects.values()

    def _named(self, group: str, name: str) -> str:
        return f"{self._kind}.{group}/{name}"


class RoutingState:
    """The objects of one pool; `routing` builds their table.

    `groups` are the API groups that are read; of two objectives of one name the first group's
    counts.
    """

    def __init__(self, groups: Sequence[str], pool: PoolName, warnings: ObjectWarnings) -> None:
        self.objectives = PoolObjects[InferenceObjective](
            "inferenceobjective", groups, pool, warnings
        )
        self.rewrites = PoolObjects[InferenceModelRewrite](
            "inferencemodelrewrite", groups, pool, warnings
        )

    def routing(self) -> RoutingTable:
        """Return the table that the objects make."""
        priorities: dict[str, int] = {}
        for objective in self.objectives.values():
            priorities.setdefault(objective.metadata.name, objective.spec.priority or 0)
        exact: dict[str, WeightedTargets] = {}
        other: list[WeightedTargets] = []
        for rule in _in_order(self.rewrites.values()):
            targets = _targets(rule.targets)
            if targets is None:
                continue
            if not rule.matches:
                other.append(targets)
            for match in rule.matches:
                if match.model is not None:
                    exact.setdefault(match.model.value, targets)
        return RoutingTable(priorities, exact, other[0] if other else None)


def _in_order(rewrites: Iterable[InferenceModelRewrite]) -> Iterator[Rule]:
    """Yield the rules of all objects, those of older objects first."""
    # GIE: of two rewrites the older one wins. Upstream leaves objects of one second to chance;
    # here their names decide.
    for rewrite in sorted(rewrites, key=lambda each: each.metadata.age):
        yield from rewrite.spec.rules


def _targets(targets: Sequence[TargetModel]) -> WeightedTargets | None:
    """Return a rule's targets; None if it names no model."""
    # Without any weight all targets count alike; else those without one are never drawn.
    named = [each for each in targets if each.model_rewrite]
    weighted = [(each.model_rewrite, each.weight) for each in named if each.weight]
    if not weighted:
        weighted = [(each.model_rewrite, 1) for each in named]
    return (
        WeightedTargets.of([(model, weight or 1) for model, weight in weighted])
        if weighted
        else None
    )
