"""Pods as endpoints: one for each port of the pool that a ready pod serves."""

import ipaddress
from collections.abc import Sequence

from epp.model.endpoint import Endpoint
from epp.protocol.kube.objects import KubePod

ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")
"""Annotations that restrict a pod to some of the pool's ports; the first one present counts."""


def declared_ports(pod: KubePod) -> str | None:
    """What a pod says of its ports; None: nothing, so that it serves them all."""
    annotations = pod.metadata.annotations
    return next((annotations[name] for name in ACTIVE_PORTS if name in annotations), None)


def active_ports(declared: str | None, ports: Sequence[int]) -> tuple[frozenset[int], str]:
    """Read a comma list of ports; return those of the pool, and what of the list is no port.

    As in llm-d-router (`pkg/epp/util/pod`), what is no port of the pool is passed over and an
    empty list means none: a pod says so before any of its engines is up.
    """
    if declared is None:
        return frozenset(ports), ""
    parts = [part.strip() for part in declared.split(",")]
    numbers = {int(part) for part in parts if part.isascii() and part.isdecimal()}
    strange = [part for part in parts if part and not (part.isascii() and part.isdecimal())]
    return frozenset(numbers.intersection(ports)), ", ".join(strange)


def endpoints_of(pod: KubePod, ports: Sequence[int]) -> tuple[Endpoint, ...]:
    """Make a pod's endpoints; none while it is not ready.

    They are named `<pod>-rank-<index of the port in the pool>`, as in llm-d-router.
    """
    address = _address(pod.status.pod_ip) if pod.ready else ""
    if not address:
        return ()
    active, _ = active_ports(declared_ports(pod), ports)
    about = pod.metadata
    return tuple(
        Endpoint(
            namespace=about.namespace,
            name=f"{about.name}-rank-{index}",
            address=address,
            port=port,
            labels=about.labels,
            uid=about.uid,
        )
        for index, port in enumerate(ports)
        if port in active
    )


def _address(text: str) -> str:
    """Bring an IPv6 address to its usual form, in which the proxy reports it back."""
    if ":" not in text:
        return text
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return ""
