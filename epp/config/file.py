"""Turns the configuration file into settings: profiles, producers, sources of endpoints.

An unknown field, plug-in, parameter or reference is an error that names its path in the file, such
as `plugins[2].type`; so is a scorer whose scores the picker ignores. A setting without effect
causes a warning.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from epp.config.catalogue import PLUGINS
from epp.config.data_layer import DataLayerSettings, data_layer
from epp.config.data_sources import FileDiscoveryConfig, RedisSyncer
from epp.config.flow_control import FlowControlSection, flow_settings, saturation_detector
from epp.config.parsers import PARSERS, ParserSettings, parser_settings
from epp.config.plugins import Plugins
from epp.config.prefix_caches import CacheSettings, cache_settings
from epp.config.registry import plugin_code
from epp.config.report import unhonoured_sections
from epp.config.schema import (
    DataLayer,
    EndpointPickerConfig,
    PluginRef,
    ProfileSpec,
    RequestHandler,
    decode,
    near,
)
from epp.errors import ConfigError
from epp.policy.conformance import ServedVerifier
from epp.policy.flow.settings import FlowSettings
from epp.policy.pickers import LeastTtftPicker, RandomPicker
from epp.policy.plugins import (
    Admitter,
    CommitObserver,
    Filter,
    Picker,
    Plugin,
    ProfileHandler,
    RequestHeaderSource,
    RequestProcessor,
    ResponseProcessor,
    SaturationDetector,
    Scorer,
    Screener,
    UnknownProfile,
    UsageReporter,
    uses_totals,
)
from epp.policy.producers.predicted_latency import PredictedLatency
from epp.policy.profile import Profile, Scheduling, SingleProfileHandler, WeightedScorer
from epp.quantities import SWITCHES

if TYPE_CHECKING:  # they are rarely used, and take long to load
    from epp.policy.disaggregation.rollout import Rollout
    from epp.policy.filters.caches import UntilSaturated
    from epp.policy.producers.media_cache import MediaCaches

FLOW_CONTROL_GATE = "flowControl"
GATES = (
    FLOW_CONTROL_GATE,
    *("haPopulateNonLeaderDatastore", "dataLayer", "prepareDataPlugins", "enableLegacyMetrics"),
)
"""Feature gates; all but the first are always on."""
_UNGATED = f"flowControl has no effect: feature gate `{FLOW_CONTROL_GATE}` is off"
_DETECTORS = ("utilization-detector", "concurrency-detector")
_PRECISE = "precise-prefix-cache-producer"
_ROLLOUT = "disaggregatedset-rollout-screener"
_STICKY = "prefix-cache-affinity-filter"
_MEDIA = "mm-embeddings-cache-producer"


class Settings(CacheSettings, frozen=True, kw_only=True):
    """A configuration as the picker uses it, with plug-ins started."""

    scheduling: Scheduling
    """The started plug-ins, by their kinds."""
    flow: FlowSettings
    """When requests wait for the pool, how long, and in which order they go."""
    endpoints_file: str
    """The path that a `file-discovery` plug-in names; empty without one."""
    host_names: bool
    """Whether addresses in that file may be names."""
    redis_syncer: RedisSyncer | None
    """The server that connects replicas, if the file names one."""
    data_layer: DataLayerSettings
    """Which pages of endpoints are polled, and for what."""
    report_served: bool
    """Whether response headers say which endpoint served (for the conformance suite)."""
    parsers: ParserSettings
    """The parsers that read requests."""
    propagate_priority: bool
    """Whether a request's priority is written into its body."""
    plugins: Mapping[str, object]
    """All plug-ins as they were configured, by name."""
    effective: EndpointPickerConfig
    """The configuration with every default written out."""

    @property
    def predicted_latency(self) -> tuple[str, PredictedLatency] | None:
        """The `predicted-latency-producer` with its name; None without one."""
        for name, (_, plugin) in self.scheduling.plugins.items():
            if isinstance(plugin, PredictedLatency):
                return name, plugin
        return None

    @property
    def rollouts(self) -> "Mapping[str, Rollout]":
        """The screeners of rollouts, by their names."""
        return self._of_type(_ROLLOUT)

    @property
    def media_caches(self) -> "Mapping[str, MediaCaches]":
        """The plug-ins that remember which media endpoints have encoded, by their names."""
        return self._of_type(_MEDIA)

    @property
    def affinity_filters(self) -> "Mapping[str, UntilSaturated]":
        """The filters that are sticky until saturated, by their names."""
        return self._of_type(_STICKY)

    def _of_type(self, kind: str) -> Mapping[str, Any]:
        plugins = self.scheduling.plugins.items()
        return {name: each for name, (its, each) in plugins if its == kind}

    @property
    def profile_handler(self) -> tuple[str, str]:
        """The name and the type of the profile handler; empty if it is not in the file."""
        kind, name = self.scheduling.plugin_names.get(id(self.scheduling.handler), ("", ""))
        return name, kind

    @property
    def precise_producer(self) -> str:
        """The name of the `precise-prefix-cache-producer`; empty without one."""
        return next((each.name for each in self.effective.plugins if each.type == _PRECISE), "")

    @property
    def profile(self) -> Profile:
        """The first profile."""
        return self.scheduling.profile


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
"""Policies by name, as configurations; `linear` is llm-d-router's default."""

