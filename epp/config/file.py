"""The configuration file as types: the incumbent's `EndpointPickerConfig`, read strictly.

Both API groups are read (`llm-d.ai/v1alpha1`, `inference.networking.x-k8s.io/v1alpha1`). An
unknown field, plug-in, parameter or reference is an error that names the place. Sections for
features that do not exist here are errors too, unless they ask for what happens anyway.
"""

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

import msgspec

from epp.config.producers import Knowledge, knowledge
from epp.config.registry import BuiltIn, FileDiscoveryConfig, build, instantiate, near, users_class
from epp.errors import ConfigError
from epp.policy.conformance import ServedVerifier
from epp.policy.pickers import MaxScorePicker
from epp.policy.plugins import Filter, Picker, Plugin, Scorer
from epp.policy.profile import Profile, WeightedScorer
from epp.protocol.yaml import convert, load_yaml

API_VERSIONS = ("llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")
KIND = "EndpointPickerConfig"

_HARMLESS_GATES = {"haPopulateNonLeaderDatastore"}


class PluginSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A plug-in instance. `name` defaults to the type."""

    type: str
    name: str = ""
    parameters: dict[str, Any] = {}


class PluginRef(msgspec.Struct, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """A plug-in in a profile; `weight` is for scorers."""

    plugin_ref: str
    weight: float | None = None


class ProfileSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A scheduling profile."""

    name: str
    plugins: list[PluginRef] = []


class Extractor(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """An extractor of a data source."""

    plugin_ref: str


class Source(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """A data source."""

    plugin_ref: str
    extractors: list[Extractor] = []


class DataLayer(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Where data of endpoints, and the endpoints themselves, come from."""

    inject_defaults: bool = True
    sources: list[Source] = []
    discovery: Extractor | None = None


class RequestHandler(msgspec.Struct, forbid_unknown_fields=True):
    """Which parsers read requests."""

    parsers: list[Extractor] = []


class EndpointPickerConfig(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The file."""

    api_version: str = API_VERSIONS[0]
    kind: str = KIND
    feature_gates: list[str] = []
    plugins: list[PluginSpec] = []
    scheduling_profiles: list[ProfileSpec] = []
    request_handler: RequestHandler | None = None
    data_layer: DataLayer | None = None


class Settings(Knowledge, frozen=True, kw_only=True):
    """What a configuration comes to: a profile, and the endpoints file where it names one.

    `effective` is the configuration with everything in it that was left out. `tell_served`:
    responses say who served them.
    """

    profile: Profile
    endpoints_file: str
    tell_served: bool
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
    """Read a configuration. Raises `ConfigError`."""
    config = _decode(text)
    if config.kind != KIND:
        raise ConfigError(f"`{config.kind}` is not `{KIND}`", "kind")
    if config.api_version not in API_VERSIONS:
        raise ConfigError(
            f"`{config.api_version}` is none of {', '.join(API_VERSIONS)}", "apiVersion"
        )
    _check_gates(config.feature_gates)
    instances = _instances(config.plugins)
    profile = _profile(config, instances)
    _check_references(config, instances)
    return Settings(
        profile=profile,
        endpoints_file=_endpoints_file(config, instances),
        tell_served=any(isinstance(each, ServedVerifier) for each in instances.values()),
        effective=config,
        **msgspec.structs.asdict(knowledge(instances.values())),
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
    *(DataLayer, Source, RequestHandler),
)
_FIELDS = {field.encode_name for each in _STRUCTS for field in msgspec.structs.fields(each)}
_ELSEWHERE = {"flowControl", "peerDiscovery", "saturationDetector"}
"""Sections of the incumbent's for features that do not exist here."""


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
    """Build the one profile; left out, it has every plug-in of the file."""
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


def _default_picker(
    config: EndpointPickerConfig, spec: ProfileSpec, instances: dict[str, Any]
) -> Picker:
    """Give a profile without a picker the first that there is, else the incumbent's default.

    The effective file says so.
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
    """Write a configuration as YAML."""
    fields = msgspec.to_builtins(config)
    said = {name: value for name, value in fields.items() if value not in (None, [])}
    return msgspec.yaml.encode(said).decode()
