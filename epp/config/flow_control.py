"""The section `flowControl` and its plug-ins, as types: read and checked, and without effect yet.

Names, parameters, defaults and bounds are llm-d-router's. The saturation detectors are in
`epp.policy`, for they act as filters too, and shed requests of negative priority.
"""

from typing import Annotated, ClassVar, Literal

import msgspec

from epp.policy.effects import Effect, without_effect
from epp.policy.plugins import PluginParameters
from epp.quantities import quantity, seconds

_HOLDING = without_effect("requests are not held in the picker yet")
NOT_HELD = str(_HOLDING)
"""What is said where a configuration asks for flow control."""


class DetectorRef(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The saturation detector by its name; empty: `utilization-detector`."""

    plugin_ref: str = "utilization-detector"


class BandTemplate(msgspec.Struct, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Limits and policies of a priority band: quantities, a Go duration, and plug-ins by name."""

    priority: int = 0
    max_bytes: str | int | None = None
    max_requests: str | int | None = None
    default_request_ttl: str | None = msgspec.field(default=None, name="defaultRequestTTL")
    fairness_policy_ref: str = ""
    ordering_policy_ref: str = ""

    def __post_init__(self) -> None:
        _check_limits(self.max_bytes, self.max_requests)
        _check_times(self.default_request_ttl)


class FlowControlSection(
    msgspec.Struct, forbid_unknown_fields=True, rename="camel", omit_defaults=True
):
    """The section: how many requests wait, for how long, and in which order they go."""

    max_bytes: Annotated[str | int | None, _HOLDING] = None
    max_requests: Annotated[str | int | None, _HOLDING] = None
    default_request_ttl: Annotated[str | None, _HOLDING] = msgspec.field(
        default=None, name="defaultRequestTTL"
    )
    no_endpoint_request_ttl: Annotated[str | None, _HOLDING] = msgspec.field(
        default=None, name="noEndpointRequestTTL"
    )
    default_priority_band: Annotated[BandTemplate | None, _HOLDING] = None
    default_negative_priority_band: Annotated[BandTemplate | None, _HOLDING] = None
    priority_bands: Annotated[list[BandTemplate], _HOLDING] = []
    usage_limit_policy_plugin_ref: Annotated[str, _HOLDING] = ""
    band_selection_policy_plugin_ref: Annotated[str, _HOLDING] = ""
    saturation_detector: DetectorRef | None = None
    enable_eviction: Annotated[bool, _HOLDING] = False

    def __post_init__(self) -> None:
        _check_limits(self.max_bytes, self.max_requests)
        _check_times(self.default_request_ttl, self.no_endpoint_request_ttl)
        priorities = [band.priority for band in self.priority_bands]
        if len(set(priorities)) < len(priorities):
            raise ValueError("two bands of `priorityBands` have the same priority")


def _check_limits(*limits: str | int | None) -> None:
    for limit in limits:
        if limit is not None:
            quantity(limit)


def _check_times(*times: str | None) -> None:
    for time in times:
        if time is not None:
            seconds(time, zero=True)


class FlowControlPlugin(PluginParameters, frozen=True):
    """A plug-in of flow control."""

    effect: ClassVar[Effect] = _HOLDING


class FairnessPolicy(FlowControlPlugin, frozen=True):
    """Chooses the flow of a priority band that goes next."""


class ProgramAwareFairness(FairnessPolicy, frozen=True):
    """Shares a band between programs, by attained service (`las`) or by turns."""

    strategy: Literal["las", "turn-priority"] = "las"
    eviction_ttl_seconds: float = 3600.0
    eviction_sweep_seconds: float = 300.0
    las_weight_service: float = 0.8
    las_weight_head_wait: float = 0.2
    las_half_life_seconds: float = 60.0
    time_weight: float = 1.0
    inactivity_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.eviction_ttl_seconds <= 0 or self.eviction_sweep_seconds <= 0:
            raise ValueError("`evictionTtlSeconds` and `evictionSweepSeconds` must be above 0")
        if self.las_half_life_seconds < 0:
            raise ValueError("`lasHalfLifeSeconds` must not be negative")


class OrderingPolicy(FlowControlPlugin, frozen=True):
    """Orders the requests of one flow."""


class UsageLimitPolicy(FlowControlPlugin, frozen=True):
    """Sets ceilings of saturation for priorities."""


class StaticUsageLimitPolicy(UsageLimitPolicy, frozen=True):
    """One ceiling for all priorities."""

    threshold: float = 1.0


class PriorityHoldbackPolicy(UsageLimitPolicy, frozen=True):
    """Lower ceilings for lower priorities."""

    min_ceiling: float
    max_ceiling: float = 1.0
    shape: Literal["linear"] = "linear"
    domain: Literal["rank", "value"] = "rank"

    def __post_init__(self) -> None:
        if not 0 <= self.min_ceiling < self.max_ceiling <= 1:
            raise ValueError("0 <= `minCeiling` < `maxCeiling` <= 1 must hold")


class EvictionPolicy(FlowControlPlugin, frozen=True):
    """Chooses requests under way that are evicted."""
