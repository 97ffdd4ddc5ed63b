"""Kubernetes objects, as far as the picker reads them; other fields are skipped undecoded.

Every field has a default, because the object of a BOOKMARK event has no field but `kind` and
`metadata.resourceVersion` (Kubernetes API concepts, "Watch bookmarks").
"""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from epp.label_selector import LabelSelector
from epp.model.endpoint import LAST_PORT

GATEWAY_GROUP = "inference.networking.k8s.io"
LLM_D_GROUP = "llm-d.ai"
LEGACY_GROUP = "inference.networking.x-k8s.io"

Name = Annotated[str, Meta(max_length=253)]
"""RFC 1123 §2.1, as the API has it: at most 253 characters."""
Port = Annotated[int, Meta(ge=1, le=LAST_PORT)]
_Weight = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
_Priority = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """ObjectMeta. Timestamps are RFC 3339; `deletion_timestamp` is set while it terminates."""

    name: Name = ""
    namespace: Name = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}

    @property
    def age(self) -> tuple[str, str]:
        """A key that sorts older objects first.

        Kubernetes writes timestamps in UTC and in one form, so that they sort as text.
        """
        return self.creation_timestamp or "", self.name


class KubeObject(msgspec.Struct, frozen=True):
    """An object of any kind."""

    metadata: Metadata = Metadata()


class Condition(msgspec.Struct, frozen=True):
    """One entry of `status.conditions`."""

    type: str = ""
    status: str = ""


class PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    """Status of a pod; its addresses are of the primary address family if it has two."""

    conditions: tuple[Condition, ...] = ()
    pod_ip: str = msgspec.field(default="", name="podIP")
    host_ip: str = msgspec.field(default="", name="hostIP")


class PodSpec(msgspec.Struct, frozen=True):
    """`spec` of a pod; `hostname` is empty if the pod has its own name for it."""

    hostname: str = ""


class KubePod(KubeObject, frozen=True):
    """A Pod (`v1`)."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def ready(self) -> bool:
        """Whether it takes traffic: Ready, with an address, and not terminating."""
        # A pod that terminates may stay Ready until its containers have ended.
        return (
            self.metadata.deletion_timestamp is None
            and bool(self.status.pod_ip)
            and any(
                each.type == "Ready" and each.status == "True" for each in self.status.conditions
            )
        )


class Selector(msgspec.Struct, frozen=True, rename="camel"):
    """`spec.selector` of a pool."""

    match_labels: dict[str, str] = {}


class TargetPort(msgspec.Struct, frozen=True):
    """One entry of a pool's `targetPorts`."""

    number: Port


class PoolSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The labels of a pool's pods, and the ports (1 to 8, all different) at which they serve.

    `app_protocol` is what they speak there; empty: the pool does not say.
    """

    selector: Selector = Selector()
    target_ports: tuple[TargetPort, ...] = ()
    app_protocol: str = ""

    @property
    def pod_labels(self) -> dict[str, str]:
        """The labels that a pod of the pool has, all of them."""
        return self.selector.match_labels

    @property
    def ports(self) -> tuple[int, ...]:
        """The port numbers, in the order of the pool, each once."""
        return tuple(dict.fromkeys(port.number for port in self.target_ports))


class InferencePool(KubeObject, frozen=True):
    """An InferencePool (`inference.networking.k8s.io/v1`)."""

    spec: PoolSpec = PoolSpec()


class LegacyPoolSpec(msgspec.Struct, frozen=True, rename="camel"):
    """`PoolSpec` as `v1alpha2` wrote it: labels as a plain map, and one port (0: none)."""

    selector: dict[str, str] = {}
    target_port_number: Annotated[int, Meta(ge=0, le=LAST_PORT)] = 0
    app_protocol = ""

    @property
    def pod_labels(self) -> dict[str, str]:
        """The labels that a pod of the pool has, all of them."""
        return self.selector

    @property
    def ports(self) -> tuple[int, ...]:
        """The port number."""
        return (self.target_port_number,) if self.target_port_number else ()


class LegacyInferencePool(KubeObject, frozen=True):
    """An InferencePool (`inference.networking.x-k8s.io/v1alpha2`)."""

    spec: LegacyPoolSpec = LegacyPoolSpec()


AnyPool = InferencePool | LegacyInferencePool


class PoolRef(msgspec.Struct, frozen=True):
    """The pool, of the same namespace, that an objective or a rewrite is for."""

    name: str = ""
    group: str = GATEWAY_GROUP
    kind: str = "InferencePool"


class ObjectiveSpec(msgspec.Struct, frozen=True, rename="camel"):
    """`spec` of an objective. A higher `priority` is more urgent; None counts as 0.

    `v1` names its pools by `pool_refs` and `pool_selector`, `v1alpha2` by `pool_ref`, too; an
    objective is for every pool that one of them names.
    """

    priority: _Priority | None = None
    pool_ref: PoolRef | None = None
    pool_refs: tuple[PoolRef, ...] = ()
    pool_selector: LabelSelector | None = None

    @property
    def refs(self) -> tuple[PoolRef, ...]:
        """The pools that it names one by one."""
        return self.pool_refs if self.pool_ref is None else (self.pool_ref, *self.pool_refs)


class InferenceObjective(KubeObject, frozen=True):
    """An InferenceObjective (`v1` of llm-d.ai, `v1alpha2` of both groups)."""

    spec: ObjectiveSpec = ObjectiveSpec()


class ModelMatch(msgspec.Struct, frozen=True):
    """A comparison with a request's model, by `Exact`, the only type that the API has."""

    value: str = ""


class Match(msgspec.Struct, frozen=True):
    """A condition of a rule."""

    model: ModelMatch | None = None


class TargetModel(msgspec.Struct, frozen=True, rename="camel"):
    """A model to rewrite to, and its relative share of the requests."""

    model_rewrite: str = ""
    weight: _Weight | None = None


class Rule(msgspec.Struct, frozen=True):
    """Applies if any of `matches` holds, or there are none; draws one of `targets` by weight."""

    matches: tuple[Match, ...] = ()
    targets: tuple[TargetModel, ...] = ()


class RewriteSpec(msgspec.Struct, frozen=True, rename="camel"):
    """`spec` of a rewrite: its rules, in the order in which they are tried."""

    pool_ref: PoolRef = PoolRef()
    rules: tuple[Rule, ...] = ()
    pool_selector: ClassVar[LabelSelector | None] = None
    """Rewrites select no pools by labels."""

    @property
    def refs(self) -> tuple[PoolRef, ...]:
        """The pool that it is for."""
        return (self.pool_ref,)


class InferenceModelRewrite(KubeObject, frozen=True):
    """An InferenceModelRewrite (`v1alpha2` of both groups)."""

    spec: RewriteSpec = RewriteSpec()


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """`details` of a `v1` Status; `retry_after_seconds` is 0 if the API does not say."""

    retry_after_seconds: int = 0


class ApiStatus(msgspec.Struct, frozen=True):
    """A `v1` Status: how the API refuses a request. `code` is the HTTP status."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails = StatusDetails()
