"""The section `flowControl`: what it says, and what is refused or has no effect."""

from math import inf

import pytest

from epp.config.file import load
from epp.errors import ConfigError
from epp.policy.filters.detectors import UtilizationDetector
from epp.policy.flow.fairness import RoundRobinFairnessPolicy
from epp.policy.flow.orders import EdfOrderingPolicy
from epp.policy.flow.settings import FlowSettings
from epp.policy.flow.usage_limits import PriorityHoldbackPolicy


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("flowControl: {maxBytes: ten}", "flowControl", "`maxBytes`: `ten` is not a quantity"),
        ("flowControl: {maxRequests: -1}", "flowControl", "`maxRequests`: `-1` is not a quantity"),
        (
            "flowControl: {defaultRequestTTL: 5}",
            "flowControl.defaultRequestTTL",
            "text is expected, not a whole number",
        ),
        (
            "flowControl: {defaultRequestTTL: soon}",
            "flowControl",
            "`defaultRequestTTL`: `soon` is not a duration",
        ),
        (
            "flowControl: {noEndpointRequestTTL: -1s}",
            "flowControl",
            "`noEndpointRequestTTL`: `-1s` is not a duration",
        ),
        (
            "flowControl: {priorityBands: [{priority: 1}, {priority: 1}]}",
            "flowControl",
            "have the same priority",
        ),
        (
            "flowControl: {priorityBands: [{fairnessPolicyRef: fcfs-ordering-policy}]}",
            "flowControl.priorityBands[0].fairnessPolicyRef",
            "`fcfs-ordering-policy` is not a policy of this kind",
        ),
        (
            "flowControl: {defaultPriorityBand: {orderingPolicyRef: fcfs}}",
            "flowControl.defaultPriorityBand.orderingPolicyRef",
            "no plug-in is named `fcfs`",
        ),
    ],
)
def test_what_it_may_not_say_is_named(text, place, said):
    with pytest.raises(ConfigError) as raised:
        load(text)
    assert raised.value.place == place
    assert said in raised.value.problem


FLOWS = """
featureGates: [flowControl]
plugins:
- {type: queue-scorer}
- {type: round-robin-fairness-policy}
- {type: edf-ordering-policy}
- {type: priority-holdback-policy, parameters: {minCeiling: 0.5}}
flowControl:
  maxBytes: 10Gi
  maxRequests: 2k
  defaultRequestTTL: 1m30s
  usageLimitPolicyPluginRef: priority-holdback-policy
  saturationDetector: {pluginRef: concurrency-detector}
  priorityBands:
  - {priority: 100, maxRequests: 1k, fairnessPolicyRef: round-robin-fairness-policy}
  - {priority: -10, maxBytes: 1M, defaultRequestTTL: 0s, orderingPolicyRef: edf-ordering-policy}
  defaultNegativePriorityBand: {maxRequests: 7}
"""


def test_flow_control_is_what_the_section_says():
    settings = load(FLOWS)
    assert settings.warnings == ()
    flow = settings.flow
    assert (flow.max_bytes, flow.max_requests, flow.empty_seconds) == (10 << 30, 2000, 90.0)
    high, low = flow.limits_of(100), flow.limits_of(-10)
    assert (high.max_requests, high.max_bytes, high.ttl) == (1000, 1e9, 90.0)
    assert isinstance(high.fairness, RoundRobinFairnessPolicy)
    assert high.order is None
    assert (low.max_requests, low.max_bytes, low.ttl) == (5000, 10**6, inf)
    assert isinstance(low.order, EdfOrderingPolicy)
    assert (flow.limits_of(3).max_requests, flow.limits_of(-3).max_requests) == (5000, 7)
    assert flow.gate is not None
    assert (flow.gate.name, flow.gate.priorities) == ("concurrency-detector", (100, -10))
    assert flow.gate.usage_limits == PriorityHoldbackPolicy(min_ceiling=0.5)
    assert flow.gate.detector is not settings.scheduling.saturation_detector is None


@pytest.mark.parametrize("section", ["", "flowControl: {saturationDetector: {pluginRef: ''}}"])
def test_the_default_detector_is_that_of_utilization(section):
    gate = load(f"featureGates: [flowControl]\n{section}").flow.gate
    assert gate is not None
    assert (gate.name, gate.detector) == ("utilization-detector", UtilizationDetector())


@pytest.mark.parametrize(
    ("section", "empty"),
    [
        ("{}", 60.0),
        ("{defaultRequestTTL: 5s}", 5.0),
        ("{defaultRequestTTL: 5s, noEndpointRequestTTL: 1m}", 60.0),
        ("{defaultRequestTTL: 0s}", inf),
        ("{noEndpointRequestTTL: 0s}", inf),
    ],
)
def test_how_long_requests_wait_for_the_first_endpoint(section, empty):
    flow = load(f"featureGates: [flowControl]\nflowControl: {section}").flow
    assert flow.empty_seconds == empty


def test_a_section_whose_gate_is_off_is_checked_and_idle():
    gated = load(FLOWS.replace("[flowControl]", "[flowControl=false]"))
    assert gated.warnings == ("flowControl has no effect: feature gate `flowControl` is off",)
    assert gated.flow == FlowSettings()
    assert gated.scheduling.saturation_detector is not None


LEDGER = """
featureGates: [flowControl]
plugins:
- {type: queue-scorer}
- type: capacity-ledger
  name: ledger
  parameters: {slotsPerEndpoint: 256, stepTokenBudget: 8192, maxModelLen: 32768}
- {type: sheddable-eviction-filter}
flowControl: {endpointGatePluginRef: ledger, enableEviction: true}
"""


def test_what_has_no_part_in_flow_control_is_said():
    ledger, eviction = (
        "mapped to the room of each endpoint, whose limits are learned",
        "without effect here, because requests under way are not evicted",
    )
    assert set(load(LEDGER).warnings) == {
        f"ledger: {ledger}",
        f"sheddable-eviction-filter: {eviction}",
        f"flowControl.endpointGatePluginRef is {ledger}",
        f"flowControl.enableEviction is {eviction}",
    }


THUNDER = """
featureGates: [flowControl]
plugins:
- {type: agent-identity, parameters: {additionalSessionHeaders: [x-session-id]}}
- {type: thunder-agent, name: thunder, parameters: {utilThreshold: 0.9, evictionTtlSeconds: 60}}
- {type: queue-scorer}
flowControl:
  saturationDetector: {pluginRef: thunder}
  defaultPriorityBand: {fairnessPolicyRef: thunder}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: thunder, weight: 3}, {pluginRef: queue-scorer}]
"""


def test_one_plug_in_scores_detects_and_shares():
    settings = load(THUNDER)
    scorers = settings.scheduling.profiles["default"].scorers
    thunder: list[object] = [each.scorer for each in scorers if each.weight == 3]
    assert settings.flow.gate is not None
    assert thunder == [settings.flow.gate.detector]
    assert thunder == [settings.flow.band.fairness]
    room = "mapped to the room of each endpoint, whose limits are learned"
    assert settings.warnings == (f"thunder: `utilThreshold` is {room}",)


def test_the_order_of_bands_may_be_named():
    settings = load("""
plugins: [{type: strict-band-selection-policy, name: strict}]
featureGates: [flowControl]
flowControl: {bandSelectionPolicyPluginRef: strict}
""")
    order = "because bands go from the highest priority to the lowest"
    assert set(settings.warnings) == {
        "strict: mapped to the order of bands, which is always this one",
        f"flowControl.bandSelectionPolicyPluginRef is without effect here, {order}",
    }
