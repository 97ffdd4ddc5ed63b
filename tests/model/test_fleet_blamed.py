"""Which endpoint is to blame, where a proxy tries again or two endpoints serve a request."""

import pytest

from epp.model.endpoint import ROLE_LABEL, EndpointId, Target
from epp.model.events import ScrapeFailed
from epp.model.request import RequestId
from epp.model.request_events import Aborted, Admitted, Failure, Finished, FirstToken, Served
from tests.model.rig import LONG
from tests.model.ward import FAILURES, LATE, NO_PAGE, REFUSED, Ward, disaggregated
from tests.strategies import text


def test_a_failure_is_that_of_the_endpoint_that_served():
    ward = Ward()
    for number in range(5):
        ward.send("pod-0", f"r{number}", LONG)
        ward.apply(Served(RequestId(f"r{number}"), Target("10.0.0.2:8000")))
        ward.now += 0.1
        ward.apply(Aborted(RequestId(f"r{number}"), 0, True, Failure.GATEWAY, True))
    assert ward.left == "02"


@pytest.mark.parametrize(("known", "prompts", "left"), [(1, 5, "12"), (0, 9, "012"), (1, 1, "012")])
def test_an_endpoint_that_a_retrying_gateway_goes_past_is_left_out(known, prompts, left):
    # What fails there is served elsewhere. A new endpoint may not be known to the gateway yet.
    ward = Ward()
    ward.succeed("pod-1")
    for _ in range(known):
        ward.succeed("pod-0")
    for number in range(9):
        ward.pass_over("pod-0", text(400 + number % prompts))
    assert ward.left == left


@pytest.mark.parametrize(("works", "left"), [(False, "12"), (True, "012")])
def test_an_endpoint_that_is_only_slow_is_not_left_out_for_requests_that_are_hedged(works, left):
    # Envoy's `hedge_on_per_try_timeout`: who does not answer in time is asked further.
    ward = Ward()
    ward.succeed("pod-0")
    ward.report("pod-0", running=1, at=ward.now)
    for number in range(9):
        ward.send("pod-0", f"hedged {number}", text(400 + number))
        ward.now += 2
        ward.report("pod-0", running=1, kv_usage=number / 10 if works else 0.0, at=ward.now)
        ward.apply(Served(RequestId(f"hedged {number}"), Target("10.0.0.2:8000"), retried=True))
        ward.apply(Finished(RequestId(f"hedged {number}")))
    assert ward.left == left


def test_an_endpoint_that_fails_late_whatever_it_is_sent_is_left_out_though_it_shows_life():
    # It takes each request, allocates blocks, waits in vain for another server, and answers 500.
    ward = Ward()
    ward.succeed("pod-0")
    for number in range(15):
        ward.send("pod-0", f"late {number}", text(400 + number))
        for running in (1, 0):
            ward.now += 2
            ward.report("pod-0", running=running, kv_usage=running / 10, at=ward.now)
        ward.apply(Served(RequestId(f"late {number}"), Target("10.0.0.2:8000"), retried=True))
        ward.apply(Finished(RequestId(f"late {number}")))
    assert ward.left == "12"


def test_an_endpoint_that_a_gateway_does_not_even_try_is_not_left_out():
    # It has reasons of its own: with cookies for sessions, all but new clients go past a new pod.
    ward = Ward()
    ward.succeed("pod-0")
    for number in range(99):
        ward.pass_over("pod-0", text(400 + number), retried=False)
    assert ward.left == "012"


def test_who_serves_in_between_is_not_one_that_the_gateway_goes_past():
    ward = Ward()
    for number in range(9):
        if not number % 4:
            ward.succeed("pod-0")
        ward.pass_over("pod-0", text(400 + number))
    assert ward.left == "012"


def test_a_disaggregated_request_fails_at_the_decode_endpoint():
    ward = Ward()
    for number in range(5):
        quote = ward.quote(f"r{number}", LONG)
        decode, prefill = EndpointId("default/pod-0"), EndpointId("default/pod-1")
        ward.apply(Admitted(quote, decode, prefill))
        ward.now += 0.1
        ward.apply(Aborted(RequestId(f"r{number}"), refused=True, failure=Failure.GATEWAY))
    assert ward.left == "12"


def test_where_the_gateway_names_who_served_what_nobody_served_is_its_own():
    ward = Ward()
    ward.send("pod-0", "good", LONG)
    ward.apply(Served(RequestId("good"), Target("10.0.0.1:8000")))
    ward.apply(Finished(RequestId("good")))
    ward.fail("pod-0", times=9)
    assert ward.left == "012"


@pytest.mark.parametrize(("reason", "left"), [(REFUSED, "0123"), (LATE, "123"), (NO_PAGE, "123")])
@pytest.mark.parametrize("gone", ["prefill", "encode"])
def test_where_the_endpoint_of_a_stage_is_gone_the_decode_endpoint_did_not_fail(gone, reason, left):
    ward = Ward(4)
    ward.fail("pod-3")
    others = (1, 2) if gone == "prefill" else (2, 1)
    for number in range(5):
        disaggregated(ward, f"r{number}", *others)
        ward.now += 0.1
        ward.apply(Aborted(RequestId(f"r{number}"), refused=True, failure=Failure.GATEWAY))
    assert ward.left == "123"
    ward.apply(ScrapeFailed(EndpointId("default/pod-1"), reason))
    ward.report("pod-1")
    assert ward.left == left
    assert ward.heard == [("pod-0", FAILURES), ("pod-0", None)][: 2 if "0" in left else 1]


