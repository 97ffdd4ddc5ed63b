"""The flags of `epp serve` that choose the pool, and the pool that they choose."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from epp.adapters.kube.kube_settings import KubeAccess, KubeSettings
from epp.cli.llm_d_router_flags import Notice
from epp.cli.types import BOOL, FILE, labels, port_list, unless_empty
from epp.errors import ConfigError
from epp.protocol.kube.objects import GATEWAY_GROUP, LEGACY_GROUP
from epp.protocol.kube.resources import POOL_GROUPS

if TYPE_CHECKING:  # its import takes long
    from epp.app.discovery import Source

_MAX_PORTS = 8
"""The most targetPorts that an InferencePool may have."""
_GENERATED_PARTS = 2
"""A Deployment's pod is named DEPLOYMENT-REPLICASET-POD, with two generated parts."""
_GENERATED_LENGTH = 5
"""The length of the last part, which may be digits alone."""


class PoolOptions(msgspec.Struct, frozen=True):
    """The source of a pool's endpoints, and the pool's name in metrics.

    `metrics_access`, if not None, is the Kubernetes API that authorizes readers of metrics.
    """

    source: Path | KubeSettings
    name: str
    metrics_access: KubeAccess | None = None


def add_pool(group: argparse._ArgumentGroup) -> None:
    """Add the flags, with llm-d-router's names and defaults."""
    group.add_argument(
        "--endpoints-file",
        **FILE,
        help="endpoints: [{name, namespace, address, port, labels}] as YAML; followed for changes",
    )
    group.add_argument(
        "--pool-name",
        metavar="NAME",
        help="the InferencePool to pick for; with a file, the pool's name in metrics",
    )
    group.add_argument(
        "--pool-namespace",
        metavar="NAMESPACE",
        help="the pool's namespace (default: $NAMESPACE, else default)",
    )
    group.add_argument(
        "--pool-group",
        default=GATEWAY_GROUP,
        metavar="GROUP",
        help=f"the pool's API group, or {LEGACY_GROUP} (v1alpha2) (default: %(default)s)",
    )
    group.add_argument(
        "--endpoint-selector",
        type=unless_empty(labels),
        metavar="LABELS",
        help="instead of a pool: pods with these labels (app=vllm,role=decode) are endpoints",
    )
    group.add_argument(
        "--endpoint-target-ports",
        type=port_list,
        action="append",
        metavar="PORTS",
        help="1 to 8 ports at which these pods serve (8000,8001)",
    )
    _add_api(group)


def _add_api(group: argparse._ArgumentGroup) -> None:
    """Add the flags for the other uses of the Kubernetes API."""
    group.add_argument(
        "--metrics-endpoint-auth",
        **BOOL,
        help="ask the Kubernetes API whether the bearer of a token may read /metrics and profiles"
        " (default: true; false if the endpoints come from a file)",
    )
    group.add_argument(
        "--ha-enable-leader-election",
        **BOOL,
        default=False,
        help="of several replicas only the leader, elected by a Lease, is ready; others stand by",
    )
    group.add_argument(
        "--kubeconfig",
        default="",
        metavar="FILE",
        help="(default: $KUBECONFIG, else the pod's service account, else ~/.kube/config)",
    )


def pool_of(
    arguments: argparse.Namespace, configured: str, environ: Mapping[str, str]
) -> PoolOptions:
    """Return the pool that the flags choose; `configured` is the configuration's endpoints file.

    Raises `ConfigError` for flags that exclude each other.
    """
    pool = _without_metrics(arguments, configured, environ)
    reviewed: bool | None = arguments.metrics_endpoint_auth
    if reviewed is None:  # llm-d-router's default, wherever there is an API to ask
        reviewed = isinstance(pool.source, KubeSettings)
    if not reviewed:
        return pool
    return msgspec.structs.replace(pool, metrics_access=_access(arguments, environ))


def pool_notices(arguments: argparse.Namespace, source: "Source") -> Iterator[Notice]:
    """Yield a notice for each flag that has no effect with this source of endpoints."""
    given: tuple[tuple[str, object], ...]
    if isinstance(source, KubeSettings):
        ports = arguments.endpoint_target_ports if source.selector is None else None
        given = (("--endpoint-target-ports", ports),)
        why = "the InferencePool names its ports"
    else:
        given = (
            ("--pool-namespace", arguments.pool_namespace),
            ("--endpoint-selector", arguments.endpoint_selector),
            ("--endpoint-target-ports", arguments.endpoint_target_ports),
            ("--ha-enable-leader-election", arguments.ha_enable_leader_election),
        )
        why = "the endpoints come from a file"
    for name, value in given:
        if value:
            yield Notice("flag.without_effect", name, why)


def _without_metrics(
    arguments: argparse.Namespace, configured: str, environ: Mapping[str, str]
) -> PoolOptions:
    if arguments.endpoint_selector and arguments.endpoints_file:
        raise ConfigError("give only one of these", "--endpoints-file and --endpoint-selector")
    # As in llm-d-router, whose flags require a pool or a selector even beside a file.
    if path := arguments.endpoints_file or configured:
        return PoolOptions(Path(path), arguments.pool_name or "default")
    if arguments.endpoint_selector:
        return _selected(arguments, environ)
    if not arguments.pool_name:
        raise ConfigError(
            "no endpoints: name an InferencePool with --pool-name, labels of pods with"
            " --endpoint-selector, or a file with --endpoints-file or a file-discovery plug-in"
        )
    if arguments.pool_group not in POOL_GROUPS:
        raise ConfigError(
            f"no InferencePools are known in `{arguments.pool_group}`, only in"
            f" {' and '.join(POOL_GROUPS)}",
            "--pool-group",
        )
    return PoolOptions(_settings(arguments, environ, arguments.pool_name), arguments.pool_name)


def _selected(arguments: argparse.Namespace, environ: Mapping[str, str]) -> PoolOptions:
    """Return the pool of the flags that replace an InferencePool: a selector and ports."""
    if arguments.pool_name:
        raise ConfigError("give only one of these", "--endpoint-selector and --pool-name")
    given = (port for each in arguments.endpoint_target_ports or () for port in each)
    ports = tuple(dict.fromkeys(given))
    if not 1 <= len(ports) <= _MAX_PORTS:
        raise ConfigError("takes 1 to 8 ports", "--endpoint-target-ports")
    name = _deployment(environ.get("POD_NAME", "")) or "default"
    settings = _settings(arguments, environ, name)
    selection = {"selector": arguments.endpoint_selector, "ports": ports}
    return PoolOptions(msgspec.structs.replace(settings, **selection), name)


def _settings(arguments: argparse.Namespace, environ: Mapping[str, str], name: str) -> KubeSettings:
    return KubeSettings(
        namespace=arguments.pool_namespace or environ.get("NAMESPACE") or "default",
        pool=name,
        pool_group=arguments.pool_group,
        elect=arguments.ha_enable_leader_election,
        access=_access(arguments, environ),
    )


def _access(arguments: argparse.Namespace, environ: Mapping[str, str]) -> KubeAccess:
    return KubeAccess(kubeconfig=arguments.kubeconfig, environ=environ)


def _deployment(pod: str) -> str:
    """Return the name of a pod's Deployment or StatefulSet.

    A pool that a selector defines, and its Lease, have this name.
    """
    owner, _, last = pod.rpartition("-")
    if owner and last.isdecimal() and len(last) < _GENERATED_LENGTH:
        return owner  # the pod's ordinal in a StatefulSet
    return pod.rsplit("-", _GENERATED_PARTS)[0] if pod.count("-") >= _GENERATED_PARTS else pod
