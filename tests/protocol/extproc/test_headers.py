"""What a request is sent on with, where its endpoint is one engine of several behind a port."""

import pytest

from epp.model.candidate import Candidate
from epp.model.decision import Decision
from epp.model.endpoint import Endpoint, Load
from epp.model.request import RequestId
from epp.protocol.extproc.headers import RequestFacts, request_mutation
from epp.protocol.extproc.names import CONTROL_HEADERS, DESTINATION
from epp.protocol.extproc.settings import ExchangeSettings

RANK = "x-data-parallel-rank"
PREFILLER = ("x-prefiller-host-port", "x-llm-d-prefiller-host-port")
ENCODERS = ("x-encoder-hosts-ports", "x-llm-d-encoder-hosts-ports")
KV_SOURCE = ("x-kv-cache-source-host-port", "x-llm-d-kv-cache-source-host-port")
DATA_PARALLEL = ("x-data-parallel-host-port",)


def mutation(headers, **endpoint):
    pod = Endpoint("default", "a", "10.0.0.1", 8000, **endpoint)
    facts = RequestFacts.of(headers, ExchangeSettings().apis)
    decision = Decision(endpoints=(pod,))
    return request_mutation(
        facts, decision, RequestId("r1"), settings=ExchangeSettings(), content_length=None
    )


@pytest.mark.parametrize("sent", [{}, {RANK: "7"}])
@pytest.mark.parametrize(
    "endpoint", [{"rank": 0}, {"labels": {"warmpick.io/data-parallel-rank": "0"}}]
)
def test_a_rank_is_named_in_place_of_the_clients_own(sent, endpoint):
    made = mutation(sent, **endpoint)
    assert dict(made.set_headers)[RANK] == "0"
    assert made.remove_headers == ()


@pytest.mark.parametrize("sent", [{}, {RANK: "7"}])
def test_a_whole_server_chooses_itself(sent):
    made = mutation(sent)
    assert RANK not in dict(made.set_headers)
    assert made.remove_headers == tuple(sent)


def test_no_control_header_of_a_client_is_left_and_none_of_the_pickers_is_removed():
    told = (("x-prefiller-host-port", "10.0.0.2:8000"), ("x-data-parallel-host-port", "10.0.0.3:1"))
    sent = dict.fromkeys(CONTROL_HEADERS, "6.6.6.6:1") | {"accept": "*/*"}
    made = mutated(sent, headers=told)
    ours = {name for name, _ in made.set_headers}
    assert {DESTINATION, *PREFILLER, *DATA_PARALLEL} <= ours
    assert set(made.remove_headers) == CONTROL_HEADERS - ours
    assert "6.6.6.6:1" not in dict(made.set_headers).values()


def test_a_request_without_control_headers_costs_no_removal():
    assert mutated({"accept": "*/*", "x-request-id": "r"}).remove_headers == ()


def test_a_label_that_is_no_number_is_no_rank():
    labels = {"warmpick.io/data-parallel-rank": "one"}
    assert RANK not in dict(mutation({}, labels=labels).set_headers)


@pytest.mark.parametrize("wanted", [False, True])
def test_scores_of_all_candidates_are_told_by_their_targets(wanted):
    pods = [Endpoint("default", f"p{n}", f"10.0.0.{n}", 8000) for n in (1, 2)]
    candidates = [Candidate(endpoint=pod, load=Load()) for pod in pods]
    decision = Decision(endpoints=(pods[1],), candidates=candidates, totals=[0.25, 3])
    settings = ExchangeSettings(emit_scores=wanted)
    made = request_mutation(
        RequestFacts({}), decision, RequestId("r"), settings=settings, content_length=None
    )
    assert made.destination == "10.0.0.2:8000"
    assert made.scores == ((("10.0.0.1:8000", 0.25), ("10.0.0.2:8000", 3.0)) if wanted else ())


def mutated(sent, **decision):
    pod = Endpoint("default", "a", "10.0.0.1", 8000)
    return request_mutation(
        RequestFacts.of(sent, ExchangeSettings().apis),
        Decision(endpoints=(pod,), **decision),
        RequestId("r1"),
        settings=ExchangeSettings(),
        content_length=None,
    )


@pytest.mark.parametrize("names", [PREFILLER, ENCODERS, KV_SOURCE, DATA_PARALLEL])
def test_a_decisions_headers_are_set_in_all_spellings_and_clients_own_are_removed(names):
    every = dict.fromkeys((*PREFILLER, *ENCODERS, *KV_SOURCE, *DATA_PARALLEL), "10.6.6.6:1")
    made = mutated(every, headers=((names[0], "10.0.0.2:8000"),))
    told = {name: value for name, value in made.set_headers if name in every}
    assert told == dict.fromkeys(names, "10.0.0.2:8000")
    assert set(made.remove_headers) == every.keys() - set(names)
    assert set(mutated(every).remove_headers) == every.keys()


def test_the_destination_may_be_another_port_than_the_endpoints():
    made = mutated({}, targets=("10.0.0.1:9000",))
    assert made.destination == dict(made.set_headers)[DESTINATION] == "10.0.0.1:9000"
