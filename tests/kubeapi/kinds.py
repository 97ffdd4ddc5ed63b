"""The kinds that are served: built-in ones, and those that a CustomResourceDefinition describes.

The switches mirror the strategies under pkg/registry of Kubernetes 1.36.
"""

from typing import Any, Final

import msgspec

from tests.kubeapi.status import GroupResource

Json = dict[str, Any]
BY_NAME: Final = ("metadata.name",)
BY_PLACE: Final = (*BY_NAME, "metadata.namespace")


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a kind. `schema` is a CRD's openAPIV3Schema; built-in kinds have none."""

    name: str
    status: bool = False
    served: bool = True
    schema: Json | None = None


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind and the behaviour of its storage.

    `fields`: the paths that a field selector may name. `upsert`: a PUT to a free name creates.
    `unconditional`: a PUT without resourceVersion overwrites. `returns_deleted`: DELETE answers
    with the object, not with a Status. `virtual`: POST is answered and nothing is stored.
    """

    kind: str
    plural: str
    versions: tuple[Version, ...] = (Version(name="v1"),)
    group: str = ""
    namespaced: bool = True
    custom: bool = False
    fields: tuple[str, ...] = BY_PLACE
    upsert: bool = False
    unconditional: bool = True
    returns_deleted: bool = False
    virtual: bool = False
    storage: str = "v1"

    @property
    def resource(self) -> GroupResource:
        return GroupResource(self.group, self.plural)

    @property
    def group_kind(self) -> GroupResource:
        """The kind in the place where messages of 422 name it."""
        return GroupResource(self.group, self.kind)

    def version(self, name: str) -> Version | None:
        """The version, where it is served."""
        return next((each for each in self.versions if each.name == name and each.served), None)

    def api_version(self, version: str) -> str:
        return f"{self.group}/{version}" if self.group else version

    def unsupported_field(self, label: str) -> str:
        """The message about a field selector on a field that is not offered."""
        if self.custom or self.fields not in (BY_PLACE, BY_NAME):
            return f"field label not supported: {label}"
        known = ", ".join(f'"{each}"' for each in BY_PLACE)
        return f'"{label}" is not a known field selector: only {known}'


V1_STATUS: Final = (Version(name="v1", status=True),)
BUILT_IN: Final = (
    Kind(
        kind="Pod",
        plural="pods",
        versions=V1_STATUS,
        returns_deleted=True,
        fields=(*BY_PLACE, "spec.restartPolicy", "spec.nodeName", "status.phase", "status.podIP"),
    ),
    Kind(
        kind="Namespace",
        plural="namespaces",
        versions=V1_STATUS,
        namespaced=False,
        returns_deleted=True,
        fields=(*BY_NAME, "status.phase"),
    ),
    Kind(kind="ConfigMap", plural="configmaps"),
    Kind(
        kind="Lease",
        plural="leases",
        group="coordination.k8s.io",
        upsert=True,
        unconditional=False,
    ),
    Kind(
        kind="CustomResourceDefinition",
        plural="customresourcedefinitions",
        group="apiextensions.k8s.io",
        namespaced=False,
        unconditional=False,
        fields=BY_NAME,
    ),
    Kind(
        kind="TokenReview",
        plural="tokenreviews",
        group="authentication.k8s.io",
        namespaced=False,
        virtual=True,
    ),
    Kind(
        kind="SubjectAccessReview",
        plural="subjectaccessreviews",
        group="authorization.k8s.io",
        namespaced=False,
        virtual=True,
    ),
)


def kind_of(crd: Json) -> Kind:
    """The kind that a CustomResourceDefinition describes."""
    spec = crd["spec"]
    return Kind(
        kind=spec["names"]["kind"],
        plural=spec["names"]["plural"],
        group=spec["group"],
        namespaced=spec["scope"] == "Namespaced",
        custom=True,
        versions=tuple(_version(each) for each in spec["versions"]),
        storage=next(each["name"] for each in spec["versions"] if each["storage"]),
        unconditional=False,
    )


def _version(described: Json) -> Version:
    return Version(
        name=described["name"],
        served=described["served"],
        status="status" in described.get("subresources", {}),
        schema=described.get("schema", {}).get("openAPIV3Schema", {}),
    )
