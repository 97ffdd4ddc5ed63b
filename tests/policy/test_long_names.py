"""Clients choose names as long as headers and bodies may be; no plug-in keeps one at its length."""

from contextlib import suppress

import pytest

from epp.app.cache_sources import build_fleet
from epp.config.catalogue import PLUGINS
from epp.config.file import load
from epp.errors import MalformedRequest, NoEndpoints
from epp.model.events import EndpointUpserted
from epp.model.request import Usage
from epp.model.request_events import Finished, FirstToken
from epp.policy.scheduler import Scheduler
from tests.config.odd_parameters import endpoints, text_of, whole
from tests.policy.routing import routed
from tests.reachable import longest_text
from tests.strategies import SECRET, request

LENGTH = 50_000
LONGEST_KEPT = 2000  # the longest of docstrings and paths
HEADERS = ("x-session-id", "x-session-token", "x-user-id", "h", "cookie", "session-id")
BY_ID = {"strategy": "session_id"}


def settings_of(kind):
    """Return each configuration of a type that may keep another name."""
    parameters = whole(kind)
    yield load(text_of(kind, parameters))
    if "sessionIdConfig" in parameters:
        yield load(text_of(kind, {**parameters, **BY_ID}))


def named(number):
    """Return a request of which everything that may have a name has a long one of its own."""
    word = f"{number}" + "k" * LENGTH
    return request(
        f"r{number}",
        "hello " * 50,
        headers=dict.fromkeys(HEADERS, word),
        fairness_id=word,
        objective=word,
        cache_salt=word,
        model=word,
        target_model=word,
    )


@pytest.mark.parametrize("kind", PLUGINS)
def test_no_long_name_is_kept(kind):
    for settings in settings_of(kind):
        fleet = build_fleet(settings, SECRET, 5)
        scheduler = Scheduler(fleet, settings.scheduling, lambda most: most // 2)
        for each in endpoints():
            fleet.apply(EndpointUpserted(each), 0.0)
        for number in range(3):
            asked = named(number)
            for processor in settings.scheduling.request_processors:
                asked = processor.process_request(asked)
            with suppress(NoEndpoints, MalformedRequest):
                routed(scheduler, asked, 1.0 + number)
            fleet.apply(FirstToken(asked.id), 1.1 + number)
            fleet.apply(Finished(asked.id, Usage(100, 30)), 1.3 + number)
        assert longest_text((scheduler, settings)) <= LONGEST_KEPT
