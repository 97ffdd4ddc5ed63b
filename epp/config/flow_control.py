"""The section `flowControl` and its plug-ins, as types, and what they mean for flow control.

Names, parameters, defaults and bounds are llm-d-router's. The policies are in `epp.policy.flow`,
the saturation detectors in `epp.policy.filters`, as they are filters too.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Annotated, Any, Protocol, TypeVar

import msgspec

from epp.errors import ConfigError
from epp.policy.bounds import BoundedParameters, above_zero, at_least
from epp.policy.effects import mapped_to, without_effect
from epp.policy.filters.detectors import UtilizationDetector
from epp.policy.flow.fairness import FairnessPolicy, StartTimeFairness
from epp.policy.flow.orders import OrderingPolicy
from epp.policy.flow.settings import BandLimits, FlowSettings, GateSettings
from epp.policy.flow.usage_limits import StaticUsageLimitPolicy, UsageLimitPolicy
from epp.policy.plugins import PluginParameters, SaturationDetector
from epp.quantities import quantity, seconds

T = TypeVar("T")
D = TypeVar("D")
_NEGATIVE = "defaultNegativePriorityBand"
_duration = partial(seconds, zero=True)
_TTL = 60.0
"""How long a request may wait by default, in seconds."""
_RUNNING = without_effect("requests under way are not evicted")
_LEDGER = mapped_to("the room of each endpoint, whose limits are learned")


class DetectorRef(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The saturation detector by its name; empty: `utilization-detector`."""

    plugin_ref: str = "utilization-detector"

    def __post_init__(self) -> None:
        self.plugin_ref = self.plugin_ref or "utilization-detector"


