"""The configuration file's fields: llm-d-router's `EndpointPickerConfig`, read strictly.

The fields are those of `llm-d.ai/v1`. Files of `llm-d.ai/v1alpha1`, and of the older
`inference.networking.x-k8s.io/v1alpha1`, are converted: their deprecated fields move to where v1
has them. If a file has both, the one of v1 counts, as in llm-d-router.
"""

import math
import re
from collections.abc import Iterable, Iterator
from functools import cache
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args

import msgspec

from epp.config.flow_control import FlowControlSection
from epp.errors import ConfigError
from epp.policy.effects import without_effect
from epp.policy.filters.detectors import UtilizationDetector
from epp.protocol.conversion import convert, fields_at, structs_in
from epp.protocol.yaml import load_yaml
from epp.quantities import seconds

API_VERSION = "llm-d.ai/v1"
OLD_API_VERSIONS = ("llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")
KIND = "EndpointPickerConfig"
_EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+")
"""A number with an exponent, as Go's YAML has it."""

_BY_NAME = without_effect("`--replicas` names the other replicas")
_AT_ONCE = without_effect("replicas share what they see within milliseconds")
_NO_WAIT = without_effect("nothing waits for the server")
_SMALLEST, _LARGEST = 1e-9, 1e15
"""Bounds of a number that is not 0, so that computations with several of them stay finite."""
_LONGEST_WORD = 64
"""The longest word, in characters, for which similar ones are suggested."""


class PluginSpec(msgspec.Struct, forbid_unknown_fields=True):
    """An instance of a plug-in. `name` defaults to the type."""

    type: str
    name: str = ""
    parameters: dict[str, Any] | None = None


