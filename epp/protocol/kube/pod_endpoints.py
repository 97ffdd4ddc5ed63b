"""The endpoints of a pod: one for each port of the pool that a ready pod serves."""

from collections.abc import Sequence

from epp.model.endpoint import Endpoint, canonical_ip
from epp.protocol.kube.objects import KubePod

ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")
"""Annotations that restrict a pod to some ports of the pool; the first one present counts."""


def active_ports(pod: KubePod, ports: Sequence[int]) -> tuple[frozenset[int], str]:
    """Return the pool's ports in a pod's annotation, and its entries that are not ports.

    Without an annotation the pod serves every port. One without a port of the pool has none at all.
    """
    annotations = pod.metadata.annotations
    declared = next((annotations[name] for name in ACTIVE_PORTS if name in annotations), None)
    if declared is None:
        return frozenset(ports), ""
    parts = [part.strip() for part in declared.split(",")]
    # llm-d-router `pkg/epp/util/pod`: numbers that are not ports of the pool are ignored, and an
    # empty list means no port: a pod says so before any of its engines is up.
    numbers = {part.lstrip("0") for part in parts}  # text: a number may have any length
    invalid = [part for part in parts if part and not (part.isascii() and part.isdecimal())]
    active = frozenset(port for port in ports if str(port) in numbers)
    return active, ", ".join(invalid if active else filter(None, parts))


def unreachable(pod: KubePod) -> bool:
    """Return whether a pod that is ready has no address that others can reach."""
    return pod.ready and not _address(pod.status.pod_ip)


def endpoints_of(
    pod: KubePod, ports: Sequence[int], app_protocol: str = ""
) -> tuple[Endpoint, ...]:
    """Return a pod's endpoints; none while it is not ready."""
    address = _address(pod.status.pod_ip) if pod.ready else ""
    if not address:
        return ()
    active, _ = active_ports(pod, ports)
    metadata = pod.metadata
    return tuple(
        Endpoint(
            namespace=metadata.namespace,
            # llm-d-router's names: `<pod>-rank-<index of the port in the pool>`.
            name=f"{metadata.name}-rank-{index}",
            address=address,
            port=port,
            labels=metadata.labels,
            uid=metadata.uid,
            pod=metadata.name,
            node_address=_address(pod.status.host_ip),
            hostname=pod.spec.hostname,
            app_protocol=app_protocol,
            port_index=index,
        )
        for index, port in enumerate(ports)
        if port in active
    )


def _address(text: str) -> str:
    """Return an address in its canonical form; empty if others cannot reach it."""
    # RFC 4007 §11: a zone is of the node alone, and may be any text.
    return "" if "%" in text else canonical_ip(text) or ""
