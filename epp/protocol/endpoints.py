"""The endpoints file: a list of model servers, for pickers without Kubernetes."""

import ipaddress
from collections.abc import Generator, Hashable, Iterator, Sequence
from typing import Annotated, Any

import msgspec

from epp.errors import ConfigError
from epp.model.endpoint import OFFLOAD_LABEL, RANK_LABEL, Endpoint, is_number
from epp.protocol.yaml import convert, finish, yaml_steps

MAX_BYTES = 1 << 20
"""The longest file that is read: as much as a Kubernetes ConfigMap holds."""
_MAX_ENDPOINTS = 16_384
_STEP_ENDPOINTS = 64
"""Endpoints of a file, and those between two pauses."""

Name = Annotated[
    str, msgspec.Meta(pattern=r"^[^/\s]+$", max_length=253, description="no slash, no space")
]
Address = Annotated[str, msgspec.Meta(max_length=64)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Rank = Annotated[int, msgspec.Meta(ge=0, lt=4096)]
Ranks = Annotated[int, msgspec.Meta(ge=1, le=4096)]


class EndpointEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One model server. `address` is an IP address, as Envoy resolves no names of destinations.

    With `dataParallelRank` the entry is the engine of that rank alone. With `dataParallelSize` it
    is as many endpoints, `<name>-rank-0` and on, one for each engine behind the port.
    """

    name: Name
    address: Address
    port: Port
    namespace: Name = "default"
    labels: dict[str, str] = {}
    data_parallel_rank: Rank | None = None
    data_parallel_size: Ranks | None = None


class EndpointsDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The root of the file."""

    endpoints: list[Any]
    """Each is an `EndpointEntry`."""


def parse_endpoints(text: bytes) -> tuple[Endpoint, ...]:
    """Parse YAML `{endpoints: [{name, namespace, address, port, labels, dataParallel...}]}`.

    Defaults: the namespace "default", no labels, and a whole server. Raises `ConfigError` with
    the place (for example `endpoints[2].port`) for malformed YAML, for unknown, missing or
    ill-typed fields, labels of ours that are no numbers, an address that is no IP address, names
    or `address:port` pairs that repeat, unless the latter are of different ranks, and for more
    than 16,384 endpoints.
    """
    return finish(endpoints_steps(text))


def endpoints_steps(text: bytes) -> Generator[None, None, tuple[Endpoint, ...]]:
    """Parse as `parse_endpoints` does, with a pause about each millisecond."""
    loaded = yield from yaml_steps(text)
    if loaded is None:
        raise ConfigError("the file is empty; a list of none is written `endpoints: []`")
    entries = convert(loaded, EndpointsDocument).endpoints
    del loaded
    listed: list[tuple[int, Endpoint]] = []
    for position, entry in enumerate(entries):
        entries[position] = None  # to free all at the end would take a long moment
        for endpoint in _endpoints(_entry(entry, position), f"endpoints[{position}]"):
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


def _entry(entry: object, position: int) -> EndpointEntry:
    try:
        return convert(entry, EndpointEntry)
    except ConfigError as error:
        place = f"endpoints[{position}]" + (f".{error.place}" if error.place else "")
        raise ConfigError(error.problem, place) from error


def _endpoints(entry: EndpointEntry, place: str) -> Iterator[Endpoint]:
    """Yield the endpoints of an entry: one, or one for each of its engines."""
    for label in (RANK_LABEL, OFFLOAD_LABEL):
        if label in entry.labels and not is_number(entry.labels[label]):
            raise ConfigError(f"the label {label} is no number", f"{place}.labels")
    size, rank = entry.data_parallel_size, entry.data_parallel_rank
    if size is None:
        yield _endpoint(entry, entry.name, rank, place)
        return
    if rank is not None or RANK_LABEL in entry.labels:
        raise ConfigError("an entry for all ranks has none itself", f"{place}.dataParallelSize")
    for each in range(size):
        yield _endpoint(entry, f"{entry.name}-rank-{each}", each, place)


def _endpoint(entry: EndpointEntry, name: str, rank: int | None, place: str) -> Endpoint:
    return Endpoint(
        namespace=entry.namespace,
        name=name,
        address=_address(entry.address, f"{place}.address"),
        port=entry.port,
        labels=entry.labels,
        rank=rank,
    )


def _refuse_shared_targets(listed: Sequence[tuple[int, Endpoint]]) -> None:
    """Raise if endpoints share a target, unless they are different ranks of it."""
    whole = {endpoint.target for _, endpoint in listed if endpoint.rank is None}
    _refuse_repeats([(at, each.target) for at, each in listed if each.target in whole], "address")
    ranks = [
        (at, f"rank {each.rank} of {each.target}") for at, each in listed if each.rank is not None
    ]
    _refuse_repeats(ranks, "address")


def _address(text: str, place: str) -> str:
    """Return an IP address in its canonical form."""
    try:
        # RFC 5952 §4: the form in which Envoy reports the served endpoint back.
        return str(ipaddress.ip_address(text))
    except ValueError as error:
        problem = f"{text!r} is not an IP address, and host names are not resolved"
        raise ConfigError(problem, place) from error


def _refuse_repeats(values: Sequence[tuple[int, Hashable]], field: str) -> None:
    """Raise for a value that two entries, given by their positions, have in common."""
    seen: dict[Hashable, int] = {}
    for position, value in values:
        if value in seen:
            problem = f"{value} is already the {field} of endpoints[{seen[value]}]"
            raise ConfigError(problem, f"endpoints[{position}].{field}")
        seen[value] = position