DEFAULT_POLICY = "least-ttft"


def load(text: str, below: Callable[[int], int] | None = None) -> Settings:
    """Read a configuration from YAML or JSON, and start its plug-ins. Raises `ConfigError`.

    `below(n)` returns a random number in 0..n-1 to plug-ins that need one; by default it is seeded
    by the system.
    """
    config, deprecated = decode(text)
    gated = _flow_control_is_on(config)
    plugins = Plugins(config.plugins, below)
    written = range(len(config.scheduling_profiles))
    profiles = _profiles(config, plugins)
    handler, unrun = _handler(plugins, profiles)
    places = [f"schedulingProfiles[{position}].plugins" for position in written] or ["plugins"]
    unused = [
        line
        for each, place in zip(profiles.values(), places, strict=True)
        for line in _check_scores_are_used(each, place)
    ]
    layer = config.data_layer or DataLayer()
    sources = data_layer(layer, plugins)
    section = config.flow_control or FlowControlSection()
    refer = partial(plugins.refer, known=PLUGINS)
    detector = saturation_detector(section, partial(plugins.refer, known=_DETECTORS))
    flow = flow_settings(section, detector, refer, on=gated)
    request_handler = config.request_handler or RequestHandler()
    refer_parser = partial(plugins.refer, known=PARSERS)
    parsers = parser_settings(request_handler.parsers, refer_parser, plugins.structs)
    discovery = _discovery(layer, plugins)
    caches = cache_settings(plugins.structs.values())
    noted = (*plugins.warnings, *unhonoured_sections(config), *caches.warnings)
    read = (*sources.warnings, *parsers.warnings)
    idle = () if gated or section.detects_only else (_UNGATED,)
    warnings = (*deprecated, *idle, *noted, *read, *unused, *unrun)
    return Settings(
        scheduling=_scheduling(profiles, handler, None if gated else detector, plugins),
        flow=flow,
        endpoints_file=discovery.path if discovery else "",
        host_names=discovery is not None and discovery.host_names,
        redis_syncer=_syncer(layer, plugins),
        data_layer=sources,
        report_served=bool(plugins.having(ServedVerifier)),
        parsers=parsers,
        propagate_priority=request_handler.propagate_priority,
        plugins=plugins.structs,
        effective=config,
        **msgspec.structs.asdict(msgspec.structs.replace(caches, warnings=warnings)),
    )


def _flow_control_is_on(config: EndpointPickerConfig) -> bool:
    """Return whether that gate is on. Raises `ConfigError` for an unknown gate or value."""
    on = False
    for position, gate in enumerate(config.feature_gates):
        place = f"featureGates[{position}]"
        name, sign, value = gate.partition("=")
        if name not in GATES:
            raise ConfigError(f"no feature gate is named `{name}`{near(name, GATES)}", place)
        if sign and value.strip().lower() not in SWITCHES:
            raise ConfigError(f"`{value}` is neither true nor false", place)
        if name == FLOW_CONTROL_GATE:
            on = SWITCHES[value.strip().lower()] if sign else True
    return on


# Scheduling.


def _profiles(config: EndpointPickerConfig, plugins: Plugins) -> dict[str, Profile]:
    """Return the profiles by name; if the file has none, one that consists of every plug-in."""
    if not config.scheduling_profiles:
        refs = [PluginRef(name) for name, each in plugins.items() if isinstance(each, Plugin)]
        config.scheduling_profiles = [ProfileSpec("default", refs)]
    profiles: dict[str, Profile] = {}
    for position, spec in enumerate(config.scheduling_profiles):
        place = f"schedulingProfiles[{position}]"
        if spec.name in profiles:
            raise ConfigError(f"a second profile is named `{spec.name}`", f"{place}.name")
        profiles[spec.name] = _profile(spec, plugins, place)
    return profiles


