"""The options of `epp serve`."""

import ssl
from pathlib import Path

import msgspec

from epp.adapters.extproc.memory import memory_limit
from epp.adapters.extproc.transports import Transport
from epp.adapters.kube.kube_settings import KubeAccess
from epp.adapters.recording.writer import RecordingSettings
from epp.app.discovery import Source
from epp.config.file import Settings
from epp.model.pods.outlier_detection import OUTLIERS
from epp.protocol.extproc.observation import AUTO, Observation

_HELD_SHARE = 4
"""The share of the memory that unfinished requests may hold is one in so many."""


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `epp serve` for one pool: seconds and bytes; port 0 is any free one.

    `max_held_bytes` and `request_timeout` bound requests that have not ended, over all streams; 0
    is a quarter of the memory, and any time.
    With `metrics_access` a Kubernetes API authorizes readers of metrics. `secure`: TLS, with the
    files in `cert_path` or a self-signed certificate; readers of metrics have it with the files in
    `metrics_cert_path`, and present a certificate that `metrics_client_ca` signed. `tls_ciphers`
    are OpenSSL's names. `max_receive_bytes` bounds a message; 0 is the longest body and 1 MiB. An
    empty `hash_secret` is a random one. Endpoints that failed `eject_after` times in a row are left
    out for a while; 0: never. `recording` says where traffic is recorded, `shadow`
    which configuration decides beside the live one, under its name; None: nothing, and none.
    """

    settings: Settings
    source: Source
    pool_name: str = "default"
    bind_address: str = "0.0.0.0"  # noqa: S104 (a pod is reached from outside)
    grpc_port: int = 9002
    health_port: int = 9003
    metrics_port: int = 9090
    metrics_access: KubeAccess | None = None
    secure: bool = True
    cert_path: Path | None = None
    tls_min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    tls_ciphers: str = ""
    metrics_cert_path: Path | None = None
    metrics_client_ca: Path | None = None
    profiles: bool = False
    health_on_grpc_port: bool = False
    transport: Transport = "native"
    max_body_bytes: int = 64 << 20
    max_receive_bytes: int = 0
    max_held_bytes: int = 0
    request_timeout: float = 300.0
    observation: Observation = AUTO
    scrape_interval: float = 1.0
    drain_timeout: float = 30.0
    show_decision: bool = False
    emit_scores: bool = False
    stream_metrics: bool = False
    heed_subset: bool = True
    request_orca: bool = False
    hash_secret: bytes = b""
    eject_after: int = OUTLIERS.consecutive_failures
    recording: RecordingSettings | None = None
    shadow: tuple[str, Settings] | None = None

    @property
    def held_bytes(self) -> int:
        """What requests that have not ended may hold together."""
        return self.max_held_bytes or memory_limit() // _HELD_SHARE
