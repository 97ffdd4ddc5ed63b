"""The registry of plug-ins: names to classes, and the incumbent's names without a class here.

The incumbent's plug-ins have its names, parameters and defaults. Warmpick's own are
`least-ttft-scorer`, `least-ttft-picker`, `least-request-picker` and `round-robin-picker`.
"""

from difflib import get_close_matches
from typing import Any

import msgspec

from epp.config.producers import ApproxProducer, PreciseProducer, TokenProducer
from epp.errors import ConfigError
from epp.policy.conformance import HeaderBasedTestingFilter, ServedVerifier
from epp.policy.pickers import (
    LeastRequestPicker,
    LeastTtftPicker,
    MaxScorePicker,
    RandomPicker,
    RoundRobinPicker,
)
from epp.policy.plugins import Plugin
from epp.policy.scorers import (
    KvCacheUtilizationScorer,
    LeastTtftScorer,
    LoraAffinityScorer,
    PrefixCacheScorer,
    QueueScorer,
)

ENTRY_POINTS = "warmpick.plugins"
"""The entry point group of users' plug-ins."""


class SingleProfileHandler(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Has one profile decide, which is so without a handler too."""


class FileDiscoveryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Takes endpoints from the file `path`, which is followed for changes in any case."""

    path: str
    watch_file: bool = False


class BuiltIn(msgspec.Struct, frozen=True):
    """A plug-in of the incumbent's that is always on here; its parameters change nothing."""


PLUGINS: dict[str, type[Any]] = {
    "queue-scorer": QueueScorer,
    "kv-cache-utilization-scorer": KvCacheUtilizationScorer,
    "prefix-cache-scorer": PrefixCacheScorer,
    "lora-affinity-scorer": LoraAffinityScorer,
    "least-ttft-scorer": LeastTtftScorer,
    "max-score-picker": MaxScorePicker,
    "random-picker": RandomPicker,
    "least-ttft-picker": LeastTtftPicker,
    "least-request-picker": LeastRequestPicker,
    "round-robin-picker": RoundRobinPicker,
    "single-profile-handler": SingleProfileHandler,
    "token-producer": TokenProducer,
    "approx-prefix-cache-producer": ApproxProducer,
    "precise-prefix-cache-producer": PreciseProducer,
    "file-discovery": FileDiscoveryConfig,
    "header-based-testing-filter": HeaderBasedTestingFilter,
    "destination-endpoint-served-verifier": ServedVerifier,
}
"""Every plug-in that a configuration may name."""

BUILT_IN = frozenset(
    (
        "core-metrics-extractor",
        "inflight-load-producer",
        "metrics-data-source",
        "openai-parser",
        "passthrough-parser",
    )
)
"""The incumbent's names for what this picker always does."""

ELSEWHERE = frozenset(
    (
        "active-request-scorer",
        "agent-identity",
        "always-disagg-multimodal-decider",
        "always-disagg-pd-decider",
        "anthropic-parser",
        "by-label",
        "by-label-selector",
        "concurrency-detector",
        "context-length-aware",
        "data-parallel-profile-handler",
        "decode-filter",
        "disagg-headers-handler",
        "disagg-profile-handler",
        "edf-ordering-policy",
        "encode-filter",
        "endpoint-attribute-filter",
        "endpoint-attribute-scorer",
        "fcfs-ordering-policy",
        "global-strict-fairness-policy",
        "header-label-affinity-scorer",
        "header-profile-handler",
        "label-selector-filter",
        "latency-scorer",
        "latency-slo-admitter",
        "load-aware-scorer",
        "mm-embeddings-cache-producer",
        "mm-embeddings-cache-scorer",
        "multicluster-approx-prefix-cache-producer",
        "multicluster-kv-cache-utilization-scorer",
        "multicluster-prefix-cache-scorer",
        "multicluster-queue-scorer",
        "multicluster-session-affinity-filter",
        "no-hit-lru-scorer",
        "pd-profile-handler",
        "precise-prefix-cache-scorer",
        "predicted-latency-producer",
        "prefill-filter",
        "prefill-header-handler",
        "prefix-based-pd-decider",
        "prefix-cache-affinity-filter",
        "priority-holdback-policy",
        "probabilistic-admitter",
        "program-aware-fairness",
        "round-robin-fairness-policy",
        "running-requests-size-scorer",
        "session-affinity-filter",
        "session-affinity-scorer",
        "session-id-producer",
        "slo-deadline-ordering-policy",
        "slo-headroom-tier-filter",
        "soft-reflective-ceiling-policy",
        "static-usage-limit-policy",
        "token-load-scorer",
        "topology-affinity-filter",
        "topology-affinity-scorer",
        "utilization-detector",
        "utilization-filter",
        "vertexai-parser",
        "vllmgrpc-parser",
        "vllmhttp-parser",
        "weighted-random-picker",
    )
)
"""The incumbent's plug-ins that do not exist here, so that the error can say so."""


def instantiate(kind: str, parameters: dict[str, Any], place: str) -> Plugin | Any:  # noqa: ANN401 (handlers and discovery are no plug-ins of a profile)
    """Return a plug-in with its parameters. Raises `ConfigError` that names the place."""
    if kind in BUILT_IN:
        return BuiltIn()
    return build(plugin_class(kind, f"{place}.type"), parameters, f"{place}.parameters")


def plugin_class(kind: str, place: str) -> type[Any]:
    """Return the class of a plug-in's name. Raises `ConfigError` that suggests similar names."""
    if kind in PLUGINS:
        return PLUGINS[kind]
    if kind in ELSEWHERE:
        raise ConfigError(
            f"plug-in type `{kind}` of llm-d-router does not exist in this version of Warmpick",
            place,
        )
    raise ConfigError(f"unknown plug-in type `{kind}`{near(kind, PLUGINS)}", place)


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
    """Return a plug-in's struct with the parameters. Raises `ConfigError` for unknown ones."""
    try:
        return msgspec.convert(parameters, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), kind), place) from None


def _explain(message: str, kind: type[Any]) -> str:
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    unknown = message.partition("unknown field `")[2].partition("`")[0]
    if not unknown:
        return message
    accepted = f"; it takes {', '.join(known)}" if known else "; it takes none"
    return f"unknown parameter `{unknown}`{near(unknown, known) or accepted}"


def near(word: str, known: object) -> str:
    """Return `: did you mean ...?` with the known words that resemble a wrong one, or nothing."""
    matches = get_close_matches(word, list(known), n=3, cutoff=0.6)  # type: ignore[call-overload]  # any iterable of str
    return f": did you mean {' or '.join(f'`{match}`' for match in matches)}?" if matches else ""
