"""Session affinity: tokens that clients keep, and bindings that the picker keeps."""

from base64 import b64decode, b64encode

import msgspec
import pytest

from epp.config.catalogue import PLUGINS
from epp.config.plugins import Plugins
from epp.config.schema import PluginSpec
from epp.model.decision import Decision
from epp.model.endpoint import Endpoint, Target
from epp.policy.handlers import DataParallelProfileHandler
from epp.policy.plugins import CommitObserver, ResponseProcessor
from epp.policy.producers.identity import SessionIdProducer
from epp.policy.sessions import SessionAffinityFilter, SessionAffinityScorer
from epp.values import replaced
from tests.policy.started import kept, started
from tests.strategies import candidate, endpoint, request

ASKED = [candidate("a"), candidate("b")]
TOKEN_B = b64encode(b"default/b").decode()


def decision(name, among=ASKED, **more):
    return Decision(endpoints=(endpoint(name),), candidates=among, **more)


@pytest.mark.parametrize(
    ("token", "scores", "names"),
    [
        (TOKEN_B, [0, 1], ["b"]),
        (b64encode(b"default/gone").decode(), [0, 0], ["a", "b"]),
        ("default/b", [0, 0], ["a", "b"]),
        ("", [0, 0], ["a", "b"]),
        (b64encode(b"\xff").decode(), [0, 0], ["a", "b"]),
        ("ü", [0, 0], ["a", "b"]),
    ],
)
def test_a_token_names_an_endpoint(token, scores, names):
    asking = request(headers={"x-session-token": token})
    assert started(SessionAffinityScorer()).score(asking, ASKED) == scores
    assert kept(started(SessionAffinityFilter()).filter(asking, ASKED)) == names


def test_the_response_has_the_token_of_what_served():
    scorer = started(SessionAffinityScorer())
    assert isinstance(scorer, ResponseProcessor)
    assert isinstance(scorer, CommitObserver)
    among = [candidate("a"), *DISTINCT]
    for served, name in ((None, "a"), (Target("10.9.9.9:1"), "a"), (Target("10.0.0.7:8000"), "b")):
        ((header, value),) = scorer.response_headers(request(), decision("a", among), served)
        assert header == "x-session-token"
        assert value == b64encode(f"default/{name}".encode()).decode()


def test_a_rank_behind_a_first_port_is_the_one_in_its_token():
    ranks = [Endpoint("default", f"pod-rank-{at}", "10.0.0.1", 8000 + at) for at in range(3)]
    among = [replaced(candidate("a"), endpoint=each) for each in ranks]
    picked = Decision(endpoints=(ranks[2],), candidates=among)
    sent = DataParallelProfileHandler().schedule(request(), lambda _name, _request: picked)
    scorer = started(SessionAffinityScorer())
    for served in (None, Target("10.0.0.1:8000")):  # the first port is rank 0's own
        ((_, value),) = scorer.response_headers(request(), sent, served)
        assert b64decode(value) == b"default/pod-rank-2"
    behind_one = [replaced(each, endpoint=endpoint(each.endpoint.name)) for each in among]
    picked = Decision(endpoints=(behind_one[2].endpoint,), candidates=behind_one)
    ((_, value),) = scorer.response_headers(request(), picked, Target("10.0.0.1:8000"))
    assert b64decode(value) == b"default/pod-rank-2"


DISTINCT = [replaced(candidate("b"), endpoint=endpoint("b", "10.0.0.7"))]
THIRD = replaced(candidate("c"), endpoint=endpoint("c", "10.0.0.8"))


def test_the_token_of_a_stage():
    struct = msgspec.convert(
        {
            "encodedEndpointHeaderConfig": {"header": " X-Prefill "},
            "profileName": "prefill",
        },
        PLUGINS["session-affinity-scorer"],
    )
    scorer, stage = started(struct), decision("b", profile="prefill")
    decoding = decision("a", [candidate("a"), THIRD], stages=(stage,))
    for served in (None, THIRD.endpoint.target):  # served by a stage that is not asked about
        assert scorer.response_headers(request(), decoding, served) == (("x-prefill", TOKEN_B),)
    assert scorer.response_headers(request(), decision("a"), None) == ()


def by_id(**parameters):
    struct = msgspec.convert(
        {"strategy": "session_id", **parameters}, PLUGINS["session-affinity-filter"]
    )
    return started(struct, session_id_producer=SessionIdProducer(cookie_name="sid"))


def asking(session="s"):
    return request(headers={"x-session-id": session})


