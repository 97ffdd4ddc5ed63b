"""InferenceObjectives and InferenceModelRewrites of one pool as a routing table."""

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
    """How objects refer to a pool of their own namespace."""

    name: str
    group: str

    def meant_by(self, ref: PoolRef) -> bool:
        """Whether a reference is to this pool."""
        return (ref.name, ref.group, ref.kind) == (self.name, self.group, "InferencePool")


class PoolObjects(Generic[R]):
    """The objects of one kind that are for the pool, by group and name; the first group wins."""

    def __init__(
        self, kind: str, groups: Sequence[str], pool: PoolName, notes: ObjectWarnings
    ) -> None:
        self._kind = kind
        self._pool = pool
        self._notes = notes
        self._objects: dict[str, dict[str, R]] = {group: {} for group in groups}

    def put(self, group: str, objects: Iterable[R]) -> None:
        """Take in objects as they are; those for other pools are left out."""
        for each in objects:
            name, ref = each.metadata.name, each.spec.pool_ref
            if self._pool.meant_by(ref):
                self._objects[group][name] = each
                self._notes.settle(self._named(group, name))
                continue
            self._objects[group].pop(name, None)
            self._notes.add(
                self._named(group, name),
                f"{ref.kind}.{ref.group}/{ref.name}",
                "object.foreign_pool",
                pool_ref=f"{ref.kind}.{ref.group}/{ref.name}",
                instead="ignored",
            )

    def gone(self, group: str, names: Iterable[str]) -> None:
        """Take in that objects of these names are no more."""
        for name in names:
            self._objects[group].pop(name, None)
            self._notes.settle(self._named(group, name))

    def listed(self, group: str, names: Iterable[str]) -> None:
        """Take in that there are these and no others."""
        self.gone(group, set(self._objects[group]).difference(names))

    def values(self) -> Iterator[R]:
        """All of them, the first group's first."""
        for objects in self._objects.values():
            yield from objects.values()

    def _named(self, group: str, name: str) -> str:
        return f"{self._kind}.{group}/{name}"


class RoutingState:
    """What is known of the objects that are for one pool; `routing` is the table they make.

    `groups` are the API groups that are read, the one that wins first.
    """

    def __init__(self, groups: Sequence[str], pool: PoolName, notes: ObjectWarnings) -> None:
        self.objectives = PoolObjects[InferenceObjective]("inferenceobjective", groups, pool, notes)
        self.rewrites = PoolObjects[InferenceModelRewrite](
            "inferencemodelrewrite", groups, pool, notes
        )

    def routing(self) -> RoutingTable:
        """Build the table of the objects that there are."""
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
    """Give the rules of older objects first, then by name, then in their own order.

    Upstream leaves objects of one second to chance; their names settle it here.
    """
    for rewrite in sorted(rewrites, key=lambda each: each.metadata.age):
        yield from rewrite.spec.rules


def _targets(targets: Sequence[TargetModel]) -> WeightedTargets | None:
    """Weigh the targets of a rule: all alike where none has a weight, else those that have one."""
    named = [each for each in targets if each.model_rewrite]
    weighted = [(each.model_rewrite, each.weight) for each in named if each.weight]
    if not weighted:
        weighted = [(each.model_rewrite, 1) for each in named]
    return (
        WeightedTargets.of([(model, weight or 1) for model, weight in weighted])
        if weighted
        else None
    )
