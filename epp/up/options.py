"""The options of `epp up`."""

from pathlib import Path

import msgspec

from epp.up.servers import ModelServer


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `epp up`: either `servers` or an endpoints file; times in seconds.

    `picker_flags` are of `epp serve`, `policy` names the policy for people. Port 0 is any free
    one. Requests get the key that the environment variable `api_key_env` has, where it is given.
    """

    servers: tuple[ModelServer, ...] = ()
    endpoints_path: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    metrics_port: int = 0
    policy: str = ""
    picker_flags: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    ca_file: Path | None = None
    insecure_upstream: bool = False
    api_key_env: str = ""
    drain_timeout: float = 30.0
    log_level: str = "warning"
