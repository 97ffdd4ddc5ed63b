"""What each built-in kind is called and how its storage behaves; content rules are in builtin.py.

The switches mirror the strategies under pkg/registry of Kubernetes 1.36.
"""

from typing import Any, Final

import msgspec

from tests.kubeapi.status import GroupResource

Json = dict[str, Any]
BY_NAME: Final = {"metadata.name": "metadata.name"}
BY_PLACE: Final = BY_NAME | {"metadata.namespace": "metadata.namespace"}


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a kind. `schema` is a CRD's openAPIV3Schema; built-in kinds have none."""

    name: str
    status: bool = False
    served: bool = True
    schema: Json | None = None


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind and the behaviour of its storage.

    `upsert`: a PUT to a name that is free creates. `unconditional`: a PUT without resourceVersion
    overwrites. `generation`: metadata.generation counts changes outside metadata and status.
    `returns_deleted`: DELETE answers with the object, not with a Status of success.
    `virtual`: POST is answered and nothing is stored.
    """

    kind: str
    plural: str
    versions: tuple[Version, ...]
    group: str = ""
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    namespaced: bool = True
    custom: bool = False
    fields: dict[str, str] = msgspec.field(default_factory=lambda: BY_PLACE)
    upsert: bool = False
    unconditional: bool = True
    generation: bool = False
    returns_deleted: bool = False
    virtual: bool = False
    storage: str = ""
    singular: str = ""

    @property
    def resource(self) -> GroupResource:
        return GroupResource(self.group, self.plural)

    @property
    def group_kind(self) -> GroupResource:
        """The kind in the place where messages of 422 want it."""
        return GroupResource(self.group, self.kind)

    def version(self, name: str) -> Version | None:
        """The version, where it is served."""
        return next((each for each in self.versions if each.name == name and each.served), None)

    def api_version(self, version: str) -> str:
        return f"{self.group}/{version}" if self.group else version

    @property
    def stored_as(self) -> str:
        """The version in which objects are kept."""
        return self.storage or self.versions[0].name

    def unsupported_field(self, label: str) -> str:
        """What a field selector on a field that is not offered is told."""
        if self.custom or self.fields not in (BY_PLACE, BY_NAME):
            return f"field label not supported: {label}"
        known = ", ".join(f'"{each}"' for each in BY_PLACE)
        return f'"{label}" is not a known field selector: only {known}'


def _paths(*paths: str) -> dict[str, str]:
    return BY_PLACE | {path: path for path in paths}


V1: Final = (Version(name="v1"),)
V1_STATUS: Final = (Version(name="v1", status=True),)

BUILT_IN: Final = (
    Kind(
        kind="Pod",
        plural="pods",
        versions=V1_STATUS,
        short=("po",),
        categories=("all",),
        generation=True,
        returns_deleted=True,
        fields=_paths(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ),
    ),
    Kind(
        kind="Namespace",
        plural="namespaces",
        versions=V1_STATUS,
        short=("ns",),
        namespaced=False,
        returns_deleted=True,
        fields=BY_NAME | {"status.phase": "status.phase"},
    ),
    Kind(kind="ConfigMap", plural="configmaps", versions=V1, short=("cm",)),
    Kind(kind="Secret", plural="secrets", versions=V1, fields=_paths("type")),
    Kind(
        kind="Service",
        plural="services",
        versions=V1_STATUS,
        short=("svc",),
        categories=("all",),
        upsert=True,
        returns_deleted=True,
        fields=_paths("spec.clusterIP", "spec.type"),
    ),
    Kind(
        kind="ServiceAccount",
        plural="serviceaccounts",
        versions=V1,
        short=("sa",),
        returns_deleted=True,
    ),
    Kind(
        kind="Event",
        plural="events",
        versions=V1,
        short=("ev",),
        upsert=True,
        fields=_paths(
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "reason",
            "reportingComponent",
            "type",
        ),
    ),
    Kind(
        kind="Lease",
        plural="leases",
        group="coordination.k8s.io",
        versions=V1,
        upsert=True,
        unconditional=False,
    ),
    Kind(
        kind="CustomResourceDefinition",
        plural="customresourcedefinitions",
        group="apiextensions.k8s.io",
        versions=V1_STATUS,
        short=("crd", "crds"),
        categories=("api-extensions",),
        namespaced=False,
        generation=True,
        unconditional=False,
        fields=BY_NAME,
    ),
    Kind(
        kind="TokenReview",
        plural="tokenreviews",
        group="authentication.k8s.io",
        versions=V1,
        namespaced=False,
        virtual=True,
    ),
    Kind(
        kind="SubjectAccessReview",
        plural="subjectaccessreviews",
        group="authorization.k8s.io",
        versions=V1,
        namespaced=False,
        virtual=True,
    ),
    Kind(
        kind="SelfSubjectAccessReview",
        plural="selfsubjectaccessreviews",
        group="authorization.k8s.io",
        versions=V1,
        namespaced=False,
        virtual=True,
    ),
)
