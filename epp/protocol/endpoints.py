"""The endpoints file: a list of model servers, for pickers without Kubernetes."""

import ipaddress
from collections.abc import Hashable, Iterator, Sequence
from typing import Annotated

import msgspec

from epp.errors import ConfigError
from epp.model.endpoint import OFFLOAD_LABEL, RANK_LABEL, Endpoint
from epp.protocol.yaml import convert, load_yaml

Name = Annotated[str, msgspec.Meta(pattern=r"^[^/\s]+$", description="no slash, no space")]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Rank = Annotated[int, msgspec.Meta(ge=0, lt=4096)]
Ranks = Annotated[int, msgspec.Meta(ge=1, le=4096)]


class EndpointEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One model server. `address` is an IP address, as Envoy resolves no names of destinations.

    With `dataParallelRank` the entry is the engine of that rank alone. With `dataParallelSize` it
    is as many endpoints, `<name>-rank-0` and on, one for each engine behind the port.
    """

    name: Name
    address: str
    port: Port
    namespace: Name = "default"
    labels: dict[str, str] = {}
    data_parallel_rank: Rank | None = None
    data_parallel_size: Ranks | None = None


class EndpointsDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The root of the file."""

    endpoints: list[EndpointEntry]


def parse_endpoints(text: bytes) -> tuple[Endpoint, ...]:
    """Parse YAML `{endpoints: [{name, namespace, address, port, labels, dataParallel...}]}`.

    Defaults: the namespace "default", no labels, and a whole server. Raises `ConfigError` with
    the place (for example `endpoints[2].port`) for malformed YAML, for unknown, missing or
    ill-typed fields, labels of ours that are no numbers, an address that is no IP address, and
    names or `address:port` pairs that repeat, unless the latter are of different ranks.
    """
    loaded = load_yaml(text)
    if loaded is None:
        raise ConfigError("the file is empty; a list of none is written `endpoints: []`")
    document = convert(loaded, EndpointsDocument)
    listed = [
        (position, endpoint)
        for position, entry in enumerate(document.endpoints)
        for endpoint in _endpoints(entry, f"endpoints[{position}]")
    ]
    _refuse_repeats([(position, endpoint.id) for position, endpoint in listed], "name")
    _refuse_shared_targets(listed)
    return tuple(endpoint for _, endpoint in listed)


def _endpoints(entry: EndpointEntry, place: str) -> Iterator[Endpoint]:
    """Yield the endpoints of an entry: one, or one for each of its engines."""
    for label in (RANK_LABEL, OFFLOAD_LABEL):
        if label in entry.labels and not entry.labels[label].isdecimal():
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
