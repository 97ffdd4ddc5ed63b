"""Odd values for every parameter of every plug-in type, and picks that they must not break."""

import json
import re
from contextlib import suppress
from math import inf, nan
from typing import Any

import msgspec

from epp.app.cache_sources import build_fleet
from epp.config.catalogue import PLUGINS
from epp.errors import PickerFault, RequestError
from epp.model.endpoint import Endpoint, Load
from epp.model.events import EndpointRemoved, EndpointUpserted, LoadReported
from epp.model.request import Usage
from epp.model.request_events import Finished, FirstToken
from epp.policy.scheduler import Scheduler
from epp.values import replaced
from tests.config.test_every_parameter import BESIDE, WANTED
from tests.policy.routing import routed
from tests.strategies import SECRET, request

BEYOND = (inf, -inf, nan, 2**63, -(2**63), 2**70, 1e308, -1e308, 1e155, 5e-324, -1e-308)
"""Numbers that no configuration may have."""
WHOLE = (0, 1, -1, 10**15, 2**40)
FRACTIONS = (0.5, 1e-9, -1e-9)
FLOATS = (-0.0, 1e15, -1e15)
"""They may stand for whole numbers."""
WITHIN = (*WHOLE, *FRACTIONS, *FLOATS)
TEXTS = ("x", "", " ", "0", "-1s", "9" * 60 + "h", "9" * 400 + "s", "9E", "\x7f", "é" * 99)
LISTS: tuple[list[Any], ...] = ([], [""], [[]], [{}], [None])
OTHERS = (inf, "1e9", None, True, {"x": inf})
"""Among them a number that no configuration may have: it is refused before plug-ins see any."""
KINDS: tuple[tuple[Any, ...], ...] = (
    WHOLE,
    FRACTIONS,
    FLOATS,
    TEXTS,
    LISTS,
    ({}, {"": 0}),
    *((other,) for other in OTHERS),
)
"""Odd values: where the first of a kind is refused for its kind, each other is."""

PROFILES = {
    "disagg-profile-handler": ("decode", "prefill", "encode"),
    "pd-profile-handler": ("decode", "prefill"),
    "header-profile-handler": ("decode", "x"),
    "slo-aware-profile-handler": ("default", "slo"),
}
"""The profiles that a handler runs, for those that do not run the one profile there is."""


def whole(kind):
    """Return the parameters of a type with every default written out, optional groups too."""
    written = WANTED.get(kind, {})
    return _filled(PLUGINS[kind], written)


def _filled(struct, written):
    with suppress(msgspec.ValidationError):
        found = msgspec.to_builtins(msgspec.convert(written, struct))
        for name, group in _groups(struct):
            if found.get(name) is None:
                inner = _filled(group, {})
                tried = {**found, name: inner}
                with suppress(msgspec.ValidationError):
                    msgspec.convert(tried, struct)
                    found = tried
        return found
    return written


def _groups(struct):
    for field in msgspec.structs.fields(struct):
        for each in (field.type, *getattr(field.type, "__args__", ())):
            if isinstance(each, type) and issubclass(each, msgspec.Struct):
                yield field.encode_name, each


def paths(value, path=()):
    """Return the path of each value within others."""
    keys = value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    for key in keys:
        each = value[key]
        yield (*path, key)
        yield from paths(each, (*path, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


def put(value, path, other):
    """Return a value with another one at a path."""
    if not path:
        return other
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(copy[path[0]], path[1:], other)
    return copy


def text_of(kind, parameters, weight=1):
    """Write a configuration that has a plug-in of a type do what it is for."""
    plugins = [{"type": kind, "parameters": parameters}]
    plugins += [{"type": BESIDE[kind]}] if kind in BESIDE else []
    document = {"plugins": plugins}
    if kind in PROFILES:
        plugins.append({"type": "queue-scorer"})
        document["schedulingProfiles"] = [
            {"name": name, "plugins": [{"pluginRef": "queue-scorer", "weight": weight}]}
            for name in PROFILES[kind]
        ]
    text = json.dumps(document).replace("Infinity", ".inf").replace("NaN", ".nan")
    return re.sub(r"(\d)(e[-+]\d)", r"\1.0\2", text)  # YAML 1.1: a float has a dot


def endpoints():
    """Return endpoints of all kinds: labelled and not, of roles."""
    labels: tuple[dict[str, str], ...] = (
        {},
        {"llm-d.ai/role": "prefill"},
        {"llm-d.ai/role": "decode", "l": "x", "a": "9" * 40},
        {"llm-d.ai/role": "both", "l": "", "llm-d.ai/context-length-range": "0-99999999"},
        {"llm-d.ai/context-length-range": "x"},
    )
    return [
        Endpoint("default", f"pod-{at}", f"10.0.0.{at + 1}", 8000, labels=each)
        for at, each in enumerate(labels)
    ]


LOADS = (
    Load(waiting=0.0, running=0.0, kv_usage=0.0, at=1.0),
    Load(waiting=1e6, running=1e6, kv_usage=1.0, at=1.0, attributes={"a": inf, "x": nan}),
    Load(waiting=3.0, running=2.0, kv_usage=0.5, num_blocks=100, block_size=16, at=1.0),
)
REQUESTS = (
    request("r0"),
    request("r1", "hello " * 900),
    request("r2", "hello " * 900, fairness_id="user", headers={"h": "x", "x-session-id": "s"}),
    request("r3", [*range(5000)], fairness_id="user", priority=-1, max_tokens=1),
    request("r4", "", headers={"x-slo-ttft-ms": "1e308", "x-slo-tpot-ms": "nan", "h": ""}),
    request("r5", "hello " * 900, multimodal=True, objective="o", fairness_id="other"),
    request("r6", "x" * 70_000, fairness_id="user"),
)


def pick(settings):
    """Make picks with a configuration; raises what a request would be failed by."""
    fleet = build_fleet(settings, SECRET, 5)
    scheduler = Scheduler(fleet, settings.scheduling, lambda most: most // 2)
    there = endpoints()
    for each in there:
        fleet.apply(EndpointUpserted(each), 0.0)
    for each, load_ in zip(there, LOADS, strict=False):
        fleet.apply(LoadReported(each.id, load_), 1.0)
    now = 2.0
    for turn in range(2):
        for asked in REQUESTS:
            now += 0.4 + 400 * turn
            _exchange(fleet, scheduler, settings, asked, now)
        fleet.apply(EndpointRemoved(there[turn].id), now)
    for number in range(3):
        asked = replaced(REQUESTS[1], id=f"end-{number}")
        _exchange(fleet, scheduler, settings, asked, now + 1e6)


def _exchange(fleet, scheduler, settings, asked, now):
    scheduling = settings.scheduling
    for processor in scheduling.request_processors:
        asked = processor.process_request(asked)
    try:
        decision = routed(scheduler, asked, now)
    except PickerFault:
        raise
    except RequestError:
        return
    for processor in scheduling.response_processors:
        processor.response_headers(asked, decision, decision.endpoint.target)
    usage = Usage(prompt_tokens=1000, completion_tokens=300, cached_tokens=10)
    for reporter in scheduling.usage_reporters:
        reporter.report(usage)
    fleet.apply(FirstToken(asked.id), now + 0.1)
    fleet.apply(Finished(asked.id, usage), now + 0.3)
