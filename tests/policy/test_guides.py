"""Profiles that llm-d's guides write, from the file to where requests go."""

from base64 import b64decode

from epp.config.file import load
from epp.model.request import RequestId
from epp.model.request_events import FirstToken
from epp.policy.scheduler import Scheduler
from tests.model.rig import LONG, Rig
from tests.policy.routing import routed
from tests.strategies import request, text


class Desk:
    """Routes requests over some pods by a file."""

    def __init__(self, plugins, pods=3):
        self.rig = Rig(pods)
        self.scheduling = load(f"plugins: [{plugins}]").scheduling
        self.scheduler = Scheduler(self.rig.fleet, self.scheduling, lambda _: 0)
        self.sent = 0

    def send(self, *texts, **more):
        """Return the request and the decision on it."""
        self.sent += 1
        asked = request(f"r{self.sent}", *texts, **more)
        return asked, routed(self.scheduler, asked, self.rig.now)

    def pod(self, *texts, **more):
        return self.send(*texts, **more)[1].endpoint.name

    def answer(self, number):
        self.rig.fleet.apply(FirstToken(RequestId(f"r{number}")), self.rig.now)


STICKY = """
{type: prefix-cache-affinity-filter, parameters: {maxTTFTPenaltyMs: 1000, peakPrefillThroughput:
1000}}, {type: token-load-scorer}, {type: inflight-load-producer},
{type: approx-prefix-cache-producer}"""


def test_a_prompt_stays_where_it_is_cached_until_that_is_a_second_behind():
    desk = Desk(STICKY)
    assert desk.pod(LONG) == "pod-0"  # 1000 tokens, at 1000 a second
    assert desk.pod(text(600, "other")) == "pod-1"
    desk.answer(1)
    assert desk.pod(LONG) == "pod-0"
    assert desk.pod(LONG + text(240, "and this")) == "pod-0"  # 1000 of 1240: 81 %
    # pod-0 has the 240 and the ends of two, pod-2 nothing: less than a second behind
    assert desk.pod(LONG) == "pod-0"
    cold = {desk.pod(LONG + text(900, f"{each}")) for each in range(6)}  # 53 %: anywhere
    assert "pod-0" in cold
    assert desk.pod(LONG) != "pod-0"  # and so more than a second behind


def test_a_session_keeps_its_endpoint_by_the_token_of_the_response():
    desk = Desk("{type: active-request-scorer}, {type: session-affinity-filter}")
    asked, decision = desk.send()
    (processor,) = desk.scheduling.response_processors
    ((header, token),) = processor.response_headers(asked, decision, decision.endpoint.target)
    assert b64decode(token).decode() == decision.endpoint.id
    assert desk.pod() != decision.endpoint.name  # the fewest requests
    for _ in range(3):
        assert desk.pod(headers={header: token}) == decision.endpoint.name


def test_a_session_keeps_its_endpoint_by_its_id():
    desk = Desk(
        "{type: active-request-scorer},"
        " {type: session-affinity-scorer, parameters: {strategy: session_id}}"
    )
    homes = {each: desk.pod(headers={"x-session-id": each}) for each in "abc"}
    assert sorted(homes.values()) == ["pod-0", "pod-1", "pod-2"]
    for session, home in homes.items():
        assert desk.pod(headers={"x-session-id": session}) == home


def test_cold_requests_go_around():
    desk = Desk("{type: no-hit-lru-scorer}")
    assert [desk.pod(text(200, f"{each}")) for each in range(5)] == [
        "pod-0",
        "pod-1",
        "pod-2",
        "pod-0",
        "pod-1",
    ]
