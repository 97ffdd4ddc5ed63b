"""Resources of the Kubernetes API: their paths, queries, and the RBAC rules that they need."""

from collections.abc import Mapping, Sequence
from typing import Final, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from epp.protocol.kube.objects import (
    GATEWAY_GROUP,
    LEGACY_GROUP,
    LLM_D_GROUP,
    AnyPool,
    InferenceModelRewrite,
    InferenceObjective,
    InferencePool,
    KubeObject,
    KubePod,
    LegacyInferencePool,
)

REWRITE_VERSIONS: Final = (f"{LLM_D_GROUP}/v1alpha2", f"{LEGACY_GROUP}/v1alpha2")
"""apiVersions of rewrites; of two of one name the first version's counts."""
OBJECTIVE_VERSIONS: Final = (f"{LLM_D_GROUP}/v1", *REWRITE_VERSIONS)
"""The same of objectives. The API shows one object in every version of its group that it serves."""
POOL_GROUPS: Final = (GATEWAY_GROUP, LEGACY_GROUP)
"""API groups of InferencePools."""


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
    def api_version(self) -> str:
        """`apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def named(self) -> str:
        """The name with which kubectl asks for this version."""
        return f"{self.plural}.{self.version}.{self.group}" if self.group else self.plural

    def rule(self, verbs: Sequence[str]) -> str:
        """Return the Role's rule that permits `verbs`, as YAML in one line."""
        return (
            f'{{apiGroups: ["{self.group}"], resources: [{self.plural}], '
            f"verbs: [{', '.join(verbs)}]}}"
        )


class Selection(msgspec.Struct, frozen=True):
    """A selection of a resource's objects: those with all `labels`, or the one of `name`.

    Labels in the form of the API's own selectors are passed on as they are.
    """

    labels: Mapping[str, str] | str = {}
    name: str = ""

    def query(self, more: Mapping[str, str | int]) -> str:
        """Return it as a query string, with other parameters; empty ones are left out."""
        fields: dict[str, str | int] = {}
        if isinstance(self.labels, str):
            fields["labelSelector"] = self.labels
        elif self.labels:
            fields["labelSelector"] = ",".join(f"{k}={v}" for k, v in sorted(self.labels.items()))
        if self.name:
            fields["fieldSelector"] = f"metadata.name={self.name}"
        return urlencode({**fields, **{key: value for key, value in more.items() if value}})


def pools(namespace: str, group: str = GATEWAY_GROUP) -> Resource[AnyPool]:
    """InferencePools of one of `POOL_GROUPS`."""
    if group == LEGACY_GROUP:
        return Resource(group, "v1alpha2", "inferencepools", namespace, LegacyInferencePool)
    return Resource(group, "v1", "inferencepools", namespace, InferencePool)


def pods(namespace: str) -> Resource[KubePod]:
    """Pods."""
    return Resource("", "v1", "pods", namespace, KubePod)


def objectives(namespace: str, api_version: str) -> Resource[InferenceObjective]:
    """InferenceObjectives of one of `OBJECTIVE_VERSIONS`."""
    group, _, version = api_version.partition("/")
    return Resource(group, version, "inferenceobjectives", namespace, InferenceObjective)


def rewrites(namespace: str, api_version: str) -> Resource[InferenceModelRewrite]:
    """InferenceModelRewrites of one of `REWRITE_VERSIONS`."""
    group, _, version = api_version.partition("/")
    return Resource(group, version, "inferencemodelrewrites", namespace, InferenceModelRewrite)


def leases(namespace: str) -> Resource[KubeObject]:
    """Leases."""
    return Resource("coordination.k8s.io", "v1", "leases", namespace, KubeObject)
