"""What a request is sent on with, where its endpoint is one engine of several behind a port."""

import pytest

from epp.model.endpoint import Endpoint
from epp.model.request import Decision, RequestId
from epp.protocol.extproc.headers import RequestFacts, request_mutation

RANK = "x-data-parallel-rank"


def mutation(headers, **endpoint):
    pod = Endpoint("default", "a", "10.0.0.1", 8000, **endpoint)
    facts = RequestFacts(headers=headers)
    decision = Decision(endpoints=(pod,))
    return request_mutation(facts, decision, RequestId("r1"), orca=False, content_length=None)


@pytest.mark.parametrize("sent", [{}, {RANK: "7"}])
@pytest.mark.parametrize(
    "endpoint", [{"rank": 0}, {"labels": {"warmpick.io/data-parallel-rank": "0"}}]
)
def test_a_rank_is_named_in_place_of_the_clients_own(sent, endpoint):
    made = mutation(sent, **endpoint)
    assert dict(made.set_headers)[RANK] == "0"
    assert made.remove_headers == ()


@pytest.mark.parametrize("sent", [{}, {RANK: "7"}])
def test_a_whole_server_chooses_or_lets_the_client(sent):
    made = mutation(sent)
    assert RANK not in dict(made.set_headers)
    assert made.remove_headers == ()


def test_a_label_that_is_no_number_is_no_rank():
    labels = {"warmpick.io/data-parallel-rank": "one"}
    assert RANK not in dict(mutation({}, labels=labels).set_headers)
