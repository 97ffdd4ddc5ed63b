"""Of an endpoint that is gone nothing is kept: by the fleet, by any plug-in."""

import sys
from contextlib import suppress
from functools import partial

import pytest

from epp.app.cache_sources import build_fleet
from epp.config.catalogue import PLUGINS
from epp.config.file import load
from epp.errors import RequestError
from epp.model.endpoint import Endpoint, Load
from epp.model.events import (
    EndpointRemoved,
    EndpointUpserted,
    LoadReported,
    ModelsListed,
    ScrapeFailed,
    ScrapeFailure,
)
from epp.model.pods.pods import CLASS_LABEL
from epp.model.request import Usage
from epp.model.request_events import Finished, FirstToken
from epp.policy.flow.flow_control import FlowControl
from epp.policy.scheduler import Scheduler
from tests.config.odd_parameters import text_of, whole
from tests.policy.routing import routed
from tests.reachable import reachable
from tests.strategies import SECRET, request

COUNT = 12
MARK = "departed"
"""Part of all that only endpoints have which will be gone."""
ROLES = ("prefill", "decode", "both", "encode", "")


def endpoint(number, mark):
    labels = {
        CLASS_LABEL: f"{mark}-class-{number % 3}",
        "llm-d.ai/role": ROLES[number % len(ROLES)],
        "l": f"{mark}-{number}",
        "a": f"{mark}-{number}",
    }
    address = f"10.0.{len(mark)}.{number}"
    return Endpoint("default", f"{mark}-{number}", address, 8000, labels=labels, uid=f"{mark}-u")


def ask(fleet, route, number, now):
    asked = request(
        f"r{number}",
        f"{number % 7} hello " * 300,
        headers={"x-session-id": f"s{number % 9}", "h": f"s{number % 9}"},
        fairness_id=f"f{number % 5}",
        multimodal=True,
    )
    with suppress(RequestError):
        route(asked, now)
        fleet.apply(FirstToken(asked.id), now + 0.1)
        fleet.apply(Finished(asked.id, Usage(700, 20, 10)), now + 0.2)


def named_after(values, mark):
    kinds = str | bytes
    return {str(each)[:80] for each in values if isinstance(each, kinds) and mark in str(each)}


def configurations(kind):
    parameters = whole(kind)
    yield load(text_of(kind, parameters))
    if "sessionIdConfig" in parameters:
        yield load(text_of(kind, {**parameters, "strategy": "session_id"}))


def served(settings):
    """Return a fleet and its flow control, of which all endpoints but one are gone."""
    fleet = build_fleet(settings, SECRET, 5)
    scheduler = Scheduler(fleet, settings.scheduling, lambda most: most // 2)
    flow = FlowControl(scheduler, fleet, settings.flow)
    there = [endpoint(number, MARK) for number in range(COUNT)]
    for number, each in enumerate(there):
        fleet.apply(EndpointUpserted(each), 0.0)
        fleet.apply(ModelsListed(each.id, frozenset({"m", f"{MARK}-model"}), {"m": 10**6}), 0.0)
        report = Load(waiting=1.0, running=2.0, kv_usage=0.5, num_blocks=99, block_size=16, at=1.0)
        fleet.apply(LoadReported(each.id, report), 1.0)
        if number % 3:
            fleet.apply(ScrapeFailed(each.id, ScrapeFailure.LATE), 1.0)
    for number in range(60):
        ask(fleet, flow.route, number, 2.0 + number / 10)
    fleet.apply(EndpointUpserted(endpoint(0, "stays")), 9.0)
    for each in there:
        fleet.apply(EndpointRemoved(each.id), 10.0)
    for number in range(60, 70):
        ask(fleet, flow.route, number, 1000.0 + number)
    return fleet, flow


@pytest.mark.parametrize("kind", PLUGINS)
def test_nothing_of_them_is_kept(kind):
    for settings in configurations(kind):
        assert named_after(reachable(served(settings)), MARK) == set()


def steps(call):
    """Return how many lines of Python a call takes, those of loops each time."""
    count = 0

    def trace(_frame, event, _argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def steps_to_remove(settings, requests):
    """Return what the end of an endpoint takes that was sent so many requests of their own."""
    fleet = build_fleet(settings, SECRET, 5)
    scheduler = Scheduler(fleet, settings.scheduling, lambda most: most // 2)
    target = endpoint(2, "x")
    fleet.apply(EndpointUpserted(target), 0.0)
    for number in range(requests):
        asked = request(
            f"r{number}",
            f"{number} hello " * 300,
            headers={"x-session-id": f"s{number}", "h": f"s{number}"},
            fairness_id=f"f{number}",
        )
        with suppress(RequestError):
            routed(scheduler, asked, 1.0 + number / 10)
            fleet.apply(Finished(asked.id, Usage(700, 20, 10)), 1.05 + number / 10)
    gone = EndpointRemoved(target.id)
    heard = [
        each.listener for each in settings.scheduling.subscriptions if type(gone) in each.kinds
    ]
    return sum(steps(partial(each, gone, 1000.0, False)) for each in heard)


@pytest.mark.parametrize("kind", PLUGINS)
def test_the_end_of_an_endpoint_takes_the_same_whatever_was_sent_to_it(kind):
    few = [steps_to_remove(settings, 20) for settings in configurations(kind)]
    many = [steps_to_remove(settings, 80) for settings in configurations(kind)]
    assert all(more <= 1.1 * less + 10 for less, more in zip(few, many, strict=True)), (few, many)
