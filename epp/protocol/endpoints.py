"""The endpoints file: a list of model servers, for pickers without Kubernetes."""

import re
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec

from epp.errors import ConfigError
from epp.model.endpoint import (
    LAST_PORT,
    OFFLOAD_LABEL,
    RANK_LABEL,
    Endpoint,
    EndpointId,
    canonical_ip,
    is_number,
    target_of,
)
from epp.model.events import EndpointRemoved, EndpointUpserted
from epp.protocol.conversion import convert
from epp.protocol.steps import finish
from epp.protocol.yaml import yaml_steps

MAX_BYTES = 1 << 20
"""The longest file that is read: as much as a Kubernetes ConfigMap holds."""
_MAX_ENDPOINTS = 16_384
_STEP_ENDPOINTS = 64
"""Endpoints of a file, and those between two pauses."""

Name = Annotated[
    str, msgspec.Meta(pattern=r"^[^/\s]+$", max_length=253, description="no slash, no space")
]
Address = Annotated[str, msgspec.Meta(max_length=253)]
Port = Annotated[int, msgspec.Meta(ge=1, le=LAST_PORT)]
Rank = Annotated[int, msgspec.Meta(ge=0, lt=4096)]
Ranks = Annotated[int, msgspec.Meta(ge=1, le=4096)]


HostPort = Annotated[
    str, msgspec.Meta(pattern=r"^(\[[^]/\s@]+\]|[^]/\s@:[]+):[0-9]{1,5}$", max_length=262)
]

METRICS_ADDRESS, METRICS_PORT = "metricsAddress", "metricsPort"
"""Labels of a cluster: where its metrics are, if not at its address and port."""
# RFC 1123 §2.1, as Kubernetes reads it: a DNS subdomain in lower case.
_HOST_NAME = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
)

Resolve = Callable[[str, int], str]
"""Returns the IP address of a host name whose server listens at a port; "" if it has none."""


class KnownEndpoints:
    """The endpoints that were listed last, which the next list is compared with."""

    def __init__(self) -> None:
        self._known: dict[EndpointId, Endpoint] = {}

    def ids(self) -> frozenset[EndpointId]:
        """Return the known endpoints."""
        return frozenset(self._known)

    def differences(
        self, endpoints: Sequence[Endpoint]
    ) -> Iterator[EndpointRemoved | EndpointUpserted]:
        """Yield the events of a list, removals first; another address or rank is another engine.

        What was yielded is known.
        """
        listed = {endpoint.id: endpoint for endpoint in endpoints}
        for key, known in list(self._known.items()):
            if key not in listed or listed[key].engine != known.engine:
                del self._known[key]
                yield EndpointRemoved(key)
        for key, endpoint in listed.items():
            if self._known.get(key) != endpoint:
                self._known[key] = endpoint
                yield EndpointUpserted(endpoint)


class EndpointEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One model server."""

    name: Name
    """With the namespace its identity."""
    address: Address
    """Its IP address: Envoy resolves no names of destinations."""
    port: Port | str
    """Its port; llm-d-router writes it as text."""
    namespace: Name = "default"
    """Its namespace."""
    labels: dict[str, str] = {}
    """Its labels, as those of a pod."""
    data_parallel_rank: Rank | None = None
    """The entry is the engine of this rank alone; None: it is not one of several."""
    data_parallel_size: Ranks | None = None
    """The entry is as many endpoints, `<name>-rank-0` and on, one for each engine behind the port.
    """
    metrics_host: HostPort | None = None
    """Where its metrics page is; None: at its address and port."""
    app_protocol: Literal["", "http", "https", "kubernetes.io/h2c"] = ""
    """What it speaks, as Kubernetes says it: its metrics page is read so, too."""


class EndpointsDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The root of the file."""

    endpoints: list[Any]
    """Each is an `EndpointEntry`."""


def parse_endpoints(text: bytes) -> tuple[Endpoint, ...]:
    """Parse YAML `{endpoints: [{name, namespace, address, port, labels, ...}]}`.

    Defaults: the namespace "default", no labels, and a whole server. Raises `ConfigError` with
    the place (for example `endpoints[2].port`) for malformed YAML, for unknown, missing or
    ill-typed fields, labels of ours that are not numbers, an address that is not an IP address,
    names or `address:port` pairs that repeat, unless the latter are of different ranks, and for
    more than 16,384 endpoints.
    """
    return finish(endpoints_steps(text))


def endpoints_steps(
    text: bytes, resolve: Resolve | None = None
) -> Generator[None, None, tuple[Endpoint, ...]]:
    """Parse as `parse_endpoints` does, with a pause about each millisecond.

    With `resolve` the entries are clusters, whose addresses may be host names; those without an
    IP address are left out.
    """
    loaded = yield from yaml_steps(text)
    if loaded is None:
        raise ConfigError("the file is empty; for no endpoints write `endpoints: []`")
    if isinstance(loaded, dict) and "plugins" in loaded:
        raise ConfigError("a configuration is not a file of `endpoints`; --config-file names one")
    entries = convert(_without_nulls(loaded, endpoints=[]), EndpointsDocument).endpoints
    del loaded
    listed: list[tuple[int, Endpoint]] = []
    for position, entry in enumerate(entries):
        entries[position] = None  # to free all at the end would take a long moment
        for endpoint in _endpoints(_entry(entry, position), f"endpoints[{position}]", resolve):
            listed.append((position, endpoint))
            if len(listed) > _MAX_ENDPOINTS:
                problem = f"more than {_MAX_ENDPOINTS} endpoints in all"
                raise ConfigError(problem, f"endpoints[{position}]")
            if len(listed) % _STEP_ENDPOINTS == 0:
                yield
    _refuse_repeats([(position, endpoint.id) for position, endpoint in listed], "name")
    yield
    _refuse_shared_targets(listed)
    return tuple(endpoint for _, endpoint in listed)


