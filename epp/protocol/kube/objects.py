"""The parts of Kubernetes objects that the picker reads; everything else is skipped unseen.

Every field has a default, so that the object of a bookmark, which carries a version alone, is
one too.
"""

import msgspec

GATEWAY_GROUP = "inference.networking.k8s.io"
LLM_D_GROUP = "llm-d.ai"
LEGACY_GROUP = "inference.networking.x-k8s.io"


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """What every object has. Timestamps are RFC 3339; `deletion_timestamp` None: it stays."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}

    @property
    def age(self) -> tuple[str, str]:
        """Order objects by: the smaller, the older; UTC timestamps of one form sort as text."""
        return self.creation_timestamp or "", self.name


class KubeObject(msgspec.Struct, frozen=True):
    """What the objects of every kind share."""

    metadata: Metadata = Metadata()


class Condition(msgspec.Struct, frozen=True):
    """One entry of `status.conditions`."""

    type: str = ""
    status: str = ""


class PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    """`podIP` is the address of the primary family where a pod has two."""

    conditions: tuple[Condition, ...] = ()
    pod_ip: str = msgspec.field(default="", name="podIP")


class KubePod(KubeObject, frozen=True):
    """A pod (v1)."""

    status: PodStatus = PodStatus()

    @property
    def ready(self) -> bool:
        """Whether it takes traffic: Ready, with an address, and not on its way out."""
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
    """One of a pool's ports."""

    number: int


class PoolSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Which pods a pool has, and at which ports (1 to 8, all different) they serve."""

    selector: Selector = Selector()
    target_ports: tuple[TargetPort, ...] = ()

    @property
    def ports(self) -> tuple[int, ...]:
        """The numbers of the ports, in their order."""
        return tuple(port.number for port in self.target_ports)


class InferencePool(KubeObject, frozen=True):
    """An InferencePool (`inference.networking.k8s.io/v1`)."""

    spec: PoolSpec = PoolSpec()


class PoolRef(msgspec.Struct, frozen=True):
    """The pool that an objective or a rewrite is for, in its own namespace."""

    name: str = ""
    group: str = GATEWAY_GROUP
    kind: str = "InferencePool"


class ObjectiveSpec(msgspec.Struct, frozen=True, rename="camel"):
    """How urgent requests are: the higher, the more; None counts as 0."""

    priority: int | None = None
    pool_ref: PoolRef = PoolRef()


class InferenceObjective(KubeObject, frozen=True):
    """An InferenceObjective (`v1alpha2` of both groups)."""

    spec: ObjectiveSpec = ObjectiveSpec()


class ModelMatch(msgspec.Struct, frozen=True):
    """How a request's model is compared; `Exact` is the only type there is."""

    value: str = ""
    type: str = "Exact"


class Match(msgspec.Struct, frozen=True):
    """A condition of a rule."""

    model: ModelMatch | None = None


class TargetModel(msgspec.Struct, frozen=True, rename="camel"):
    """A model to ask for, and its share of the requests; without `weight` see `Rule`."""

    model_rewrite: str = ""
    weight: int | None = None


class Rule(msgspec.Struct, frozen=True):
    """Where any of `matches` holds, or there are none: one of `targets`, drawn by weight."""

    matches: tuple[Match, ...] = ()
    targets: tuple[TargetModel, ...] = ()


class RewriteSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Rules in the order in which they are tried."""

    pool_ref: PoolRef = PoolRef()
    rules: tuple[Rule, ...] = ()


class InferenceModelRewrite(KubeObject, frozen=True):
    """An InferenceModelRewrite (`v1alpha2` of both groups)."""

    spec: RewriteSpec = RewriteSpec()


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """What a refusal says beside its message."""

    retry_after_seconds: int = 0


class ApiStatus(msgspec.Struct, frozen=True):
    """How the API refuses something (`v1` Status)."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails = StatusDetails()