def test_a_session_stays_where_its_first_request_went():
    pins = by_id()
    assert kept(pins.filter(asking(), ASKED)) == ["a", "b"]
    pins.committed(asking(), decision("b"), 0)
    assert kept(pins.filter(asking(), ASKED)) == ["b"]
    assert kept(pins.filter(asking("other"), ASKED)) == ["a", "b"]
    pins.committed(request(), decision("b"), 0)  # of no session
    assert kept(pins.filter(request(), ASKED)) == ["a", "b"]
    assert pins.response_headers(asking(), decision("b"), None) == ()
    pins.committed(asking(), decision("a"), 1)  # another was chosen though b was there
    assert kept(pins.filter(asking(), ASKED)) == ["b"]
    pins.committed(asking(), decision("a", ASKED[:1]), 2)  # b was not there
    assert kept(pins.filter(asking(), ASKED)) == ["a"]


def test_an_idle_session_is_forgotten():
    pins = by_id(sessionIdConfig={"evictionTtlSeconds": 60})
    pins.committed(asking(), decision("b"), 0)
    pins.committed(asking(), decision("b"), 50)
    pins.committed(asking("other"), decision("a"), 109)
    assert kept(pins.filter(asking(), ASKED)) == ["b"]
    pins.committed(asking("other"), decision("a"), 111)
    assert kept(pins.filter(asking(), ASKED)) == ["a", "b"]


def test_a_ttl_of_0_is_the_default():
    pins = by_id(sessionIdConfig={"evictionTtlSeconds": 0, "evictionSweepSeconds": 0})
    pins.committed(asking(), decision("b"), 0)
    pins.committed(asking("other"), decision("a"), 299)
    assert kept(pins.filter(asking(), ASKED)) == ["b"]
    pins.committed(asking("other"), decision("a"), 301)
    assert kept(pins.filter(asking(), ASKED)) == ["a", "b"]


def test_the_first_source_that_is_not_empty_counts():
    sources = [{"header": "X-One"}, {"attribute": "SessionID"}, {"header": "x-two"}]
    pins = by_id(sessionIdConfig={"sources": sources})
    pins.committed(request(headers={"cookie": "sid=s1"}), decision("b"), 0)
    pins.committed(request(headers={"x-two": "s2"}), decision("a"), 0)
    for headers, names in (
        ({"x-one": "s1"}, ["b"]),
        ({"x-one": " ", "cookie": "sid=s1", "x-two": "s2"}, ["b"]),
        ({"x-two": "s2"}, ["a"]),
    ):
        assert kept(pins.filter(request(headers=headers), ASKED)) == names


@pytest.mark.parametrize(
    ("kind", "attribute", "parameters"),
    [
        ("agent-identity", "agent-identity", {"additionalSessionHeaders": ["x-mine"]}),
        ("session-id-producer", "SessionID", {"headerName": "x-mine"}),
    ],
)
def test_an_attribute_is_found_whatever_its_producer_is_called(kind, attribute, parameters):
    sources = {"sources": [{"attribute": attribute}]}
    affinity = {"strategy": "session_id", "sessionIdConfig": sources}
    specs = [
        PluginSpec(type="session-affinity-filter", parameters=affinity),
        PluginSpec(type=kind, name="who", parameters=parameters),
    ]
    pins = Plugins(specs)["session-affinity-filter"]
    mine = request(headers={"x-mine": "s1"})
    pins.committed(mine, decision("b"), 0)
    assert kept(pins.filter(mine, ASKED)) == ["b"]


def test_an_agents_session_stays_and_the_pool_is_never_full():
    specs = [
        PluginSpec(type="thunder-agent", name="thunder", parameters={"evictionTtlSeconds": 60}),
        PluginSpec(type="agent-identity", name="who"),
    ]
    thunder = Plugins(specs)["thunder"]
    agent = request(headers={"x-claude-code-session-id": "s1"})
    assert thunder.score(agent, ASKED) == [0, 0]
    thunder.committed(agent, decision("b"), 0)
    assert thunder.score(agent, ASKED) == [0, 1]
    assert thunder.score(agent, ASKED[:1]) == [0]
    assert thunder.score(request(), ASKED) == [0, 0]
    later = request("later", headers=agent.headers)
    thunder.committed(later, decision("a", ASKED[:1]), 10)  # b was not there
    assert thunder.score(agent, ASKED) == [1, 0]
    thunder.committed(request(headers={"session-id": "s2"}), decision("a"), 71)
    assert thunder.score(agent, ASKED) == [0, 0]
    assert (thunder.saturation(ASKED), thunder.saturation([])) == (0, 1)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"strategy": "sticky"}, "Invalid enum value 'sticky'"),
        ({"sessionIdConfig": {"sources": [{}]}}, "exactly one of `header` and `attribute`"),
        ({"sessionIdConfig": {"evictionTtlSeconds": -1}}, "is -1, below 0"),
    ],
)
def test_what_is_out_of_range_is_an_error(parameters, said):
    with pytest.raises(msgspec.ValidationError, match=said):
        msgspec.convert(parameters, PLUGINS["multicluster-session-affinity-filter"])
