"""Timed decisions are those that are not timed, whatever plug-in decides."""

import random

import msgspec
import pytest

from epp.app.plugin_timing import PluginTimes
from epp.config.catalogue import PLUGINS
from epp.config.file import POLICIES, load
from epp.errors import RequestError
from epp.model.request import Usage
from epp.model.request_events import Finished
from epp.policy.plugins import Admitter, Filter, Picker, ProfileHandler, Scorer, Screener
from epp.policy.scheduler import Scheduler
from tests.model.rig import Rig
from tests.policy.routing import routed
from tests.policy.test_contract import LEAST, STARTED, types_of
from tests.strategies import request, text

ROLES = ("prefill", "decode", "", "encode", "prefill-decode", "both")
MORE = {
    "disaggregatedset-rollout-screener": {
        "scope": {"labelSelector": "tier in (gold, x)"},
        "revisionGating": {"mode": "sum", "requireRoles": {"values": ["decode"]}},
    }
}
"""The parameters of screeners and admitters that require some."""
POINTS = (Filter, Scorer, Picker, Screener, Admitter)
DECIDING = sorted({*types_of(*POINTS), *MORE})
HANDLERS = {
    "data-parallel-profile-handler": (),
    "disagg-profile-handler": ("decode", "prefill", "encode"),
    "header-profile-handler": ("decode", "prefill"),
    "pd-profile-handler": ("prefill", "decode"),
    "slo-aware-profile-handler": ("default", "slo"),
    "single-profile-handler": (),
}
"""Their profiles, each with the filter of its name, if there is one; () for one without."""


def plugin(kind, **more):
    parameters = {**LEAST, **MORE}.get(kind)
    return {"type": kind, **({"parameters": parameters} if parameters else {}), **more}


def written(kind):
    """Configure a plug-in of a type so that it takes part in decisions."""
    plugins = [plugin(kind)]
    if not isinstance(STARTED.get(kind), Picker):
        plugins.append({"type": "max-score-picker"})
    return msgspec.json.encode({"plugins": plugins}).decode()


def staged(kind):
    """Configure a handler with its profiles."""
    shared, names = ("queue-scorer", "max-score-picker"), HANDLERS[kind]
    filters = {name: {f"{name}-filter"} & PLUGINS.keys() for name in names or ("one",)}
    types = [kind, "prefix-based-pd-decider", *sorted(set().union(*filters.values())), *shared]
    plugins = [plugin(each) for each in types]
    profiles = [
        {"name": name, "plugins": [{"pluginRef": each} for each in (*its, *shared)]}
        for name, its in filters.items()
    ]
    return msgspec.json.encode({"plugins": plugins, "schedulingProfiles": profiles}).decode()


class Desk:
    """A policy over six endpoints of unequal role and load, timed or not."""

    def __init__(self, configuration, *, timed):
        self.rig = Rig(0)
        for number, role in enumerate(ROLES):
            labels = {"tier": ("gold", "x")[number % 2]} | ({"llm-d.ai/role": role} if role else {})
            self.rig.add(f"pod-{number}", f"10.0.0.{number + 1}", labels=labels)
            self.rig.report(f"pod-{number}", waiting=number % 3, kv_usage=number / 10, at=1.0)
        draw = random.Random(7).randrange  # noqa: S311 (a test's)
        scheduling = load(configuration, below=draw).scheduling
        self.timer = PluginTimes(scheduling.plugin_names) if timed else None
        self.scheduler = Scheduler(self.rig.fleet, scheduling, draw)

    def decisions(self, count=12):
        for number in range(count):
            self.rig.now += 0.3
            wanted = request(
                f"r{number}",
                text(40 + 90 * (number % 4), "ab"[number % 2]),
                headers={"x-session-id": str(number % 3), "x-tier": "gold"},
                priority=number % 3 - 1,
            )
            try:
                decision = routed(self.scheduler, wanted, self.rig.now, self.timer)
            except RequestError as error:
                yield repr(error)
                continue
            yield (
                [each.id for each in decision.endpoints],
                [each.endpoint.id for each in decision.stages],
                decision.profile,
                decision.headers,
                list(decision.totals),
                [(score.plugin, list(score.values)) for score in decision.scores],
                decision.predicted_ttft,
            )
            if number % 2:
                self.rig.apply(Finished(wanted.id, Usage(100, 20, 16)))


def both(configuration, count=12):
    return [list(Desk(configuration, timed=timed).decisions(count)) for timed in (False, True)]


def test_every_type_is_tested():
    """What has the method of an extension point that is timed, or handles profiles."""
    methods = ("filter", "score", "pick", "screen", "admit")
    acting = {each for each in PLUGINS if any(hasattr(PLUGINS[each], name) for name in methods)}
    assert acting - set(DECIDING) == set()
    handlers = {each for each in STARTED if isinstance(STARTED[each], ProfileHandler)}
    assert handlers <= set(HANDLERS)


@pytest.mark.parametrize("kind", DECIDING)
def test_every_type_decides_alike(kind):
    plain, timed = both(written(kind))
    assert plain == timed
    desk = Desk(written(kind), timed=True)
    assert len(list(desk.decisions(3))) == 3
    assert desk.timer is not None
    (family, *_) = desk.timer.collect()
    assert f'plugin_type="{kind}"' in family.lines()


@pytest.mark.parametrize("kind", HANDLERS)
def test_every_handler_decides_alike(kind):
    plain, timed = both(staged(kind))
    assert plain == timed


def test_round_robin_does_not_stumble_where_a_decision_is_timed():
    desk, picked = Desk(POLICIES["round-robin"], timed=True), []
    for number in range(200):
        timer = None if number % 64 else desk.timer
        decision = routed(desk.scheduler, request(f"r{number}"), desk.rig.now, timer)
        names = [each.endpoint.name for each in decision.candidates]
        assert len(names) == 4
        picked.append(names.index(decision.endpoint.name))
    assert picked == [number % 4 for number in range(200)]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_every_policy_decides_alike(policy):
    plain, timed = both(policy, 40)
    assert plain == timed
