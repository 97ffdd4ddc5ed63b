"""vllm-router's session policies: the rules of 0.1.17, worked out by hand."""

from math import exp

import pytest

from epp.config.file import load
from epp.errors import ConfigError
from epp.policy.client_keys import client_key
from epp.policy.peers.vllm_router import SessionHeaders
from tests.policy.peers.desk import Desk, tokens
from tests.strategies import request

CACHE_AWARE, KV_AWARE = "vllm-cache-aware-scorer", "vllm-kv-aware-scorer"
RING, STICKY = "vllm-consistent-hash-scorer", "vllm-sticky-least-loaded-scorer"


@pytest.mark.parametrize(
    ("loads", "chosen"),
    [
        ((3, 5, 0), 0),  # pods 0 and 1 have all of the prompt
        ((5, 3, 0), 1),
        ((4, 4, 0), 0),
        ((64, 65, 1), 0),
        ((66, 66, 1), 2),  # 65 more, and more than half as many again
    ],
)
def test_of_those_that_have_the_prefix_the_least_loaded_one(loads, chosen):
    at = Desk(CACHE_AWARE)
    only = ("10.0.0.1:8000",), ("10.0.0.2:8000",)
    assert [at.routed(tokens(6), subset=each) for each in only] == [0, 1]
    assert at.routed(tokens(3), subset=("10.0.0.3:8000",)) == 2
    at.load(*loads)
    assert at.best(tokens(6)) == [chosen]


def test_a_short_match_is_none():
    at = Desk(CACHE_AWARE, pods=2, cacheThreshold=0.5)
    assert at.routed(tokens(1)) == 0
    assert at.best(tokens(1)[:16] + [7] * 16) == [0]  # 16 of 32: the first of equally loaded ones
    at.load(1, 0)
    assert at.best(tokens(1)[:16] + [7] * 16) == [1]
    assert at.best(tokens(1)[:16] + [7] * 15) == [0]


def test_tokens_to_prefill_times_requests():
    """Pod 0 computes 129 tokens and has 80 of the next 129, pod 1 has a request without a prompt.

    (129 + 129 - 80) * 2 = 356, 129 * 2 = 258, 129 * 1 = 129.
    """
    at = Desk(KV_AWARE)
    assert at.route(tokens(8)) == 0
    at.load(0, 1, 0)
    second = [*tokens(8)[:80], *tokens(3, 1000)]
    assert at.scores(second) == {"pod-0": 129 / 356, "pod-1": 0.5, "pod-2": 1}
    at.begin(0)
    assert at.scores(second) == {"pod-0": 98 / 98, "pod-1": 98 / 258, "pod-2": 98 / 129}
    at.end()
    assert at.scores(second)["pod-2"] == 49 / 129


def test_a_temperature_makes_weights_of_costs():
    at = Desk(KV_AWARE, routerTemperature=2.0)
    at.routed(tokens(8))
    at.load(0, 1, 0)
    second = [*tokens(8)[:80], *tokens(3, 1000)]  # 49, 258 and 129
    expected = {"pod-0": 1, "pod-1": exp(-1 / 2), "pod-2": exp(-80 / (209 * 2))}
    assert at.scores(second) == pytest.approx(expected)


def asked(at, session, *prompts, **more):
    return at.routed(*prompts, headers={"x-session-id": session} if session else {}, **more)


@pytest.mark.parametrize(
    ("headers", "session"),
    [
        ({"x-user-id": "u", "x-session-id": "s"}, "x-session-id:s"),
        ({"x-session-id": "", "x-tenant-id": "t"}, "x-tenant-id:t"),
        ({"x-correlation-id": "c"}, "x-correlation-id:c"),
        ({"x-request-id": "one of each request's own"}, ""),
        ({}, ""),
    ],
)
def test_the_first_header_that_is_not_empty_names_the_session(headers, session):
    assert SessionHeaders().session(request(headers=headers)) == session


def test_headers_may_be_others():
    settings = SessionHeaders(session_headers=[" X-Chat "])
    assert settings.session(request(headers={"x-chat": "1"})) == "x-chat:1"


def test_a_session_stays_at_its_place_on_the_ring_whatever_the_load():
    at = Desk(RING, 4)
    homes = {name: asked(at, name, tokens(2)) for name in map(str, range(40))}
    assert set(homes.values()) == {0, 1, 2, 3}
    at.load(300, 200, 100, 0)
    assert {name: asked(at, name, tokens(9, 70)) for name in homes} == homes
    at.remove(2)
    after = {name: asked(at, name) for name in homes}
    assert {name for name in homes if after[name] != homes[name]} == {
        name for name, home in homes.items() if home == 2
    }