class PluginRef(msgspec.Struct, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """A plug-in of a profile by its name; `weight` is a scorer's, 1 by default."""

    plugin_ref: str
    weight: float | None = None


class ProfileSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A scheduling profile."""

    name: str
    plugins: list[PluginRef] = []


class Reference(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """A plug-in by its name: an extractor, a parser or a discovery."""

    plugin_ref: str


class DataSource(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """A source of data about endpoints, and the extractors of its attributes."""

    plugin_ref: str
    extractors: list[Reference] = []


class DiscoveryRefs(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The sources of endpoints, and of other replicas."""

    endpoints: Reference | None = None
    peers: Annotated[Reference | None, _BY_NAME] = None


class CrossReplica(msgspec.Struct, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """How replicas share their state; durations are Go's."""

    syncer_plugin_ref: str = ""
    sync_interval: Annotated[str, _AT_ONCE] = "200ms"
    publish_timeout: Annotated[str, _NO_WAIT] = "1s"

    def __post_init__(self) -> None:
        seconds(self.sync_interval)
        seconds(self.publish_timeout)


class DataLayer(msgspec.Struct, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """The sources of endpoints and of data about them."""

    inject_defaults: bool = True
    sources: list[DataSource] = []
    discovery: DiscoveryRefs | None = None
    cross_replica: CrossReplica | None = None


class RequestHandler(
    msgspec.Struct, forbid_unknown_fields=True, rename="camel", omit_defaults=True
):
    """The parsers of requests; `propagate_priority` writes the priority into their bodies."""

    parsers: list[Reference] = []
    propagate_priority: bool = False


class EndpointPickerConfig(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The file."""

    api_version: str = API_VERSION
    kind: str = KIND
    feature_gates: list[str] = []
    plugins: list[PluginSpec] = []
    scheduling_profiles: list[ProfileSpec] = []
    request_handler: RequestHandler | None = None
    data_layer: DataLayer | None = None
    flow_control: FlowControlSection | None = None


Path = tuple[str, ...]
_MOVED: tuple[tuple[Path, Path], ...] = (
    (("data",), ("dataLayer",)),
    (("parser",), ("requestHandler", "parsers")),
    (("requestHandler", "parser"), ("requestHandler", "parsers")),
    (("saturationDetector",), ("flowControl", "saturationDetector")),
    (("dataLayer", "discovery", "pluginRef"), ("dataLayer", "discovery", "endpoints", "pluginRef")),
    (("dataLayer", "peerDiscovery"), ("dataLayer", "discovery", "peers")),
    (
        ("dataLayer", "crossReplicaSyncerPluginRef"),
        ("dataLayer", "crossReplica", "syncerPluginRef"),
    ),
    (("dataLayer", "crossReplicaSyncInterval"), ("dataLayer", "crossReplica", "syncInterval")),
    (("dataLayer", "crossReplicaPublishTimeout"), ("dataLayer", "crossReplica", "publishTimeout")),
)
"""Fields of v1alpha1, and where v1 has them; `data` is GIE's, up to 1.4."""
_DETECTOR = "utilization-detector"


def decode(text: str) -> tuple[EndpointPickerConfig, tuple[str, ...]]:
    """Read a configuration from YAML or JSON; return it with a warning for each deprecated field.

    Raises `ConfigError`.
    """
    document = load_yaml(text.encode(errors="surrogateescape"))
    if document is None:
        raise ConfigError("the configuration is empty")
    warnings: tuple[str, ...] = ()
    document = as_go_reads(document, EndpointPickerConfig)
    if isinstance(document, dict):
        _check_version(document)
        if document.get("apiVersion") != API_VERSION:
            warnings = _modernize(document)
            document = as_go_reads(document, EndpointPickerConfig)
    check_numbers(document, "")
    try:
        return convert(document, EndpointPickerConfig), warnings
    except ConfigError as error:
        unknown = re.match(r"unknown field `([^`]*)`", error.problem)
        if unknown is None:
            raise
        word = unknown[1]
        hint = near(word, fields_at(EndpointPickerConfig, error.place))
        problem = f"unknown field `{word}`{hint}" if hint else error.problem
        if (error.place, word) == ("", "endpoints"):
            problem = "a file of `endpoints` is not a configuration; --endpoints-file names one"
        old = (*filter(None, error.place.split(".")), word)
        later = ".".join(dict(_MOVED).get(old, ()))
        if later:
            problem = f"`{word}` is a field of v1alpha1; {API_VERSION} has `{later}`"
        raise ConfigError(problem, error.place) from None


def as_go_reads(value: object, kind: object) -> object:
    """Return a value for a type as Go reads it: null is absent, `1e6` and `5.0` are whole numbers.

    A null stays if its field accepts it, in a mapping that is not a struct, and under unknown keys.
    """
    struct = next(structs_in((kind,)), None)
    if struct is None:
        return value
    if isinstance(value, list):
        return [as_go_reads(each, struct) for each in value]
    if not isinstance(value, dict):
        return value
    known = _within(struct)
    return {
        key: _field_as_go_reads(each, known[key]) if key in known else each
        for key, each in value.items()
        if each is not None or key not in known or known[key].nullable
    }


class _Field(NamedTuple):
    struct: type[msgspec.Struct] | None
    """The struct within it."""
    nullable: bool
    """Whether it may be null."""
    number: bool
    """Whether it is a number, and never text."""
    whole: bool
    """Whether it is a whole number."""


def _field_as_go_reads(value: object, field: _Field) -> object:
    # YAML 1.1, and so PyYAML, takes an exponent only after a point and with a sign.
    if field.number and isinstance(value, str) and _EXPONENT.fullmatch(value):
        value = number if math.isfinite(number := float(value)) else value
    if field.whole and isinstance(value, float) and value.is_integer():
        return int(value)
    return as_go_reads(value, field.struct)


@cache
def _within(struct: type[msgspec.Struct]) -> dict[str, _Field]:
    """Return the fields of a struct by their names in a document."""
    return {
        field.encode_name: _Field(
            next(structs_in((field.type,)), None),
            NoneType in get_args(field.type),
            bool({int, float} & (parts := set(_parts(field.type)))) and str not in parts,
            int in parts and not {float, str} & parts,
        )
        for field in msgspec.structs.fields(struct)
    }


def _parts(kind: object) -> Iterator[object]:
    """Yield a type and the types in it."""
    yield kind
    for each in get_args(kind):
        yield from _parts(each)


def check_numbers(value: object, place: str) -> None:
    """Raise `ConfigError` for a number that is not finite, or that is out of range."""
    if isinstance(value, dict):
        for key, each in value.items():
            check_numbers(each, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for position, each in enumerate(value):
            check_numbers(each, f"{place}[{position}]")
    elif isinstance(value, int | float) and value and not _SMALLEST <= abs(value) <= _LARGEST:
        raise ConfigError(
            f"{value} is out of range; write 0, or {_SMALLEST:g} to {_LARGEST:g} with either sign",
            place,
        )


def _check_version(document: dict[str, Any]) -> None:
    kind, version = document.get("kind", KIND), document.get("apiVersion", API_VERSION)
    if kind != KIND:
        raise ConfigError(f"`{kind}` is not `{KIND}`", "kind")
    known = (API_VERSION, *OLD_API_VERSIONS)
    if version not in known:
        raise ConfigError(f"`{version}` is not one of {', '.join(known)}", "apiVersion")


def _modernize(document: dict[str, Any]) -> tuple[str, ...]:
    """Move the fields of v1alpha1 to where v1 has them; return a warning for each."""
    warnings = []
    if document.get("apiVersion") == OLD_API_VERSIONS[1]:
        warnings.append(f"apiVersion: `{OLD_API_VERSIONS[1]}` is deprecated: write {API_VERSION}")
    document["apiVersion"] = API_VERSION
    for old, new in _MOVED:
        value = _take(document, old)
        if value is None:
            continue
        warnings.append(f"{'.'.join(old)} is deprecated: write {'.'.join(new)}")
        if old[-1] == "parser":
            value = [value]
        _put(document, new, value)
    section = document.get("flowControl")
    if isinstance(section, dict) and "saturationDetector" in section:
        section["saturationDetector"] = _with_its_plugin(document, section["saturationDetector"])
    return tuple(warnings)


def _take(document: dict[str, Any], path: Path) -> object:
    """Remove and return the value at a path; None if there is none."""
    holder: Any = document
    for key in path[:-1]:
        holder = holder.get(key)
        if not isinstance(holder, dict):
            return None
    return holder.pop(path[-1], None)


def _put(document: dict[str, Any], path: Path, value: object) -> None:
    """Set the value at a path, unless there is one."""
    holder: Any = document
    for key in path[:-1]:
        if not isinstance(holder.get(key), dict):
            holder[key] = {}
        holder = holder[key]
    holder.setdefault(path[-1], value)


def _with_its_plugin(document: dict[str, Any], value: object) -> object:
    """Return a reference for a detector that is written out, as GIE's first configurations did.

    Raises `ConfigError` for parameters that it does not take.
    """
    if not isinstance(value, dict) or "pluginRef" in value or not value:
        return value
    try:
        convert(as_go_reads(value, UtilizationDetector), UtilizationDetector)
    except ConfigError as error:
        place = "flowControl.saturationDetector"
        raise ConfigError(error.problem, f"{place}.{error.place}".rstrip(".")) from None
    plugins = document.setdefault("plugins", [])
    if isinstance(plugins, list):
        plugins.append({"type": _DETECTOR, "parameters": value})
    return {"pluginRef": _DETECTOR}


def near(word: str, known: Iterable[str]) -> str:
    """Return `: did you mean ...?` with the known words that resemble a wrong one, or nothing."""
    if len(word) > _LONGEST_WORD:
        return ""
    from difflib import get_close_matches  # noqa: PLC0415 (only an error needs it)

    matches = get_close_matches(word, list(known), n=3, cutoff=0.6)
    return f": did you mean {' or '.join(f'`{match}`' for match in matches)}?" if matches else ""


def dump(config: EndpointPickerConfig) -> str:
    """Write a configuration as YAML, without sections that are empty."""
    fields = msgspec.to_builtins(config)
    present = {name: value for name, value in fields.items() if value not in (None, [], {})}
    return msgspec.yaml.encode(present).decode()