class BandTemplate(msgspec.Struct, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Limits and policies of a priority band: quantities, a Go duration, and plug-ins by name."""

    priority: int = 0
    max_bytes: str | int | None = None
    max_requests: str | int | None = None
    default_request_ttl: str | None = msgspec.field(default=None, name="defaultRequestTTL")
    fairness_policy_ref: str = ""
    ordering_policy_ref: str = ""

    def __post_init__(self) -> None:
        _check(quantity, maxBytes=self.max_bytes, maxRequests=self.max_requests)
        _check(_duration, defaultRequestTTL=self.default_request_ttl)


class FlowControlSection(
    msgspec.Struct, forbid_unknown_fields=True, rename="camel", omit_defaults=True
):
    """The section: how many requests wait, for how long, and in which order they go."""

    max_bytes: str | int | None = None
    """Bytes of bodies that may wait in all bands."""
    max_requests: str | int | None = None
    """Requests that may wait in all bands."""
    default_request_ttl: str | None = msgspec.field(default=None, name="defaultRequestTTL")
    """How long a request may wait if it does not say."""
    no_endpoint_request_ttl: str | None = msgspec.field(default=None, name="noEndpointRequestTTL")
    """How long a request may wait for the first endpoint."""
    default_priority_band: BandTemplate | None = None
    """The limits of bands that are not listed."""
    default_negative_priority_band: BandTemplate | None = None
    """The same, of negative priorities."""
    priority_bands: list[BandTemplate] = []
    """The limits of bands by priority."""
    usage_limit_policy_plugin_ref: str = ""
    """The plug-in that sets how full the pool may get for each band."""
    band_selection_policy_plugin_ref: Annotated[
        str, without_effect("bands go from the highest priority to the lowest")
    ] = ""
    endpoint_gate_plugin_ref: Annotated[str, _LEDGER] = ""
    saturation_detector: DetectorRef | None = None
    """The plug-in that measures how full the pool is."""
    enable_eviction: Annotated[bool, _RUNNING] = False

    def __post_init__(self) -> None:
        _check(quantity, maxBytes=self.max_bytes, maxRequests=self.max_requests)
        _check(_duration, defaultRequestTTL=self.default_request_ttl)
        _check(_duration, noEndpointRequestTTL=self.no_endpoint_request_ttl)
        priorities = [band.priority for band in self.priority_bands]
        if len(set(priorities)) < len(priorities):
            raise ValueError("two bands of `priorityBands` have the same priority")

    @property
    def detects_only(self) -> bool:
        """Whether it only names the detector of saturation."""
        return self == FlowControlSection(saturation_detector=self.saturation_detector)


def _check(read: Callable[[Any], float], **values: str | int | None) -> None:
    """Raise `ValueError` with the name of the first value that cannot be read."""
    for name, value in values.items():
        try:
            _ = None if value is None else read(value)
        except ValueError as error:
            raise ValueError(f"`{name}`: {error}") from None


class StrictBandSelectionPolicy(PluginParameters, frozen=True):
    """Serves bands from the highest priority to the lowest."""

    effect = mapped_to("the order of bands, which is always this one")


class EvictionPolicy(PluginParameters, frozen=True):
    """Chooses requests under way that are evicted."""

    effect = _RUNNING


class CapacityLedger(BoundedParameters, frozen=True):
    """Books what requests hold of an engine, by its parameters."""

    effect = _LEDGER

    slots_per_endpoint: Annotated[int, above_zero("requests, such as 256")]
    step_token_budget: Annotated[int, above_zero("tokens, such as 8192")]
    max_model_len: Annotated[int, above_zero("tokens, such as 32768")]
    speculative_tokens: Annotated[int, at_least(0, "tokens, or 0 for none")] = 0
    reservation_ttl: str = msgspec.field(default="1s", name="reservationTTL")
    prefix_match_info_producer_name: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        seconds(self.reservation_ttl)


class Refer(Protocol):
    """Returns a started plug-in by its name (`Plugins.refer`)."""

    def __call__(self, name: str, place: str) -> Any:  # noqa: ANN401 (of any kind)
        """Return it; `place` is what an error names. Raises `ConfigError`."""


def saturation_detector(section: FlowControlSection, refer: Refer) -> SaturationDetector:
    """Return the detector that the section names, or llm-d-router's default."""
    if section.saturation_detector is None:
        return UtilizationDetector()
    name, place = section.saturation_detector.plugin_ref, "flowControl.saturationDetector.pluginRef"
    found = refer(name, place)
    if not isinstance(found, SaturationDetector):
        raise ConfigError(
            f"`{name}` does not detect saturation; `utilization-detector` does", place
        )
    return found


def flow_settings(
    section: FlowControlSection, detector: SaturationDetector, refer: Refer, *, on: bool
) -> FlowSettings:
    """Return the settings of a section if its feature gate is `on`. Raises `ConfigError`.

    If it is off the section is only checked, and requests wait only for room at endpoints.
    """
    ttl, template = _ttl(section.default_request_ttl, _TTL), section.default_priority_band
    negative = section.default_negative_priority_band
    band = _limits(template or BandTemplate(), "defaultPriorityBand", ttl, refer)
    negatives = None if negative is None else _limits(negative, _NEGATIVE, ttl, refer)
    bands = {
        each.priority: _limits(each, f"priorityBands[{position}]", ttl, refer)
        for position, each in enumerate(section.priority_bands)
    }
    settings = FlowSettings(
        gate=GateSettings(
            detector=detector,
            name=(section.saturation_detector or DetectorRef()).plugin_ref,
            usage_limits=_policy(
                section.usage_limit_policy_plugin_ref,
                UsageLimitPolicy,
                StaticUsageLimitPolicy(),
                "flowControl.usageLimitPolicyPluginRef",
                refer,
            ),
            priorities=tuple(bands),
        ),
        empty_seconds=_ttl(section.no_endpoint_request_ttl, ttl),
        bands=bands,
        band=band,
        negative_band=negatives,
        max_requests=quantity(section.max_requests or 0) or inf,
        max_bytes=quantity(section.max_bytes or 0) or inf,
    )
    return settings if on else FlowSettings()


def _ttl(written: str | None, usual: float) -> float:
    return usual if written is None else seconds(written, zero=True) or inf


def _limits(band: BandTemplate, name: str, ttl: float, refer: Refer) -> BandLimits:
    """Return the limits of a band of the section; `ttl` is the section's own."""
    usual, place = BandLimits(), f"flowControl.{name}"
    return BandLimits(
        max_requests=quantity(band.max_requests or 0) or usual.max_requests,
        max_bytes=quantity(band.max_bytes or 0) or usual.max_bytes,
        ttl=_ttl(band.default_request_ttl, ttl),
        fairness=_policy(
            band.fairness_policy_ref,
            FairnessPolicy,
            StartTimeFairness(),
            f"{place}.fairnessPolicyRef",
            refer,
        ),
        order=_policy(
            band.ordering_policy_ref, OrderingPolicy, None, f"{place}.orderingPolicyRef", refer
        ),
    )


def _policy(name: str, kind: type[T], default: D, place: str, refer: Refer) -> T | D:
    """Return the policy of a name; the default if that is empty."""
    if not name:
        return default
    found = refer(name, place)
    if not isinstance(found, kind):
        raise ConfigError(f"`{name}` is not a policy of this kind", place)
    return found
