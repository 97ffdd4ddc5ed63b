"""The configuration file as types: the incumbent's `EndpointPickerConfig`, read strictly.

Both API groups are read (`llm-d.ai/v1alpha1`, `inference.networking.x-k8s.io/v1alpha1`). An
unknown field, plug-in, parameter or reference is an error that names its path in the file, such
as `plugins[2].type`. So is a section for a feature that does not exist here, unless what it asks
for happens anyway, and a scorer whose scores the picker ignores.
"""

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

import msgspec

from epp.config.producers import ProducerSettings, producer_settings
from epp.config.registry import (
    PLUGINS,
    BuiltIn,
    FileDiscoveryConfig,
    build,
    instantiate,
    near,
    users_class,
)
from epp.errors import ConfigError
from epp.policy.conformance import ServedVerifier
from epp.policy.pickers import LeastTtftPicker, MaxScorePicker, RandomPicker
from epp.policy.plugins import Filter, Picker, Plugin, Scorer, uses_totals
from epp.policy.profile import Profile, WeightedScorer
from epp.protocol.yaml import convert, load_yaml

API_VERSIONS = ("llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")
KIND = "EndpointPickerConfig"

_HARMLESS_GATES = {"haPopulateNonLeaderDatastore"}
_TYPES = {kind: name for name, kind in PLUGINS.items()}


class PluginSpec(msgspec.Struct, forbid_unknown_fields=True):
    """An instance of a plug-in. `name` defaults to the type."""

    type: str
    name: str = ""
    parameters: dict[str, Any] = {}


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
    """A source of data about endpoints, and what extracts attributes from it."""

    plugin_ref: str
    extractors: list[Reference] = []


