"""Resources of the Kubernetes API: their paths, queries, and the RBAC rules that they need."""

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from epp.protocol.kube.objects import (
    GATEWAY_GROUP,
    LEGACY_GROUP,
    LLM_D_GROUP,
    InferenceModelRewrite,
    InferenceObjective,
    InferencePool,
    KubeObject,
    KubePod,
)

OBJECT_GROUPS = (LLM_D_GROUP, LEGACY_GROUP)
"""API groups of objectives and rewrites; of two objects of one name the first group's counts."""


T = TypeVar("T", bound=KubeObject)


class Resource(msgspec.Struct, Generic[T], frozen=True):
    """A resource of one namespace. `group` is empty for the core group, as in RBAC rules."""

    group: str
    version: str
    plural: str
    namespace: str
    kind: type[T]

    @property
    def path(self) -> str:
        """The resource's path on the API server."""
        # The core group is at `/api`, every other one at `/apis/<group>`.
        root = f"/apis/{self.group}" if self.group else "/api"
        return f"{root}/{self.version}/namespaces/{quote(self.namespace)}/{self.plural}"

    @property
    def named(self) -> str:
        """The name that kubectl uses."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def rule(self, verbs: Sequence[str]) -> str:
        """Return the Role's rule that permits `verbs`, as YAML in one line."""
        return (
            f'{{apiGroups: ["{self.group}"], resources: [{self.plural}], '
            f"verbs: [{', '.join(verbs)}]}}"
        )


class Selection(msgspec.Struct, frozen=True):
    """A selection of a resource's objects: those with all `labels`, or the one of `name`."""

    labels: Mapping[str, str] = {}
    name: str = ""

    def query(self, more: Mapping[str, str | int]) -> str:
        """Return it as a query string, with other parameters; empty ones are left out."""
        fields: dict[str, str | int] = {}
        if self.labels:
            fields["labelSelector"] = ",".join(f"{k}={v}" for k, v in sorted(self.labels.items()))
        if self.name:
            fields["fieldSelector"] = f"metadata.name={self.name}"
        return urlencode({**fields, **{key: value for key, value in more.items() if value}})


def pools(namespace: str) -> Resource[InferencePool]:
    """InferencePools."""
    return Resource(GATEWAY_GROUP, "v1", "inferencepools", namespace, InferencePool)


def pods(namespace: str) -> Resource[KubePod]:
    """Pods."""
    return Resource("", "v1", "pods", namespace, KubePod)


def objectives(namespace: str, group: str) -> Resource[InferenceObjective]:
    """InferenceObjectives of one of `OBJECT_GROUPS`."""
    return Resource(group, "v1alpha2", "inferenceobjectives", namespace, InferenceObjective)


def rewrites(namespace: str, group: str) -> Resource[InferenceModelRewrite]:
    """InferenceModelRewrites of one of `OBJECT_GROUPS`."""
    return Resource(group, "v1alpha2", "inferencemodelrewrites", namespace, InferenceModelRewrite)


def leases(namespace: str) -> Resource[KubeObject]:
    """Leases."""
    return Resource("coordination.k8s.io", "v1", "leases", namespace, KubeObject)
