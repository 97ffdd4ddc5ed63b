"""The registry of plug-ins: names to classes, and the incumbent's names without a class here.

The incumbent's plug-ins have its names, parameters and defaults. Warmpick's own are
`least-ttft-scorer`, `least-ttft-picker`, `least-request-picker` and `round-robin-picker`.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, ClassVar, get_args

import msgspec

from epp.config.data_layer import DATA_LAYER, OLD_CORE_EXTRACTOR
from epp.config.flow_control import FLOW_CONTROL
from epp.config.parsers import PARSERS
from epp.config.producers import (
    ApproxProducer,
    MulticlusterApproxProducer,
    PreciseProducer,
    TokenProducer,
)
from epp.config.scheduling_types import FILTERS, PICKERS, REPLACED_TYPES, SCORERS
from epp.config.schema import near
from epp.errors import ConfigError
from epp.policy.admitters import LatencySloAdmitter, ProbabilisticAdmitter
from epp.policy.conformance import ServedVerifier
from epp.policy.dataproducers.identity import (
    AgentIdentity,
    OutputLengthBucket,
    SessionIdProducer,
)
from epp.policy.dataproducers.in_flight_load import InFlightLoadProducer
from epp.policy.dataproducers.mapped import (
    BurstPrefixCacheProducer,
    LatencyObservationScorer,
    LatencyObserverProducer,
    PeerDiscovery,
    SessionStateProducer,
)
from epp.policy.dataproducers.media_cache import MediaCacheProducer
from epp.policy.dataproducers.predicted_latency import PredictedLatencyProducer
from epp.policy.disaggregation.deciders import (
    AlwaysDisaggMultimodalDecider,
    AlwaysDisaggPdDecider,
    PrefixBasedPdDecider,
)
from epp.policy.disaggregation.handler import (
    DisaggHeadersHandler,
    DisaggProfileHandler,
    PdProfileHandler,
)
from epp.policy.disaggregation.kv_source import P2pSourceProducer
from epp.policy.disaggregation.rollout import DisaggregatedSetRolloutScreener
from epp.policy.effects import without_effect
from epp.policy.handlers import DataParallelProfileHandler, HeaderProfileHandler
from epp.policy.profile import SingleProfileHandler
from epp.policy.reporter import RequestAttributeReporter
from epp.protocol.yaml import convert

ENTRY_POINTS = "warmpick.plugins"
"""The entry point group of users' plug-ins."""


class FileDiscoveryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Takes endpoints from the file `path`, which is followed for changes in any case."""

    host_names: ClassVar[bool] = False

    path: str
    watch_file: Annotated[bool, without_effect("the file is always followed")] = False


class MulticlusterFileDiscovery(FileDiscoveryConfig, frozen=True):
    """Takes clusters from a file: their addresses may be host names, which are resolved."""

    host_names: ClassVar[bool] = True


PLUGINS: dict[str, type[Any]] = {
    **SCORERS,
    **FILTERS,
    **PICKERS,
    "single-profile-handler": SingleProfileHandler,
    "disagg-profile-handler": DisaggProfileHandler,
    "pd-profile-handler": PdProfileHandler,
    "disagg-headers-handler": DisaggHeadersHandler,
    "prefill-header-handler": DisaggHeadersHandler,
    "header-profile-handler": HeaderProfileHandler,
    "data-parallel-profile-handler": DataParallelProfileHandler,
    "always-disagg-pd-decider": AlwaysDisaggPdDecider,
    "always-disagg-multimodal-decider": AlwaysDisaggMultimodalDecider,
    "prefix-based-pd-decider": PrefixBasedPdDecider,
    "p2p-source-producer": P2pSourceProducer,
    "disaggregatedset-rollout-screener": DisaggregatedSetRolloutScreener,
    "token-producer": TokenProducer,
    "tokenizer": TokenProducer,
    "approx-prefix-cache-producer": ApproxProducer,
    "precise-prefix-cache-producer": PreciseProducer,
    "multicluster-approx-prefix-cache-producer": MulticlusterApproxProducer,
    "burst-prefix-cache-producer": BurstPrefixCacheProducer,
    "inflight-load-producer": InFlightLoadProducer,
    "predicted-latency-producer": PredictedLatencyProducer,
    "mm-embeddings-cache-producer": MediaCacheProducer,
    "latency-observer-producer-hub": LatencyObserverProducer,
    "latency-observation-scorer-hub": LatencyObservationScorer,
    "session-id-producer": SessionIdProducer,
    "session-state-producer": SessionStateProducer,
    "agent-identity": AgentIdentity,
    "outlen-bucket": OutputLengthBucket,
    "latency-slo-admitter": LatencySloAdmitter,
    "probabilistic-admitter": ProbabilisticAdmitter,
    "request-attribute-reporter": RequestAttributeReporter,
    "k8s-peer-discovery": PeerDiscovery,
    "file-discovery": FileDiscoveryConfig,
    "multicluster-file-discovery": MulticlusterFileDiscovery,
    "destination-endpoint-served-verifier": ServedVerifier,
    **DATA_LAYER,
    **FLOW_CONTROL,
    **PARSERS,
}
"""Every plug-in that a configuration may name."""

DEPRECATED: dict[str, str] = {
    OLD_CORE_EXTRACTOR: "write `core-metrics-extractor`",
    "tokenizer": "write `token-producer`",
    "pd-profile-handler": "write `disagg-profile-handler`",
    "disagg-headers-handler": "leave it out: `disagg-profile-handler` sets the headers",
    "prefill-header-handler": "leave it out: `disagg-profile-handler` sets the headers",
    "data-parallel-profile-handler": "leave it out where gateways reach the ports of all ranks",
    **REPLACED_TYPES,
}
"""Types that llm-d-router has deprecated or removed, and what to write instead."""


def plugin_class(kind: str, place: str) -> type[Any]:
    """Return the class of a plug-in's name. Raises `ConfigError` that suggests similar names."""
    if kind in PLUGINS:
        return PLUGINS[kind]
    raise ConfigError(f"unknown plug-in type `{kind}`{near(kind, PLUGINS)}", place)


def replaced_by(kind: str) -> str:
    """Return what to write instead of a deprecated type; empty for others."""
    return DEPRECATED.get(kind, "")


def users_class(name: str, place: str) -> type[Any] | None:
    """Return the class that a user registered under a name; None without one.

    Names of built-in plug-ins cannot be taken. Raises `ConfigError` whatever the import raises.
    """
    if name in PLUGINS:
        return None
    from importlib.metadata import entry_points  # noqa: PLC0415 (slow to load, rarely needed)

    for entry in entry_points(group=ENTRY_POINTS, name=name):
        try:
            found = entry.load()
        except Exception as error:
            raise ConfigError(f"`{entry.value}` cannot be imported: {error!r}", place) from error
        if not (isinstance(found, type) and issubclass(found, msgspec.Struct)):
            raise ConfigError(f"`{entry.value}` is no msgspec.Struct", place)
        return found
    return None


def build(kind: type[Any], parameters: dict[str, Any], place: str) -> Any:  # noqa: ANN401 (any plug-in)
    """Return a plug-in's struct with the parameters. Raises `ConfigError` that names the place."""
    try:
        return convert(parameters, kind)
    except ConfigError as error:
        within = f"{place}.{error.place}" if error.place else place
        raise ConfigError(_explain(error.problem, _group_at(kind, error.place)), within) from None


def _explain(message: str, kind: type[Any]) -> str:
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    unknown = message.partition("unknown field `")[2].partition("`")[0]
    if not unknown:
        return message
    accepted = f"; it takes {', '.join(known)}" if known else "; it takes none"
    return f"unknown parameter `{unknown}`{near(unknown, known) or accepted}"


def _group_at(kind: type[Any], path: str) -> type[Any]:
    """Return the struct at a path such as `engineConfigs[0].customMetrics[1]`."""
    for name in re.findall(r"\w+(?=[.\[]|$)", re.sub(r"\[[^]]*\]", "", path)):
        types = [each.type for each in msgspec.structs.fields(kind) if each.encode_name == name]
        kind = next(_structs(types), kind)
    return kind


def _structs(types: Iterable[Any]) -> Iterator[type[Any]]:
    """Yield the structs within annotations."""
    for each in types:
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            yield each
        yield from _structs(get_args(each))
