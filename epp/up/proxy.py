"""Envoy's configuration for `epp up`: one port for clients, the picker, and model servers.

Envoy follows two files for changes: `SERVERS_FILE` with the model servers' addresses (EDS), and
`CERTIFICATE_FILE` with the certificate for clients (SDS). Its admin interface is a socket in the
same folder, which no one else can enter.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from epp.gateway.envoy import (
    CONNECT_SECONDS,
    EXT_PROC,
    HTTP_OPTIONS,
    STREAMS,
    TLS,
    Json,
    all_protocols,
    breakers,
    early_removal,
    ext_proc,
    extension,
    http_manager,
    local_cluster,
    override_host,
    picker_cluster,
    retries,
    router,
    socket_address,
    target_address,
    tls_socket,
    typed,
)
from epp.protocol.extproc.names import DESTINATION, HEADERS_OF_CLIENTS, HEADERS_OF_PICKER
from epp.up import model_list
from epp.up.servers import Address, ModelServer, ip_or_none

ADMIN_SOCKET = "admin.sock"
SERVERS_FILE = "servers.json"
CERTIFICATE_FILE = "certificate.json"
PICKS = "up.picks"
"""The runtime key of the share, 0 or 100, of requests that the picker is asked for."""
STAT = "gateway"
"""The prefix of Envoy's statistics of clients: `http.gateway.downstream_rq_active`."""

_IDLE_SECONDS = 3
"""How long a connection to a model server is kept: uvicorn, which vLLM runs on, closes after 5."""
_CERTIFICATE = "clients"
_MODELS = "models"
_GET: Json = {"name": ":method", "string_match": {"exact": "GET"}}
_MATCH = "envoy.transport_socket_match"


class ProxySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one Envoy."""

    ip: str
    """The address at which clients connect."""
    port: int
    """The port at which clients connect."""
    picker_port: int
    """The port of the picker, at 127.0.0.1."""
    models_port: int
    """The port of the list of all models, at 127.0.0.1."""
    folder: Path
    """Where the files of this module are."""
    servers: tuple[ModelServer, ...] = ()
    """The servers that were given by URL."""
    tls: bool = False
    """Whether clients speak TLS."""
    ca_file: Path | None = None
    """Authorities of the certificates of https servers; None: any certificate will do."""
    api_key_env: str = ""
    """The environment variable with the key that replaces what clients send, if not empty."""


def proxy_config(settings: ProxySettings) -> str:
    """Return the bootstrap configuration as JSON."""
    return json.dumps(
        {
            "node": {"id": "epp-up", "cluster": "epp-up"},
            "admin": {"address": {"pipe": {"path": str(settings.folder / ADMIN_SOCKET)}}},
            "layered_runtime": {"layers": [{"name": "admin", "admin_layer": {}}]},
            "overload_manager": {"resource_monitors": [_most_connections()]},
            "static_resources": {
                "listeners": [_listener(settings)],
                "clusters": [
                    _pool(settings),
                    picker_cluster(settings.picker_port),
                    local_cluster(_MODELS, settings.models_port),
                ],
            },
        },
        indent=1,
    )


def servers_file(addresses: Iterable[Address]) -> str:
    """Return the content of `SERVERS_FILE`: each address once, whatever endpoints share it."""
    unique = {address.target: address for address in addresses}
    hosts = [
        {
            # The host header of requests, if a name was given: it may choose a virtual host.
            "endpoint": {"address": target_address(target), "hostname": _hostname(address)},
            "metadata": {"filter_metadata": {_MATCH: {"server": address.server}}},
        }
        for target, address in unique.items()
    ]
    kind = "envoy.config.endpoint.v3.ClusterLoadAssignment"
    loaded = typed(kind, cluster_name="pool", endpoints=[{"lb_endpoints": hosts}])
    return json.dumps({"resources": [loaded]})


def certificate_file(certificate: str, key: str, still: Path) -> str:
    """Return the content of `CERTIFICATE_FILE` for the paths of a chain and of its key (PEM).

    Nothing changes in the folder `still`.
    """
    pair = {
        "certificate_chain": {"filename": certificate},
        "private_key": {"filename": key},
        # Else Envoy follows the two itself, and a FIFO in the place of one stops its main thread.
        "watched_directory": {"path": str(still)},
    }
    secret = typed(f"{TLS}.Secret", name=_CERTIFICATE, tls_certificate=pair)
    return json.dumps({"resources": [secret]})


def put(path: Path, text: str) -> None:
    """Replace a file in one step: Envoy reads a file that is moved to its place."""
    draft = path.with_name(path.name + ".draft")
    draft.write_text(text)
    draft.replace(path)


def _hostname(address: Address) -> str:
    host, _, _ = address.server.rpartition(":")
    return address.server if host and ip_or_none(host.strip("[]")) is None else ""


def _most_connections() -> Json:
    name = "envoy.resource_monitors.global_downstream_max_connections"
    kind = (
        "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig"
    )
    return extension(name, kind, max_active_downstream_connections=STREAMS)


def _listener(settings: ProxySettings) -> Json:
    chain = http_manager(
        stat_prefix=STAT,
        http_filters=[
            ext_proc("FULL_DUPLEX_STREAMED", "STREAMED", fail_open=True),
            router(suppress_envoy_headers=True),
        ],
        early_header_mutation_extensions=early_removal(HEADERS_OF_PICKER),
        route_config={"virtual_hosts": [_host(settings)]},
        # A long answer that is not streamed sends nothing for minutes.
        stream_idle_timeout="0s",
        request_headers_timeout="60s",
        use_remote_address=True,
        preserve_external_request_id=True,
        server_header_transformation="PASS_THROUGH",
        **all_protocols(),
    )
    if settings.tls:
        chain["transport_socket"] = _client_tls(settings.folder)
    address = socket_address(settings.ip, settings.port)
    if settings.ip == "::":
        address["socket_address"]["ipv4_compat"] = True
    # Envoy binds with SO_REUSEPORT by default: two on one port would share its connections.
    return {
        "name": STAT,
        "address": address,
        "enable_reuse_port": False,
        "filter_chains": [chain],
    }


def _host(settings: ProxySettings) -> Json:
    """Return the routes: they bypass the picker while `PICKS` is 0, and Envoy then takes turns."""
    whole = {"numerator": 100, "denominator": "HUNDRED"}
    asked = {"default_value": whole, "runtime_key": PICKS}
    without = typed("envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute", disabled=True)
    to_pool = {
        "cluster": "pool",
        "timeout": "0s",
        "auto_host_rewrite": True,
        # Nothing of the request has been sent then.
        "retry_policy": retries("connect-failure,reset-before-request"),
    }
    host: Json = {
        "name": "pool",
        "domains": ["*"],
        # By the router, behind the picker; that alone may set others (`early_removal`).
        "request_headers_to_remove": [DESTINATION, *HEADERS_OF_CLIENTS],
        "routes": [
            {
                "match": {"path": model_list.PATH, "headers": [_GET]},
                "route": {"cluster": _MODELS, "timeout": f"{model_list.LIST_SECONDS * 2}s"},
                "typed_per_filter_config": {EXT_PROC: without},
            },
            {"match": {"prefix": "/", "runtime_fraction": asked}, "route": to_pool},
            {
                "match": {"prefix": "/"},
                "route": to_pool,
                "typed_per_filter_config": {EXT_PROC: without},
            },
        ],
    }
    if settings.api_key_env:
        key = {"key": "authorization", "value": f"Bearer %ENVIRONMENT({settings.api_key_env})%"}
        host["request_headers_to_add"] = [
            {"header": key, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
        ]
    return host


def _client_tls(folder: Path) -> Json:
    """Return TLS with the certificate of `CERTIFICATE_FILE`, for HTTP/1.1 and HTTP/2."""
    followed = _followed(folder / CERTIFICATE_FILE)
    common = {
        "alpn_protocols": ["h2", "http/1.1"],
        "tls_certificate_sds_secret_configs": [{"name": _CERTIFICATE, "sds_config": followed}],
    }
    return tls_socket("DownstreamTlsContext", common_tls_context=common)


def _pool(settings: ProxySettings) -> Json:
    options = typed(
        HTTP_OPTIONS,
        explicit_http_config={"http_protocol_options": {}},
        common_http_protocol_options={"idle_timeout": f"{_IDLE_SECONDS}s"},
    )
    cluster: Json = {
        "name": "pool",
        "type": "EDS",
        "eds_cluster_config": {"eds_config": _followed(settings.folder / SERVERS_FILE)},
        "connect_timeout": f"{CONNECT_SECONDS}s",
        "circuit_breakers": breakers(),
        "load_balancing_policy": override_host(by_header=False),
        "typed_extension_protocol_options": {HTTP_OPTIONS: options},
    }
    secure = [each for each in settings.servers if each.scheme == "https"]
    if secure:
        cluster["transport_socket_matches"] = _server_tls(secure, settings.ca_file)
    return cluster


def _server_tls(servers: Sequence[ModelServer], ca_file: Path | None) -> list[Json]:
    """Return the TLS to each server: its name as SNI, and required in its certificate."""
    return [
        {
            "name": server.authority,
            "match": {"server": server.authority},
            "transport_socket": tls_socket(
                "UpstreamTlsContext",
                common_tls_context=_verified(server, ca_file) if ca_file else {},
                **({"sni": server.tls_name} if server.tls_name else {}),
            ),
        }
        for server in servers
    ]


def _verified(server: ModelServer, ca_file: Path) -> Json:
    kind: Literal["DNS", "IP_ADDRESS"] = "IP_ADDRESS" if server.address else "DNS"
    names = [{"san_type": kind, "matcher": {"exact": server.host}}]
    return {
        "validation_context": {
            "trusted_ca": {"filename": str(ca_file)},
            "match_typed_subject_alt_names": names,
        }
    }


def _followed(path: Path) -> Json:
    """Return a source of configuration: a file, read again when another is moved to its place."""
    return {"path_config_source": {"path": str(path)}, "resource_api_version": "V3"}
