"""Other fleets: unequal pods, LoRA adapters, prefill and decode apart, and long answers."""

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from bench.figures import Budget
from bench.hold.loads import AT_ONCE, CAPACITY_PER_S, HOLDING, OTHER, PODS, SECONDS
from bench.hold.runs import DRAIN_SECONDS, POD, Case, Result
from bench.hold.traffic import Client
from epp.policy.flow.settings import FlowSettings
from epp.replay.engines.presets import preset
from epp.replay.plan import PodPlan, Policy, RunPlan, Traffic
from epp.replay.policies import NAMED

_LOAD = 1.2
_SPEEDS = (1.0, 0.4)
_ADAPTERS, _MAX_ADAPTERS = 24, 4
"""Adapters that requests are for, and slots for them of each pod."""
_APART_LOAD = 0.9
"""To what as many pods serve that do both: four of eight compute all prompts."""
_SECONDS_PER_TOKEN = 2e-6
"""What the KV cache of a token takes from one pod to another."""
_APART = """
plugins:
- {type: prefix-based-pd-decider, parameters: {nonCachedTokens: 256}}
- {type: disagg-profile-handler, parameters: {deciders: {prefill: prefix-based-pd-decider}}}
- {type: prefill-filter}
- {type: decode-filter}
- {type: least-ttft-picker}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: least-ttft-picker}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: least-ttft-picker}]}
"""
_POLICIES_APART = {
    HOLDING: Policy(HOLDING, _APART, flow=FlowSettings()),
    AT_ONCE: Policy(AT_ONCE, _APART),
}
_REASONING = "reasoning:rate=0.33,sessions=800"
"""Prompts of 1,250 tokens, answers of 8,000: nine tenths of what two of its pods serve."""
_REASONING_PODS = (PodPlan(limits=preset("8b-h100").limits),) * 2
UNEQUAL, ADAPTERS, APART, REASONING = "unequal", "adapters", "apart", "reasoning"
COMPARED: Mapping[str, str] = {
    UNEQUAL: OTHER,
    ADAPTERS: OTHER,
    APART: AT_ONCE,
    REASONING: AT_ONCE,
}
"""What holding is compared with in each fleet."""
_QUARTER = Budget(most=0.25)
FIGURES: Mapping[str, tuple[str, str, Budget | None]] = {
    "ttft_ratio_unequal": (f"mean TTFT at 120 %, half of the pods slow ÷ {OTHER}", "", _QUARTER),
    "ttft_ratio_adapters": (
        f"mean TTFT at 120 %, {_ADAPTERS} LoRA adapters ÷ {OTHER}",
        "",
        _QUARTER,
    ),
    "ttft_ratio_apart": (
        f"mean TTFT, four pods prefill and four decode ÷ {AT_ONCE}",
        "",
        Budget(most=1.02),
    ),
    "ttft_ratio_reasoning": (
        f"mean TTFT of long answers at 90 % ÷ {AT_ONCE}",
        "",
        Budget(most=1.02),
    ),
}


def cases(seed: int) -> Iterator[tuple[str, Case]]:
    """Yield the runs of a seed."""
    for fleet, other in COMPARED.items():
        for name in (HOLDING, other):
            yield f"{name} {fleet}", _case(fleet, name, seed)


def figures(results: Mapping[str, Result]) -> Iterable[tuple[str, float]]:
    """Yield the figures of a seed by their keys."""
    for fleet, other in COMPARED.items():
        (ours,), (theirs,) = (results[f"{name} {fleet}"].values() for name in (HOLDING, other))
        yield f"ttft_ratio_{fleet}", ours.ttft / theirs.ttft


def _case(fleet: str, name: str, seed: int) -> Case:
    if fleet == REASONING:
        plan = RunPlan(policy=NAMED[name], pods=_REASONING_PODS, seed=seed)
        return Case(offered=Traffic(source=_REASONING, seed=seed), plan=plan)
    load, policy, adapters, seconds = _LOAD, NAMED[name], 0, 0.0
    pods: tuple[PodPlan, ...] = (POD,) * PODS
    if fleet == UNEQUAL:
        pods = tuple(replace(POD, speed=speed) for speed in _SPEEDS) * (PODS // len(_SPEEDS))
        load *= sum(_SPEEDS) / len(_SPEEDS)
    elif fleet == ADAPTERS:
        adapters = _ADAPTERS
        pods = (replace(POD, limits=replace(POD.limits, max_loras=_MAX_ADAPTERS)),) * PODS
    else:
        load, policy, seconds = _APART_LOAD, _POLICIES_APART[name], _SECONDS_PER_TOKEN
        pods = tuple(replace(POD, role=role) for role in ("prefill", "decode")) * (PODS // 2)
    client = Client(name="", rate=load * CAPACITY_PER_S, until=SECONDS, adapters=adapters)
    plan = RunPlan(
        policy=policy,
        pods=pods,
        seed=seed,
        drain_seconds=DRAIN_SECONDS,
        transfer_seconds_per_token=seconds,
    )
    return Case(offered=(client,), plan=plan)