def _profile(spec: ProfileSpec, plugins: Plugins, place: str) -> Profile:
    named = [
        (ref, plugins.refer(ref.plugin_ref, f"{place}.plugins[{position}].pluginRef"))
        for position, ref in enumerate(spec.plugins)
    ]
    pickers = [each for _, each in named if isinstance(each, Picker)]
    if len(pickers) > 1:
        raise ConfigError("this profile has several pickers; keep one", f"{place}.plugins")
    if not pickers:
        pickers = [_default_picker(spec, plugins)]
    for ref in spec.plugins:
        plugins.check_scheduled(ref.plugin_ref)
    return Profile(
        spec.name,
        tuple(each for _, each in named if isinstance(each, Filter)),
        tuple(
            WeightedScorer(ref.plugin_ref, _weight(ref), each)
            for ref, each in named
            if isinstance(each, Scorer)
        ),
        pickers[0],
    )


def _weight(ref: PluginRef) -> float:
    ref.weight = 1.0 if ref.weight is None else ref.weight
    return ref.weight


def _default_picker(spec: ProfileSpec, plugins: Plugins) -> Picker:
    """Return the file's first picker, else llm-d-router's default, for a profile without one.

    It is written into the effective configuration.
    """
    found = next((name for name, each in plugins.items() if isinstance(each, Picker)), "")
    if not found:
        found = "max-score-picker"
        plugins.add(found)
    spec.plugins.append(PluginRef(found))
    picker: Picker = plugins[found]
    return picker


def _handler(
    plugins: Plugins, profiles: Mapping[str, Profile]
) -> tuple[ProfileHandler, Sequence[str]]:
    """Return the profile handler, and its warnings."""
    handlers = [name for name, each in plugins.items() if isinstance(each, ProfileHandler)]
    if len(handlers) > 1:
        named = " and ".join(f"`{name}`" for name in handlers)
        raise ConfigError(f"{named} are both profile handlers; keep one", "plugins")
    handler: ProfileHandler = plugins[handlers[0]] if handlers else SingleProfileHandler()
    with plugin_code("the profile handler does not take them", "schedulingProfiles"):
        try:
            return handler, handler.check_profiles(tuple(profiles)) or ()
        except UnknownProfile as error:
            place = f"{plugins.place(handlers[0])}.{error.parameter}"
            raise ConfigError(f"{error}{near(error.profile, profiles)}", place) from None
        except ValueError as error:
            raise ConfigError(str(error), "schedulingProfiles") from None


def _scheduling(
    profiles: Mapping[str, Profile],
    handler: ProfileHandler,
    detector: SaturationDetector | None,
    plugins: Plugins,
) -> Scheduling:
    return Scheduling(
        profiles=profiles,
        handler=handler,
        saturation_detector=detector,
        screeners=plugins.having(Screener),
        admitters=plugins.having(Admitter),
        request_header_sources=plugins.having(RequestHeaderSource),
        request_processors=plugins.having(RequestProcessor),
        commit_observers=plugins.having(CommitObserver),
        response_processors=plugins.having(ResponseProcessor),
        usage_reporters=plugins.having(UsageReporter),
        subscriptions=tuple(plugins.subscriptions),
        plugins={each.name: (each.type, plugins[each.name]) for each in plugins.specs},
        plugin_names={id(plugins[each.name]): (each.type, each.name) for each in plugins.specs},
    )


def _check_scores_are_used(profile: Profile, place: str) -> tuple[str, ...]:
    """Return a warning if a profile's scores have no effect, or raise `ConfigError`.

    `random-picker` with scorers is only a warning, since llm-d-router's files have it.
    """
    if not profile.scorers or uses_totals(profile.picker):
        return ()
    picker = PLUGINS.type_of(profile.picker)
    scorers = ", ".join(f"`{each.name}`" for each in profile.scorers)
    problem = f"the scores of {scorers} would have no effect: `{picker}` ignores scores"
    if isinstance(profile.picker, RandomPicker):
        return (f"{place}: {problem}",)
    remedy = "take the scorers out of the profile, or let `max-score-picker` pick"
    if isinstance(profile.picker, LeastTtftPicker):
        remedy += ", with `least-ttft-scorer` beside them"
    raise ConfigError(f"{problem}; {remedy}", place)


# Other sections.


def _discovery(layer: DataLayer, plugins: Plugins) -> FileDiscoveryConfig | None:
    if layer.discovery is None or layer.discovery.endpoints is None:
        return None
    place = "dataLayer.discovery.endpoints.pluginRef"
    found = plugins.refer(layer.discovery.endpoints.plugin_ref, place)
    if not isinstance(found, FileDiscoveryConfig):
        raise ConfigError("this plug-in does not discover endpoints; `file-discovery` does", place)
    return found


def _syncer(layer: DataLayer, plugins: Plugins) -> RedisSyncer | None:
    if layer.cross_replica is None or not layer.cross_replica.syncer_plugin_ref:
        return None
    place = "dataLayer.crossReplica.syncerPluginRef"
    found = plugins.refer(layer.cross_replica.syncer_plugin_ref, place)
    if not isinstance(found, RedisSyncer):
        raise ConfigError("this plug-in does not share state; `redis-syncer` does", place)
    return found
