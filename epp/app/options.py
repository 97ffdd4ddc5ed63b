"""The options of `epp serve`."""

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from epp.adapters.extproc.transports import Transport
from epp.adapters.kube.kube_settings import KubeAccess, KubeSettings
from epp.adapters.recording.writer import RecordingSettings
from epp.adapters.tracing.settings import TracingSettings
from epp.app.discovery import Source
from epp.app.process import file_of
from epp.config.file import Settings
from epp.errors import ConfigError
from epp.model.pods.outlier_settings import OUTLIERS
from epp.policy.flow.settings import FlowSettings
from epp.protocol.extproc.observation import AUTO, Observation
from epp.system.memory import memory_limit

if TYPE_CHECKING:  # see `reader_tls`
    from epp.adapters.replicas.settings import ReplicaSettings
    from epp.adapters.tls import ReaderTls
    from epp.app.workers.worker import Worker

_HELD_SHARE = 4
"""Unfinished requests may hold the memory divided by this."""
_INDEX_SHARE = 2
"""The index and the endpoints' pools may take the memory divided by this."""


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `epp serve` for one pool: seconds and bytes; port 0 is any free one."""

    settings: Settings
    """The configuration."""
    source: Source
    """Where the endpoints come from."""
    pool_name: str = "default"
    """The pool's name in metrics."""
    bind_address: str = ""
    """The address that all ports are bound to; none, or `::`: all, of either family."""
    grpc_port: int = 9002
    """The port for ext_proc."""
    health_port: int = 9003
    """The port for gRPC health, in plaintext."""
    metrics_port: int = 9090
    """The port for metrics, health and profiles."""
    metrics_access: KubeAccess | None = None
    """The Kubernetes API that authorizes readers of metrics; None: everyone may read."""
    secure: bool = True
    """Whether the ext_proc port has TLS."""
    cert_path: Path | None = None
    """The folder of its certificate and key; None: a self-signed certificate is made."""
    tls_min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    """The lowest version of TLS that is accepted."""
    tls_ciphers: str = ""
    """The ciphers up to TLS 1.2, by OpenSSL's names; empty: OpenSSL's own."""
    metrics_cert_path: Path | None = None
    """The folder of the metrics port's certificate and key; None: plaintext."""
    metrics_client_ca: Path | None = None
    """The CAs that sign the certificates of readers of metrics; None: readers need none."""
    profiles: bool = False
    """Whether the metrics port serves profiles."""
    health_on_grpc_port: bool = False
    """Whether the ext_proc port answers gRPC health too."""
    transport: Transport = "native"
    """The transport of ext_proc and health."""
    max_body_bytes: int = 64 << 20
    """The longest request body; longer ones get 413."""
    max_receive_bytes: int = 0
    """The longest ext_proc message; 0: the longest body and 1 MiB."""
    max_held_bytes: int = 0
    """Bytes that unfinished requests may hold, over all streams; 0: a quarter of the memory.

    Pickers that share the memory (`sharers`) share these bytes."""
    request_timeout: float = 300.0
    """How long a request may take to end; 0: as long as it likes."""
    observation: Observation = AUTO
    """Which responses are observed to their end."""
    scrape_interval: float = 1.0
    """How often each endpoint's metrics are read."""
    drain_timeout: float = 30.0
    """How long open streams may take to end after SIGTERM."""
    show_decision: bool = False
    """Whether a response header shows the decision."""
    emit_scores: bool = False
    """Whether the endpoints' scores are sent to the proxy."""
    stream_metrics: bool = False
    """Whether ext_proc streams are measured."""
    former_metrics: bool = False
    """Whether metrics have the names, too, that llm-d-router no longer writes."""
    fairness_ids: int = 1000
    """How many fairness ids have metrics of their own."""
    heed_subset: bool = True
    """Whether only the endpoints that the gateway names may be picked."""
    request_orca: bool = False
    """Whether model servers are asked for load reports in response headers."""
    hash_secret: bytes = b""
    """Keys the block hashes; empty: a random one."""
    flow: FlowSettings = FlowSettings()
    """When requests wait in the picker."""
    buffered_wait: float = 0.1
    """How long a request may wait in the picker while the proxy's `message_timeout` runs."""
    eject_after: int = OUTLIERS.consecutive_failures
    """Failures in a row after which an endpoint is left out for a while; 0: never."""
    replicas: "ReplicaSettings | None" = None
    """Where the pool's other replicas are; None: nothing is exchanged."""
    sharers: int = 1
    """How many pickers share the memory: the pools of one process, or the workers."""
    workers: int = 1
    """How many processes serve as one; each has all of these options."""
    worker: "Worker | None" = None
    """This process's place among the workers; None: it is the only one, or their parent."""
    recording: RecordingSettings | None = None
    """Where traffic is recorded; None: nowhere."""
    tracing: TracingSettings | None = None
    """How requests are traced; None: they are not."""
    shadow: tuple[str, Settings] | None = None
    """The name and configuration of the shadow; None: there is none."""

    @property
    def source_setting(self) -> str:
        """The setting that names the file of `source`; empty if there is none."""
        if isinstance(self.source, Path):
            configured = str(self.source) == self.settings.endpoints_file
            return "file-discovery" if configured else "--endpoints-file"
        given = isinstance(self.source, KubeSettings) and self.source.access.kubeconfig
        return "--kubeconfig" if given else ""

    @property
    def held_bytes(self) -> int:
        """Bytes that unfinished requests may hold together."""
        return max(1, (self.max_held_bytes or memory_limit() // _HELD_SHARE) // self.sharers)

    @property
    def index_bytes(self) -> int:
        """Roughly how many bytes the index and the endpoints' pools may take together."""
        return memory_limit() // _INDEX_SHARE // self.sharers


def reader_tls(options: ServeOptions) -> "ReaderTls | None":
    """Return the TLS of the metrics port; None: it is plaintext. Raises `ConfigError`."""
    if options.metrics_cert_path is None:
        return None
    from epp.adapters.tls import ReaderTls  # noqa: PLC0415 (slow, and plaintext needs none)

    authorities = options.metrics_client_ca
    try:
        return ReaderTls(
            options.metrics_cert_path, authorities, options.tls_min_version, options.tls_ciphers
        )
    except ConfigError as error:
        of_clients = error.place == str(authorities)
        flag = "--metrics-client-ca-file" if of_clients else "--metrics-cert-dir"
        raise ConfigError(error.problem, f"{flag} {error.place}") from error


def key_and_certificate(cert_path: Path | None) -> tuple[bytes, bytes]:
    """Return the key and the certificate (PEM) to serve with. Raises `ConfigError`."""
    from epp.adapters.tls import certificate  # noqa: PLC0415 (as above)

    with file_of("--cert-path"):
        return certificate(cert_path)
