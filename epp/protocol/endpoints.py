"""The endpoints file as data: a list of model servers for pickers without Kubernetes."""

import ipaddress
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Annotated

import msgspec

from epp.errors import ConfigError
from epp.model.endpoint import Endpoint
from epp.protocol.document import convert, load_yaml

Name = Annotated[str, msgspec.Meta(pattern=r"^[^/\s]+$", description="no slash, no space")]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class EndpointEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model server, addressed by IP: the proxy that is told of it resolves no names."""

    name: Name
    address: str
    port: Port
    namespace: Name = "default"
    labels: dict[str, str] = {}


class EndpointsDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    endpoints: list[EndpointEntry]


def parse_endpoints(text: bytes) -> tuple[Endpoint, ...]:
    """Read YAML `{endpoints: [{name, namespace, address, port, labels}]}`.

    `namespace` is "default" and `labels` are empty where not given. Raises `ConfigError` with
    the place (for example `endpoints[2].port`) for what is no YAML, for unknown, missing or
    ill-typed fields, an address that is no IP, and names or `address:port` pairs that repeat.
    """
    loaded = load_yaml(text)
    if loaded is None:
        raise ConfigError("the file is empty; a list of none is written `endpoints: []`")
    document = convert(loaded, EndpointsDocument)
    endpoints = tuple(
        Endpoint(
            namespace=entry.namespace,
            name=entry.name,
            address=_address(entry.address, f"endpoints[{position}].address"),
            port=entry.port,
            labels=entry.labels,
        )
        for position, entry in enumerate(document.endpoints)
    )
    _refuse_repeats([endpoint.id for endpoint in endpoints], "name")
    _refuse_repeats([endpoint.target for endpoint in endpoints], "address")
    return endpoints


def _address(text: str, place: str) -> str:
    """Bring an IP address to its usual form, in which the proxy reports it back."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError as error:
        problem = f"{text!r} is not an IP address, and host names are not resolved"
        raise ConfigError(problem, place) from error


def _refuse_repeats(values: Sequence[Hashable], field: str) -> None:
    repeated = [value for value, times in Counter(values).items() if times > 1]
    if repeated:
        first, second, *_ = [i for i, value in enumerate(values) if value == repeated[0]]
        problem = f"{repeated[0]} is already the {field} of endpoints[{first}]"
        raise ConfigError(problem, f"endpoints[{second}].{field}")
