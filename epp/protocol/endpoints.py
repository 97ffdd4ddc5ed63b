"""The endpoints file as data: a list of model servers for pickers without Kubernetes."""

import ipaddress
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Annotated, Any

import msgspec
import yaml

from epp.errors import ConfigError
from epp.model.endpoint import Endpoint

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


_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_DEPTH = 16
_PLACE = re.compile(r"(?P<problem>.*) - at `\$\.?(?P<place>.*?)`$", re.DOTALL)


def parse_endpoints(text: bytes) -> tuple[Endpoint, ...]:
    """Read YAML `{endpoints: [{name, namespace, address, port, labels}]}`.

    `namespace` is "default" and `labels` are empty where not given. Raises `ConfigError` with
    the place (for example `endpoints[2].port`) for what is no YAML, for unknown, missing or
    ill-typed fields, an address that is no IP, and names or `address:port` pairs that repeat.
    """
    document = _convert(_load(text))
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


def _load(text: bytes) -> object:
    try:
        _refuse_depth(text)
        return yaml.load(text, Loader=_LOADER)  # noqa: S506 - the safe one, in C where it is built
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or str(error)
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"not valid YAML: {problem}", place) from error
    except ValueError as error:
        raise ConfigError(f"not valid YAML: {error}") from error


def _refuse_depth(text: bytes) -> None:
    """Keep deep nesting from libyaml's composer, which recurses without limit and crashes."""
    depth = 0
    events: Iterable[Any] = yaml.parse(text, Loader=_LOADER)
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            problem = "nested too deeply"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def _convert(document: object) -> EndpointsDocument:
    if document is None:
        raise ConfigError("the file is empty; a list of none is written `endpoints: []`")
    try:
        return msgspec.convert(document, EndpointsDocument)
    except msgspec.ValidationError as error:
        found = _PLACE.match(str(error))
        problem, place = found.group("problem", "place") if found else (str(error), "")
        raise ConfigError(problem, place) from error


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
