"""The flags of `epp serve` that say where endpoints come from, and what they amount to."""

import argparse
from collections.abc import Mapping
from pathlib import Path

import msgspec

from epp.adapters.kube.kube_settings import KubeAccess, KubeSettings
from epp.cli.types import flag, labels, port_list
from epp.errors import ConfigError
from epp.protocol.kube.objects import GATEWAY_GROUP

_MOST_PORTS = 8
_GENERATED = 2
"""Parts of a Deployment's pod's name after the Deployment's: of the ReplicaSet, and its own."""


class Pool(msgspec.Struct, frozen=True):
    """Where endpoints come from, and the pool's name in metrics.

    `metrics_access`, where not None, leads to the Kubernetes API that says who may read them.
    """

    source: Path | KubeSettings
    name: str
    metrics_access: KubeAccess | None = None


def add_pool(group: argparse._ArgumentGroup) -> None:
    """Add the flags, with llm-d-router's names and defaults."""
    group.add_argument(
        "--endpoints-file",
        type=Path,
        metavar="FILE",
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
        "--pool-group", default=GATEWAY_GROUP, metavar="GROUP", help="(default: %(default)s)"
    )
    group.add_argument(
        "--endpoint-selector",
        type=labels,
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
    flag(
        group,
        "--metrics-endpoint-auth",
        default=False,
        help="ask the Kubernetes API whether the bearer of a token may read /metrics",
    )
    flag(
        group,
        "--ha-enable-leader-election",
        default=False,
        help="of several replicas let one be ready, by a Lease; the others stand by",
    )
    group.add_argument(
        "--kubeconfig",
        default="",
        metavar="FILE",
        help="(default: $KUBECONFIG, else the pod's service account, else ~/.kube/config)",
    )


def pool_of(arguments: argparse.Namespace, configured: str, environ: Mapping[str, str]) -> Pool:
    """Decide where endpoints come from; `configured` is the file that the configuration names.

    Raises `ConfigError` for flags that do not go together.
    """
    pool = _chosen(arguments, configured, environ)
    if not arguments.metrics_endpoint_auth:
        return pool
    return msgspec.structs.replace(pool, metrics_access=_access(arguments, environ))


def _chosen(arguments: argparse.Namespace, configured: str, environ: Mapping[str, str]) -> Pool:
    chosen = [
        (name, value)
        for name, value in (
            ("--endpoints-file", arguments.endpoints_file),
            ("--endpoint-selector", arguments.endpoint_selector),
        )
        if value
    ]
    if len(chosen) > 1:
        raise ConfigError("one of these is enough", " and ".join(name for name, _ in chosen))
    path = arguments.endpoints_file or (Path(configured) if configured else None)
    if path is not None and not arguments.endpoint_selector:
        return Pool(path, arguments.pool_name or "default")
    if arguments.endpoint_selector:
        return _selected(arguments, environ)
    if not arguments.pool_name:
        raise ConfigError(
            "no endpoints: name an InferencePool with --pool-name, labels of pods with"
            " --endpoint-selector, or a file with --endpoints-file or a file-discovery plug-in"
        )
    if arguments.pool_group != GATEWAY_GROUP:
        raise ConfigError(
            f"pools of `{arguments.pool_group}` are not known, only {GATEWAY_GROUP}/v1",
            "--pool-group",
        )
    return Pool(_settings(arguments, environ, arguments.pool_name), arguments.pool_name)


def _selected(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Pool:
    """Read the flags that stand for an InferencePool."""
    if arguments.pool_name:
        raise ConfigError("one of these is enough", "--endpoint-selector and --pool-name")
    ports = tuple(port for each in arguments.endpoint_target_ports or () for port in each)
    if not 1 <= len(ports) <= _MOST_PORTS or len(set(ports)) < len(ports):
        raise ConfigError("takes 1 to 8 different ports", "--endpoint-target-ports")
    name = _deployment(environ.get("POD_NAME", "")) or "default"
    settings = _settings(arguments, environ, name)
    selection = {"selector": arguments.endpoint_selector, "ports": ports}
    return Pool(msgspec.structs.replace(settings, **selection), name)


def _settings(arguments: argparse.Namespace, environ: Mapping[str, str], name: str) -> KubeSettings:
    return KubeSettings(
        namespace=arguments.pool_namespace or environ.get("NAMESPACE") or "default",
        pool=name,
        elect=arguments.ha_enable_leader_election,
        access=_access(arguments, environ),
    )


def _access(arguments: argparse.Namespace, environ: Mapping[str, str]) -> KubeAccess:
    return KubeAccess(kubeconfig=arguments.kubeconfig, environ=environ)


def _deployment(pod: str) -> str:
    """Name the Deployment that a pod is of; a pool without an object is called by it."""
    return pod.rsplit("-", _GENERATED)[0] if pod.count("-") >= _GENERATED else pod