def _without_nulls(value: object, **defaults: object) -> object:
    """Return a mapping without the fields that are null, or the default that is given for those.

    Go, and so llm-d-router, treats null as absent, and an empty text as no namespace.
    """
    if not isinstance(value, dict):
        return value
    kept = {key: each for key, each in value.items() if each is not None}
    return kept | {
        key: default for key, default in defaults.items() if value.get(key, default) in (None, "")
    }


def _entry(entry: object, position: int) -> EndpointEntry:
    try:
        return convert(_without_nulls(entry, namespace="default"), EndpointEntry)
    except ConfigError as error:
        place = f"endpoints[{position}]" + (f".{error.place}" if error.place else "")
        raise ConfigError(error.problem, place) from error


def _endpoints(entry: EndpointEntry, place: str, resolve: Resolve | None) -> Iterator[Endpoint]:
    """Yield the endpoints of an entry: one, or one for each of its engines; none without IP."""
    for label in (RANK_LABEL, OFFLOAD_LABEL):
        if label in entry.labels and not is_number(entry.labels[label]):
            raise ConfigError(f"the label {label} is not a number", f"{place}.labels")
    size, rank = entry.data_parallel_size, entry.data_parallel_rank
    port = _port(entry.port, f"{place}.port")
    address = _address(entry.address, port, f"{place}.address", resolve)
    if not address:
        return
    named = [(entry.name, rank)]
    metrics_host = _valid(entry.metrics_host or "", f"{place}.metricsHost")
    if size is None:
        if resolve is not None and not metrics_host:
            metrics_host = _metrics_host(entry, port, f"{place}.labels")
    elif rank is not None or RANK_LABEL in entry.labels:
        problem = "an entry with a rank cannot stand for several"
        raise ConfigError(problem, f"{place}.dataParallelSize")
    else:
        named = [(f"{entry.name}-rank-{each}", each) for each in range(size)]
    for name, rank in named:
        yield Endpoint(
            namespace=entry.namespace,
            name=name,
            address=address,
            port=port,
            labels=entry.labels,
            rank=rank,
            metrics_host=metrics_host,
            app_protocol=entry.app_protocol,
        )


def _port(value: int | str, place: str) -> int:
    port = value if isinstance(value, int) else int(value) if is_number(value) else 0
    if not 1 <= port <= LAST_PORT:
        raise ConfigError(f"{value!r} is not a port, 1 to {LAST_PORT}", place)
    return port


def _valid(metrics_host: str, place: str) -> str:
    """Return a `host:port`, or none, if a URL may have it."""
    host, _, port = metrics_host.rpartition(":")
    if metrics_host:
        _port(port, place)
    if host.startswith("[") and canonical_ip(host[1:-1]) is None:
        raise ConfigError(f"{host!r} is not an IP address", place)
    return metrics_host


def _metrics_host(entry: EndpointEntry, port: int, place: str) -> str:
    """Return where a cluster's metrics are, by its labels; at its own name, which TLS verifies."""
    host = entry.labels.get(METRICS_ADDRESS, "") or entry.address
    text = entry.labels.get(METRICS_PORT, "") if entry.labels.get(METRICS_ADDRESS) else ""
    if canonical_ip(host) is None and not _HOST_NAME.fullmatch(host):
        raise ConfigError(f"{host!r} is neither an IP address nor a host name", place)
    return target_of(host, _port(text or port, place))


def _refuse_shared_targets(listed: Sequence[tuple[int, Endpoint]]) -> None:
    """Raise if endpoints share a target, unless they are different ranks of it."""
    whole = {endpoint.target for _, endpoint in listed if endpoint.rank is None}
    _refuse_repeats([(at, each.target) for at, each in listed if each.target in whole], "address")
    ranks = [
        (at, f"rank {each.rank} of {each.target}") for at, each in listed if each.rank is not None
    ]
    _refuse_repeats(ranks, "address")


def _address(text: str, port: int, place: str, resolve: Resolve | None) -> str:
    """Return an IP address in its canonical form; "" for a host name that has none."""
    if (ip := canonical_ip(text)) is not None:
        return ip
    if resolve is None:
        problem = f"{text!r} is not an IP address, and host names are not resolved"
        raise ConfigError(problem, place)
    if not _HOST_NAME.fullmatch(text):
        raise ConfigError(f"{text!r} is neither an IP address nor a host name", place)
    return resolve(text, port)


def _refuse_repeats(values: Sequence[tuple[int, Hashable]], field: str) -> None:
    """Raise for a value that two entries, given by their positions, have in common."""
    seen: dict[Hashable, int] = {}
    for position, value in values:
        if value in seen:
            problem = f"{value} is already the {field} of endpoints[{seen[value]}]"
            raise ConfigError(problem, f"endpoints[{position}].{field}")
        seen[value] = position