class DataLayer(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The sources of endpoints and of data about them."""

    inject_defaults: bool = True
    sources: list[DataSource] = []
    discovery: Reference | None = None


class RequestHandler(msgspec.Struct, forbid_unknown_fields=True):
    """The parsers of requests."""

    parsers: list[Reference] = []


class EndpointPickerConfig(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The file."""

    api_version: str = API_VERSIONS[0]
    kind: str = KIND
    feature_gates: list[str] = []
    plugins: list[PluginSpec] = []
    scheduling_profiles: list[ProfileSpec] = []
    request_handler: RequestHandler | None = None
    data_layer: DataLayer | None = None


class Settings(ProducerSettings, frozen=True, kw_only=True):
    """A configuration as the picker uses it.

    `endpoints_file` is the path that a `file-discovery` plug-in names, empty without one.
    `report_served`: response headers say which endpoint served (for the conformance suite).
    `effective` is the configuration with every default written out.
    """

    profile: Profile
    endpoints_file: str
    report_served: bool
    effective: EndpointPickerConfig


POLICIES: Mapping[str, str] = {
    "least-ttft": "plugins: [{type: least-ttft-picker}]",
    "round-robin": "plugins: [{type: round-robin-picker}]",
    "random": "plugins: [{type: random-picker}]",
    "least-request": "plugins: [{type: least-request-picker}]",
    "linear": """
plugins:
- {type: queue-scorer}
- {type: kv-cache-utilization-scorer}
- {type: prefix-cache-scorer}
- {type: max-score-picker}
- {type: single-profile-handler}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: max-score-picker}
""",
}
"""Policies by name, as configurations; `linear` is the incumbent's default."""

DEFAULT_POLICY = "least-ttft"


def load(text: str) -> Settings:
    """Read a configuration from YAML or JSON. Raises `ConfigError`."""
    config = _decode(text)
    if config.kind != KIND:
        raise ConfigError(f"`{config.kind}` is not `{KIND}`", "kind")
    if config.api_version not in API_VERSIONS:
        raise ConfigError(
            f"`{config.api_version}` is none of {', '.join(API_VERSIONS)}", "apiVersion"
        )
    _check_gates(config.feature_gates)
    instances = _instances(config.plugins)
    written = bool(config.scheduling_profiles)
    profile = _profile(config, instances)
    _check_references(config, instances)
    producers = producer_settings(instances.values())
    unused = _check_scores_are_used(
        profile, "schedulingProfiles[0].plugins" if written else "plugins"
    )
    return Settings(
        profile=profile,
        endpoints_file=_endpoints_file(config, instances),
        report_served=any(isinstance(each, ServedVerifier) for each in instances.values()),
        effective=config,
        **msgspec.structs.asdict(
            msgspec.structs.replace(producers, warnings=(*producers.warnings, *unused))
        ),
    )


def _decode(text: str) -> EndpointPickerConfig:
    document = load_yaml(text.encode(errors="surrogateescape"))
    if document is None:
        raise ConfigError("the configuration is empty")
    try:
        return convert(document, EndpointPickerConfig)
    except ConfigError as error:
        unknown = re.search(r"unknown field `(.*)`", str(error))
        if unknown is None:
            raise
        word = unknown[1]
        problem = f"unknown field `{word}`{near(word, _FIELDS)}"
        if word in _ELSEWHERE:
            problem = f"`{word}` does not exist in this version of Warmpick"
        raise ConfigError(problem, error.place) from None


_STRUCTS = (
    *(EndpointPickerConfig, PluginSpec, PluginRef, ProfileSpec),
    *(DataLayer, DataSource, RequestHandler),
)
_FIELDS = {field.encode_name for each in _STRUCTS for field in msgspec.structs.fields(each)}
_ELSEWHERE = {"flowControl", "peerDiscovery", "saturationDetector"}
"""The incumbent's sections for features that do not exist here."""


def _check_gates(gates: list[str]) -> None:
    for position, gate in enumerate(gates):
        name, _, value = gate.partition("=")
        if name not in _HARMLESS_GATES and value.lower() != "false":
            raise ConfigError(
                f"feature gate `{name}` does not exist in this version of Warmpick",
                f"featureGates[{position}]",
            )


def _instances(specs: list[PluginSpec]) -> dict[str, Any]:
    instances: dict[str, Any] = {}
    for position, spec in enumerate(specs):
        place = f"plugins[{position}]"
        spec.name = spec.name or spec.type
        if spec.name in instances:
            raise ConfigError(f"a second plug-in is named `{spec.name}`", f"{place}.name")
        instances[spec.name] = instance = _instance(spec, place)
        if not isinstance(instance, BuiltIn):
            spec.parameters = msgspec.to_builtins(instance)
    return instances


def _instance(spec: PluginSpec, place: str) -> Any:  # noqa: ANN401 (any plug-in)
    if added := users_class(spec.type, f"{place}.type"):
        return build(added, spec.parameters, f"{place}.parameters")
    return instantiate(spec.type, spec.parameters, place)


def _profile(config: EndpointPickerConfig, instances: dict[str, Any]) -> Profile:
    """Return the one profile; where the file has none, it consists of every plug-in."""
    if not config.scheduling_profiles:
        usable = [name for name, each in instances.items() if isinstance(each, Plugin)]
        refs = [PluginRef(name) for name in usable]
        config.scheduling_profiles = [ProfileSpec("default", refs)]
    if len(config.scheduling_profiles) > 1:
        raise ConfigError(
            "more than one profile needs a profile handler, of which this version has none",
            "schedulingProfiles[1]",
        )
    spec = config.scheduling_profiles[0]
    place = "schedulingProfiles[0]"
    named = [
        (ref, _refer(ref.plugin_ref, instances, f"{place}.plugins[{position}].pluginRef"))
        for position, ref in enumerate(spec.plugins)
    ]
    pickers = [each for _, each in named if isinstance(each, Picker)]
    if len(pickers) > 1:
        raise ConfigError("a profile has one picker, this one has several", f"{place}.plugins")
    if not pickers:
        pickers = [_default_picker(config, spec, instances)]
    return Profile(
        spec.name,
        tuple(each for _, each in named if isinstance(each, Filter)),
        tuple(
            WeightedScorer(
                ref.plugin_ref, _weight(ref, f"{place}.plugins[{position}].weight"), each
            )
            for position, (ref, each) in enumerate(named)
            if isinstance(each, Scorer)
        ),
        pickers[0],
    )


def _weight(ref: PluginRef, place: str) -> float:
    ref.weight = 1.0 if ref.weight is None else ref.weight
    if not isfinite(ref.weight):
        raise ConfigError(f"{ref.weight} is no weight", place)
    return ref.weight


def _check_scores_are_used(profile: Profile, place: str) -> tuple[str, ...]:
    """Return a warning where a profile's scores have no effect, or raise `ConfigError`.

    `random-picker` beside scorers is only warned of, since the incumbent's files have it.
    """
    if not profile.scorers or uses_totals(profile.picker):
        return ()
    picker = _TYPES.get(type(profile.picker), type(profile.picker).__name__)
    scorers = ", ".join(f"`{each.name}`" for each in profile.scorers)
    problem = f"the scores of {scorers} would have no effect: `{picker}` ignores scores"
    if isinstance(profile.picker, RandomPicker):
        return (f"{place}: {problem}",)
    remedy = "take the scorers out of the profile, or let `max-score-picker` pick"
    if isinstance(profile.picker, LeastTtftPicker):
        remedy += ", with `least-ttft-scorer` beside them"
    raise ConfigError(f"{problem}; {remedy}", place)


def _default_picker(
    config: EndpointPickerConfig, spec: ProfileSpec, instances: dict[str, Any]
) -> Picker:
    """Return the file's first picker, else the incumbent's default, for a profile without one.

    It is written into the effective configuration.
    """
    for name, each in instances.items():
        if isinstance(each, Picker):
            spec.plugins.append(PluginRef(name))
            return each
    kind, picker = "max-score-picker", MaxScorePicker()
    config.plugins.append(PluginSpec(kind, kind, msgspec.to_builtins(picker)))
    spec.plugins.append(PluginRef(kind))
    return picker


def _refer(name: str, instances: dict[str, Any], place: str) -> Any:  # noqa: ANN401 (any plug-in)
    if name not in instances:
        raise ConfigError(f"no plug-in is named `{name}`{near(name, instances)}", place)
    return instances[name]


def _check_references(config: EndpointPickerConfig, instances: dict[str, Any]) -> None:
    layer = config.data_layer or DataLayer()
    for position, source in enumerate(layer.sources):
        place = f"dataLayer.sources[{position}]"
        _refer(source.plugin_ref, instances, f"{place}.pluginRef")
        for index, extractor in enumerate(source.extractors):
            where = f"{place}.extractors[{index}].pluginRef"
            _refer(extractor.plugin_ref, instances, where)
    for position, parser in enumerate((config.request_handler or RequestHandler()).parsers):
        where = f"requestHandler.parsers[{position}].pluginRef"
        _refer(parser.plugin_ref, instances, where)


def _endpoints_file(config: EndpointPickerConfig, instances: dict[str, Any]) -> str:
    if config.data_layer is None or config.data_layer.discovery is None:
        return ""
    place = "dataLayer.discovery.pluginRef"
    found = _refer(config.data_layer.discovery.plugin_ref, instances, place)
    if not isinstance(found, FileDiscoveryConfig):
        raise ConfigError("this plug-in discovers no endpoints; `file-discovery` does", place)
    return found.path


def dump(config: EndpointPickerConfig) -> str:
    """Write a configuration as YAML, without sections that are empty."""
    fields = msgspec.to_builtins(config)
    present = {name: value for name, value in fields.items() if value not in (None, [])}
    return msgspec.yaml.encode(present).decode()
