"""The resources that are read, how they are asked for, and the rule that permits it."""

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
"""Where objectives and rewrites are read from; the first one wins a name."""


T = TypeVar("T", bound=KubeObject)


class Resource(msgspec.Struct, Generic[T], frozen=True):
    """A resource of one namespace: `plural` of `kind` in `group` ("" is the core) and `version`."""

    group: str
    version: str
    plural: str
    namespace: str
    kind: type[T]

    @property
    def path(self) -> str:
        """Where the API has it."""
        root = f"/apis/{self.group}" if self.group else "/api"
        return f"{root}/{self.version}/namespaces/{quote(self.namespace)}/{self.plural}"

    @property
    def named(self) -> str:
        """How kubectl names it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def rule(self, verbs: Sequence[str]) -> str:
        """What a Role must hold for it, as YAML of one line."""
        return (
            f'{{apiGroups: ["{self.group}"], resources: [{self.plural}], '
            f"verbs: [{', '.join(verbs)}]}}"
        )


class Selection(msgspec.Struct, frozen=True):
    """Which objects of a resource: those with all `labels`, or of one `name`, where given."""

    labels: Mapping[str, str] = {}
    name: str = ""

    def query(self, more: Mapping[str, str | int]) -> str:
        """Write it as a query, beside other parameters; those that are empty are left out."""
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