def stages(prefill=2, decode=2, encode=0):
    """Return a ward of prefill endpoints p-0, ..., decode endpoints d-0, ..., and e-0, ..."""
    ward = Ward(0)
    for role, endpoints in (("prefill", prefill), ("decode", decode), ("encode", encode)):
        for number in range(endpoints):
            name, address = f"{role[0]}-{number}", f"10.0.{number}.{ord(role[0])}"
            ward.add(name, address, labels={ROLE_LABEL: role})
    return ward


def pair(ward, prefill, decode, *, fails, prompt=None, encode=None):  # noqa: PLR0913 (its stages)
    """Have a request served by a prefill and a decode endpoint, or fail."""
    identity = RequestId(f"r{next(ward.requests)}")
    ward.now += 0.1
    quote = ward.quote(identity, prompt or text(next(ward.requests)))
    stages = [None if each is None else EndpointId(f"default/{each}") for each in (prefill, encode)]
    ward.apply(Admitted(quote, EndpointId(f"default/{decode}"), *stages))
    ward.now += 0.1
    failed = Aborted(identity, refused=True, failure=Failure.ERROR)
    ward.apply(failed if fails else Finished(identity))


@pytest.mark.parametrize("decode", [1, 2])
def test_where_decode_endpoints_serve_others_the_failures_are_the_prefill_endpoints(decode):
    ward = stages(2, decode)
    for number in range(4):
        pair(ward, "p-0", f"d-{number % decode}", fails=True)
        pair(ward, "p-1", f"d-{number % decode}", fails=False)
    assert ward.heard == []
    pair(ward, "p-0", "d-0", fails=True)
    pair(ward, "p-1", "d-0", fails=False)
    assert ward.heard == [("p-0", FAILURES)]


@pytest.mark.parametrize("prefill", ["p-0", None])
def test_where_endpoints_serve_others_the_failures_are_the_encode_endpoints(prefill):
    ward = stages(1, 1, 2)
    for _ in range(5):
        pair(ward, prefill, "d-0", encode="e-0", fails=True)
        pair(ward, prefill, "d-0", encode="e-1", fails=False)
    assert ward.heard == [("e-0", FAILURES)]


@pytest.mark.parametrize("case", ["one prompt", "served since", "a row of its own", "the only one"])
def test_a_prefill_endpoint_is_not_left_out_for_what_others_may_have_done(case):
    ward = stages(1 if case == "the only one" else 2)
    prompt = LONG if case == "one prompt" else None
    for _ in range(9):
        for _ in range(5 if case == "a row of its own" else 1):
            pair(ward, "p-0", "d-0", fails=True, prompt=prompt)
        if case == "served since":
            pair(ward, "p-0", "d-1", fails=False)
        pair(ward, "p-1" if case != "the only one" else "p-0", "d-0", fails=False)
    assert "p-0" not in {name for name, _ in ward.heard}


def test_an_endpoint_is_not_left_out_for_what_another_of_its_name_did():
    ward = stages(2, 2)
    for decode in ("d-0", "d-1"):
        for _ in range(4):
            pair(ward, "p-0", decode, fails=True)
    ward.add("p-0", "10.0.0.9", uid="other", labels={ROLE_LABEL: "prefill"})
    for decode in ("d-0", "d-1"):
        pair(ward, "p-1", decode, fails=False)
    pair(ward, "p-0", "d-0", fails=True)
    pair(ward, "p-1", "d-0", fails=False)
    assert ward.heard == []
    assert ward.pod("p-0").outlier.failures == 1


@pytest.mark.parametrize(("alive", "share"), [(False, 0.5), (True, 0.0)])
def test_what_may_only_be_slow_is_no_failure_of_a_prefill_endpoint_either(alive, share):
    ward = stages()
    pair(ward, "p-0", "d-0", fails=False)
    quote = ward.quote("hedged", text(400))
    ward.apply(Admitted(quote, EndpointId("default/d-0"), EndpointId("default/p-0")))
    ward.now += 2
    if alive:
        ward.report("d-0", running=1, at=ward.now)
    ward.apply(Served(RequestId("hedged"), ward.pod("d-1").endpoint.target, retried=True))
    ward.apply(Aborted(RequestId("hedged")))
    pair(ward, "p-1", "d-0", fails=False)
    assert [ward.pod(name).outlier.share(2) for name in ("p-0", "d-0")] == [share, share]


@pytest.mark.parametrize("others", [(1, None), (None, 1)], ids=["prefill", "encode"])
def test_a_first_token_is_a_success_of_both_endpoints(others):
    ward = Ward()
    ward.fail("pod-1", times=4)
    disaggregated(ward, "r-1", *others)
    ward.apply(FirstToken(RequestId("r-1")))
    ward.fail("pod-1", times=4)
    assert ward.heard == []
