"""Data sources: the plug-ins that choose which pages of endpoints are read, where and how often.

Names, parameters and defaults are llm-d-router's.
"""

import re
from typing import Annotated, ClassVar, Literal, NamedTuple

import msgspec

from epp.model.endpoint import LAST_PORT
from epp.policy.bounds import BoundedParameters, at_least
from epp.policy.effects import Effect, mapped_to, without_effect
from epp.policy.plugins import PluginParameters
from epp.quantities import seconds

_PATH = re.compile(r"[\x21-\x7e]*")
_MAX_METRICS_BYTES, _MAX_CLUSTER_BYTES, _MAX_MODELS_BYTES = 4 << 20, 8 << 20, 1 << 20

Port = Annotated[int, msgspec.Meta(ge=1, le=LAST_PORT)]
Content = Literal["metrics", "models"]


class CertificateFiles(NamedTuple):
    """PEM files by their paths, empty if there are none."""

    authorities: str = ""
    """Those that a server's certificate is checked against."""
    certificate: str = ""
    """What the server is shown."""
    key: str = ""
    """Its key."""


class PolledSource(PluginParameters, frozen=True):
    """Pages that are polled: `content` of at most `most_bytes`; `kind` is the plug-in's type."""

    kind: ClassVar[str] = ""
    content: ClassVar[Content] = "metrics"
    most_bytes: ClassVar[int] = _MAX_METRICS_BYTES

    scheme: Literal["http", "https"] = "http"
    path: str = "/metrics"
    insecure_skip_verify: bool = True
    interval: str = ""

    def __post_init__(self) -> None:
        if not _PATH.fullmatch(self.path):
            raise ValueError(
                f"`{self.path}` is not the path of a URL: write it in ASCII, without spaces"
            )
        _ = self.every

    @property
    def every(self) -> float | None:
        """How often they are read, in seconds; None: as often as the picker's own."""
        # llm-d-router: without an interval, or with 0, the common one.
        return None if self.interval in {"", "0", "0s"} else seconds(self.interval)

    @property
    def url_path(self) -> str:
        """Their path, from its slash on."""
        return self.path if self.path.startswith("/") else f"/{self.path}"

    @property
    def port_and_node(self) -> tuple[int | None, bool]:
        """Their port, None for the endpoint's, and whether they are on the endpoint's node."""
        return None, False

    @property
    def certificates(self) -> CertificateFiles:
        """The certificates of connections to them."""
        return CertificateFiles()

    def warnings(self) -> tuple[str, ...]:
        """Return what is written without effect."""
        return ()


class _CertifiedSource(PolledSource, frozen=True):
    ca_cert_path: str = ""
    client_cert_path: str = ""
    client_key_path: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.client_cert_path) != bool(self.client_key_path):
            raise ValueError("`clientCertPath` and `clientKeyPath` require each other")

    @property
    def certificates(self) -> CertificateFiles:
        """The certificates of connections to them."""
        return CertificateFiles(self.ca_cert_path, self.client_cert_path, self.client_key_path)

    def warnings(self) -> tuple[str, ...]:
        """Return what is written without effect."""
        if self.scheme == "http" and any(self.certificates):
            return ("its certificates have no effect: `scheme` is `http`",)
        if self.ca_cert_path and self.insecure_skip_verify:
            return ("`caCertPath` has no effect: `insecureSkipVerify` is true",)
        return ()


class MetricsDataSource(_CertifiedSource, frozen=True):
    """The metrics pages of endpoints."""

    kind: ClassVar[str] = "metrics-data-source"

    port: Port | None = None

    @property
    def port_and_node(self) -> tuple[int | None, bool]:
        """Their port, and that they are not on the endpoint's node."""
        return self.port, False


class MulticlusterMetricsDataSource(MetricsDataSource, frozen=True):
    """The metrics pages of other clusters' pickers."""

    kind: ClassVar[str] = "multicluster-metrics-data-source"
    most_bytes: ClassVar[int] = _MAX_CLUSTER_BYTES

    scheme: Literal["http", "https"] = "https"
    insecure_skip_verify: bool = False


class ModelsDataSource(_CertifiedSource, frozen=True):
    """The lists of the models that endpoints serve."""

    kind: ClassVar[str] = "models-data-source"
    content: ClassVar[Content] = "models"
    most_bytes: ClassVar[int] = _MAX_MODELS_BYTES

    path: str = "/v1/models"


class ModelsResponder(PluginParameters, frozen=True):
    """Answers `GET /v1/models` from the lists of all endpoints, whose source need not be named."""


class DcgmDataSource(PolledSource, frozen=True):
    """The pages of NVIDIA's DCGM exporter, in the pod or, with `use_node_address`, on its node."""

    kind: ClassVar[str] = "dcgm-data-source"

    port: Port = 9400
    use_node_address: bool = False

    @property
    def port_and_node(self) -> tuple[int | None, bool]:
        """Their port, and whether they are on the endpoint's node."""
        return self.port, self.use_node_address


class EndpointNotificationSource(PluginParameters, frozen=True):
    """Events of endpoints."""

    effect: ClassVar[Effect] = mapped_to(
        "the picker's own discovery, whose events reach every plug-in that needs them"
    )


class K8sNotificationSource(PluginParameters, frozen=True):
    """Events of objects of one kind."""

    effect: ClassVar[Effect] = mapped_to(
        "the picker's own watches, of pods, pools, objectives and rewrites"
    )

    version: str
    kind: str
    group: str = ""

    def __post_init__(self) -> None:
        if not self.version or not self.kind:
            raise ValueError("`version` and `kind` are required")


class FileDiscoveryConfig(PluginParameters, frozen=True):
    """Takes endpoints from the file `path`, which is always followed for changes."""

    host_names: ClassVar[bool] = False

    path: str
    watch_file: Annotated[bool, without_effect("the file is always followed")] = False


class MulticlusterFileDiscovery(FileDiscoveryConfig, frozen=True):
    """Takes clusters from a file: their addresses may be host names, which are resolved."""

    host_names: ClassVar[bool] = True


class RedisSyncer(BoundedParameters, frozen=True):
    """Connects replicas through a Redis or Valkey server."""

    address: str = "localhost:6379"
    password_env: str = ""
    password_file: str = ""
    db: Annotated[int, at_least(0, "a number, such as 0")] = 0
    state_ttl: Annotated[str, without_effect("streams expire by themselves")] = msgspec.field(
        default="2s", name="stateTTL"
    )
    coordination_ttl: Annotated[str, without_effect("nothing is agreed on")] = msgspec.field(
        default="180s", name="coordinationTTL"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal() or not 1 <= int(port) <= LAST_PORT:
            raise ValueError(f"`address` is not HOST:PORT: `{self.address}`")
        if self.password_env and self.password_file:
            raise ValueError("give only one of `passwordEnv` and `passwordFile`")
        seconds(self.state_ttl)
        seconds(self.coordination_ttl)

    @property
    def host(self) -> str:
        """The server's name or IP address, without brackets."""
        return self.address.rpartition(":")[0].removeprefix("[").removesuffix("]")

    @property
    def port(self) -> int:
        """The server's port."""
        return int(self.address.rpartition(":")[2])
