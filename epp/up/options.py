"""The options of `epp up`."""

from pathlib import Path

import msgspec

from epp.up.servers import ModelServer


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `epp up`: either `servers` or an endpoints file; times in seconds."""

    servers: tuple[ModelServer, ...] = ()
    """The model servers."""
    endpoints_path: Path | None = None
    """The endpoints file, in place of `servers`."""
    endpoints_setting: str = "--endpoints-file"
    """The setting that names that file."""
    host: str = "127.0.0.1"
    """The address where clients connect."""
    port: int = 8080
    """The port where clients connect; 0: any free one."""
    metrics_port: int = 0
    """The picker's port for metrics and health, on this machine only; 0: any free one."""
    policy: str = ""
    """The policy's name, to be shown."""
    picker_flags: tuple[str, ...] = ()
    """Flags of `epp serve` for the picker."""
    tls_cert: Path | None = None
    """The certificate chain to serve https with; None: http."""
    tls_key: Path | None = None
    """Its key."""
    ca_file: Path | None = None
    """Authorities that servers' certificates are checked against; None: the system's."""
    insecure_upstream: bool = False
    """Whether any certificate of a server is accepted."""
    api_key_env: str = ""
    """The environment variable with the servers' API key; empty: clients' keys are passed on."""
    drain_timeout: float = 30.0
    """How long answers under way may take to end."""
    log_level: str = "warning"
    """The least level of the picker's lines that are shown."""
