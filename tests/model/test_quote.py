"""Quotes: made once, held while endpoints change, sent to replicas, and free of text."""

from sys import getrefcount

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved
from epp.model.request import Api, Prompt, RequestId, Usage
from epp.model.request_events import Admitted, Finished, FirstToken, Unobserved
from epp.values import replaced
from tests.model.invariants import check_invariants
from tests.model.rig import LONG, Rig
from tests.reachable import longest_text, reachable
from tests.strategies import SteadyLoad, text

POD = EndpointId("default/pod-0")


def test_a_request_that_waits_is_hashed_once():
    """Text is read when a request is quoted, and never again: nothing refers to it any more."""
    rig, data = Rig(), LONG.encode()
    references = getrefcount(data)
    made = [rig.quote(name, prompts=(Prompt(data),)) for name in "ab"]
    assert getrefcount(data) == references
    for _ in range(3):
        assert [priced(rig, each)[0].prompt_tokens for each in made] == [1000, 1000]
    for each in made:
        rig.apply(Admitted(each, POD))
        rig.apply(Finished(each.request_id, Usage(1200, 5)))


def test_no_text_is_kept_by_a_quote_or_by_the_fleet():
    rig = Rig()
    held = rig.quote("r1", LONG, body=b'{"prompt": "' + LONG.encode() + b'"}')
    rig.fleet.candidates(held, rig.now)
    rig.apply(Admitted(held, POD))
    rig.apply(FirstToken(RequestId("r1")))
    assert longest_text(held) < 300
    assert longest_text(rig.fleet) < 300


def test_what_was_looked_up_is_not_kept_with_a_request_in_flight():
    rig = Rig()
    rig.send("pod-0", "r1", LONG)
    rig.apply(Unobserved(RequestId("r1")))
    assert len(list(reachable(rig.in_flight("r1").quote))) < 250


prompts = st.lists(
    st.sampled_from((text(40), text(300, "a"), text(300, "a") + "more" * 90, list(range(100)), "")),
    max_size=2,
)
names = st.sampled_from(("pod-0", "pod-1", "pod-2"))
things = st.lists(
    st.one_of(
        st.tuples(st.just("serve"), names, prompts),
        st.tuples(st.just("remove"), names),
        st.tuples(st.just("add"), names, st.sampled_from(("", "other"))),
        st.tuples(st.just("restart"), names, st.floats(1, 9)),
        st.tuples(st.just("resize"), names, st.integers(2, 40)),
        st.tuples(st.just("wait"), st.floats(0, 100)),
    ),
    max_size=12,
)


def happen(rig, number, thing):
    match thing:
        case "serve", name, texts:
            rig.send(name, f"r{number}", *texts)
            rig.apply(FirstToken(RequestId(f"r{number}")))
            rig.apply(Finished(RequestId(f"r{number}"), generated=5))
        case "remove", name:
            rig.apply(EndpointRemoved(EndpointId(f"default/{name}")))
        case "add", name, uid:
            rig.add(name, f"10.0.0.{name[-1]}", uid=uid)
        case "restart", name, started_at:
            rig.report(name, started_at=started_at)
        case "resize", name, blocks:
            rig.report(name, block_size=16, num_blocks=blocks)
        case "wait", seconds:
            rig.now += seconds
        case _:
            raise AssertionError(thing)


def priced(rig, quote):
    """Return the candidates with the load of the moment, without the chains of each quote."""
    return [
        replaced(
            each, chains=(), current=SteadyLoad(each.waiting, each.running, each.kv_usage), now=0.0
        )
        for each in rig.fleet.candidates(quote, rig.now)
    ]


@given(prompts, things)
def test_a_held_quote_is_estimated_as_a_fresh_one(texts, what):
    """No length of a prompt is reported here: those of a quote are as they were believed then."""
    rig = Rig()
    held = rig.quote("held", *texts)
    for number, thing in enumerate(what):
        happen(rig, number, thing)
        assert priced(rig, held) == priced(rig, rig.quote(f"fresh {number}", *texts))


@given(prompts, things, names)
def test_a_held_quote_is_admitted_as_a_fresh_one(texts, what, name):
    rigs = Rig(), Rig()
    held = rigs[0].quote("r", *texts)
    priced(rigs[0], held)
    priced(rigs[1], rigs[1].quote("another", *texts))
    for number, thing in enumerate(what):
        for rig in rigs:
            happen(rig, number, thing)
    rigs[0].apply(Admitted(held, EndpointId(f"default/{name}")))
    rigs[1].apply(Admitted(rigs[1].quote("r", *texts), EndpointId(f"default/{name}")))
    for rig in rigs:
        check_invariants(rig.fleet)
    again = [priced(rig, rig.quote("again", *texts)) for rig in rigs]
    assert again[0] == again[1]


def test_a_quote_of_another_fleet_is_looked_up_anew():
    """What one fleet found says nothing of another, at whatever version that is."""
    here, there = Rig(), Rig()
    here.serve("pod-0", "r0", LONG)
    there.serve("pod-1", "r0", LONG)
    quote = here.quote("r1", LONG)
    assert [each.cached_tokens > 0 for each in priced(here, quote)] == [True, False]
    assert [each.cached_tokens > 0 for each in priced(there, quote)] == [False, True]


def test_estimates_follow_the_learned_speed():
    rig = Rig()
    held = rig.quote("held", LONG)
    before = priced(rig, held)[0].prefill_seconds
    rig.send("pod-0", "r1", text(2000, "slow"))
    rig.now += 3
    rig.apply(FirstToken(RequestId("r1")))
    assert priced(rig, held)[0].prefill_seconds > before


@pytest.mark.parametrize(
    ("more", "limit"),
    [
        ({}, None),
        ({"max_tokens": 7}, 7),
        ({"api": Api.EMBEDDINGS, "max_tokens": 7}, 1),
        ({"api": Api.GRPC_EMBED}, 1),
        ({"prompts": ()}, None),
        ({"prompts": (), "max_tokens": 7}, 7),
        ({"prompts": (), "api": Api.OTHER}, 1),
        ({"prompts": (), "api": Api.CHAT_RENDER}, 1),
    ],
)
def test_what_generates_nothing_is_soon_over(more, limit):
    assert Rig().quote("r1", **{"prompts": (Prompt(b"a prompt"),), **more}).output_limit == limit