def test_while_the_place_is_no_candidate_the_first_one_is_chosen():
    at = Desk(RING, 3)
    name = next(each for each in map(str, range(99)) if asked(at, each) == 2)
    others = ("10.0.0.2:8000", "10.0.0.1:8000")
    assert at.best(headers={"x-session-id": name}, subset=others) == [0]
    assert asked(at, name) == 2


def test_without_a_session_equal_prompts_have_equal_places():
    at = Desk(RING, 4)
    prompts = [tokens(3, start) for start in range(0, 40_000, 1000)]
    first = [asked(at, "", each) for each in prompts]
    assert [asked(at, "", each) for each in prompts] == first
    assert set(first) == {0, 1, 2, 3}
    assert {asked(at, "", [word]) for word in range(40)} == {0, 1, 2, 3}  # less than a block
    assert len({asked(at, "", [*tokens(3)[:48], *range(9, 9 + more)]) for more in range(16)}) > 1
    assert asked(at, "") == asked(at, "")


def test_new_sessions_go_where_the_fewest_are():
    """Six sessions make two at each of three, whatever is under way there."""
    at = Desk(STICKY)
    at.load(9, 5, 0)
    homes = {name: asked(at, name) for name in "abcdef"}
    assert sorted(homes.values()) == [0, 0, 1, 1, 2, 2]
    at.load(30, 20, 10)
    assert {name: asked(at, name) for name in homes} == homes


def test_of_equals_the_same_one_is_chosen_again():
    """The choice is the hash's: another table comes to the same."""
    homes = [asked(Desk(STICKY, 5), name) for name in map(str, range(30))]
    assert homes == [asked(Desk(STICKY, 5), name) for name in map(str, range(30))]
    assert set(homes) == {0, 1, 2, 3, 4}


def test_requests_without_a_session_are_not_counted():
    at = Desk(STICKY, 2)
    home = asked(at, "a")
    other = 1 - home
    assert [asked(at, "", tokens(2, start)) for start in range(0, 5000, 1000)] == [other] * 5
    assert asked(at, "b") == other


def test_a_session_is_forgotten_once_it_is_idle():
    at = Desk(STICKY, 2, sessionExpirationSecs=100)
    home = asked(at, "a")
    other = 1 - home
    at.rig.now += 99
    assert asked(at, "a") == home
    at.rig.now += 99
    assert asked(at, "b") == other
    at.rig.now += 2
    assert asked(at, "b") == other  # `a` has been idle for 101 seconds, and is dropped
    assert list(at.scorer._sessions) == [client_key("x-session-id:b")]
    assert asked(at, "c") == home


def test_a_session_moves_for_good_where_its_endpoint_is_no_candidate():
    at = Desk(STICKY, 2)
    home = asked(at, "a")
    other = 1 - home
    assert asked(at, "a", subset=(f"10.0.0.{other + 1}:8000",)) == other
    assert asked(at, "a") == other


def test_an_endpoint_that_goes_takes_its_sessions_with_it():
    at = Desk(STICKY, 2)
    homes = {name: asked(at, name) for name in "abcd"}
    at.remove(0)
    assert {asked(at, name) for name in homes} == {1}
    at.rig.add("pod-0", "10.0.0.1")
    assert {asked(at, name) for name in homes} == {1}
    assert asked(at, "e") == 0
    at.remove(1)
    at.rig.add("pod-1", "10.0.0.2")
    assert asked(at, "f") == 1


def test_a_session_keeps_its_endpoint_when_another_scorer_overrules_it():
    at = Desk(STICKY, 2)
    home = asked(at, "a")
    at.scheduler.commit(
        request("other", headers={"x-session-id": "a"}),
        at.rig.quote("other"),
        at.decide(headers={"x-session-id": "b"}),  # the other one
        at.rig.now,
    )
    assert asked(at, "a") == home


def test_a_table_that_is_full_forgets_who_was_idle_the_longest(monkeypatch):
    monkeypatch.setattr("epp.policy.peers.vllm_router._MAX_SESSIONS", 3)
    at = Desk(STICKY, 2)
    for name in "abcad":
        asked(at, name)
    assert list(at.scorer._sessions) == [client_key(f"x-session-id:{each}") for each in "cad"]


@pytest.mark.parametrize(
    ("kind", "name", "value", "words"),
    [
        (KV_AWARE, "routerTemperature", -1, "a number from 0"),
        (RING, "virtualNodes", 0, "such as 160"),
        (RING, "sessionHeaders", '[""]', "headers' names"),
        (STICKY, "sessionExpirationSecs", 0, "such as 7200"),
        (STICKY, "sessionHeaders", '["x", " "]', "headers' names"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(kind, name, value, words):
    with pytest.raises(ConfigError, match=words) as caught:
        load(f"plugins: [{{type: {kind}, parameters: {{{name}: {value}}}}}]")
    assert name in str(caught.value)
