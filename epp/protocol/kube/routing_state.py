"""The routing table of one pool, built from InferenceObjectives and InferenceModelRewrites."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from epp.protocol.kube.object_warnings import ObjectWarnings
from epp.protocol.kube.objects import (
    InferenceModelRewrite,
    InferenceObjective,
    PoolRef,
    Rule,
    TargetModel,
)
from epp.protocol.kube.resources import OBJECTIVE_VERSIONS, REWRITE_VERSIONS
from epp.protocol.routing_table import RoutingTable, WeightedTargets

R = TypeVar("R", InferenceObjective, InferenceModelRewrite)


class PoolObjects(Generic[R]):
    """The objects of one kind that may be for the pool, by apiVersion and name."""

    def __init__(
        self, kind: str, versions: Sequence[str], pool: PoolRef, warnings: ObjectWarnings
    ) -> None:
        self._kind = kind
        self._pool = pool
        self._warnings = warnings
        self._objects: dict[str, dict[str, R]] = {version: {} for version in versions}

    def upsert(self, version: str, objects: Iterable[R]) -> None:
        """Add or replace objects; those that name other pools are ignored, with a warning.

        One that is being deleted counts as deleted.
        """
        for each in objects:
            name, refs = each.metadata.name, each.spec.refs
            if each.metadata.deletion_timestamp is not None:
                self.remove(version, (name,))
                continue
            if each.spec.pool_selector is not None or self._pool in refs:
                self._objects[version][name] = each
                self._warnings.clear(self._named(version, name))
                continue
            self._objects[version].pop(name, None)
            if refs:
                others = ", ".join(f"{ref.kind}.{ref.group}/{ref.name}" for ref in refs)
                self._warnings.add(
                    self._named(version, name),
                    others,
                    "object.foreign_pool",
                    pool_ref=others,
                    instead="ignored",
                )

    def remove(self, version: str, names: Iterable[str]) -> None:
        """Remove objects by name."""
        for name in names:
            self._objects[version].pop(name, None)
            self._warnings.clear(self._named(version, name))

    def retain(self, version: str, names: Iterable[str]) -> None:
        """Remove all objects but these."""
        self.remove(version, set(self._objects[version]).difference(names))

    def of_pool(self, labels: Mapping[str, str] | None) -> Iterator[R]:
        """Yield the objects of the pool: of those of one name that of the first version.

        `labels` are the pool's; None, if there is no pool object, is selected by no selector.
        """
        names: set[str] = set()
        for objects in self._objects.values():
            for name, each in objects.items():
                spec = each.spec
                selector = spec.pool_selector
                selected = selector is not None and labels is not None and selector.selects(labels)
                if name not in names and (selected or self._pool in spec.refs):
                    names.add(name)
                    yield each

    def _named(self, version: str, name: str) -> str:
        return f"{self._kind}.{version.partition('/')[0]}/{name}"


class RoutingState:
    """The objects of one pool; `routing` builds their table.

    If two objectives have one name, that of the first of `OBJECTIVE_VERSIONS` counts; for two
    rewrites, that of the first of `REWRITE_VERSIONS`. `pool_labels` are those of the InferencePool,
    None while there is none.
    """

    def __init__(self, pool: PoolRef, warnings: ObjectWarnings) -> None:
        self.pool_labels: Mapping[str, str] | None = None
        self.objectives = PoolObjects[InferenceObjective](
            "inferenceobjective", OBJECTIVE_VERSIONS, pool, warnings
        )
        self.rewrites = PoolObjects[InferenceModelRewrite](
            "inferencemodelrewrite", REWRITE_VERSIONS, pool, warnings
        )

    def routing(self) -> RoutingTable:
        """Return the table that the objects make."""
        priorities = {
            objective.metadata.name: objective.spec.priority or 0
            for objective in self.objectives.of_pool(self.pool_labels)
        }
        exact: dict[str, WeightedTargets] = {}
        other: list[WeightedTargets] = []
        for name, rule in _in_order(self.rewrites.of_pool(self.pool_labels)):
            targets = _targets(rule.targets, name)
            if targets is None:
                continue
            if not rule.matches:
                other.append(targets)
            for match in rule.matches:
                if match.model is not None:
                    exact.setdefault(match.model.value, targets)
        return RoutingTable(priorities, exact, other[0] if other else None)


def _in_order(rewrites: Iterable[InferenceModelRewrite]) -> Iterator[tuple[str, Rule]]:
    """Yield each object's name with each of its rules, those of older objects first."""
    # GIE: of two rewrites the older one wins. Upstream leaves objects of one second to chance;
    # here their names decide.
    for rewrite in sorted(rewrites, key=lambda each: each.metadata.age):
        for rule in rewrite.spec.rules:
            yield rewrite.metadata.name, rule


def _targets(targets: Sequence[TargetModel], name: str) -> WeightedTargets | None:
    """Return a rule's targets; None if it names no model."""
    # Without any weight all targets count alike; else those without one are never drawn.
    named = [each for each in targets if each.model_rewrite]
    given = [(each.model_rewrite, each.weight) for each in named if each.weight]
    weighted = given or [(each.model_rewrite, 1) for each in named]
    return WeightedTargets.of(weighted, name) if weighted else None
