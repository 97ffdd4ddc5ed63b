"""Where a request fits: listed contexts against the least that a request can be long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved, ModelsListed
from epp.model.prompts.token_offsets import TokenOffsets
from epp.model.quote import Quote
from epp.model.request import RequestId, Usage
from epp.model.request_events import Finished
from tests.model.rig import Rig
from tests.strategies import request, text

IDS = list(range(1000))


def listed(rig, name, *models, **limits):
    names = frozenset((*models, *limits))
    rig.apply(ModelsListed(EndpointId(f"default/{name}"), names, limits))


def fits(rig, *texts, **more):
    return {name: each.fits for name, each in rig.ask(*texts, **more).items()}


@pytest.mark.parametrize(
    ("most", "found"),
    [
        (None, {"pod-0": None, "pod-1": None, "pod-2": None}),  # 1000: fits everywhere
        (24, {"pod-0": None, "pod-1": None, "pod-2": None}),  # 1024: to the last token
        (25, {"pod-0": False, "pod-1": True, "pod-2": None}),
        (3096, {"pod-0": False, "pod-1": True, "pod-2": None}),  # 4096: to the last token
        (3097, {"pod-0": False, "pod-1": False, "pod-2": None}),
    ],
)
def test_the_tokens_of_the_prompt_and_those_to_come_have_to_fit(most, found):
    rig = Rig(3)
    listed(rig, "pod-0", m=1024)
    listed(rig, "pod-1", m=4096)
    listed(rig, "pod-2", "m")
    assert fits(rig, IDS, max_tokens=most) == found


def test_each_model_has_its_own_limit():
    rig = Rig(1)
    listed(rig, "pod-0", "adapter", m=100, long=8192)
    asked = {name: fits(rig, IDS, target_model=name)["pod-0"] for name in ("m", "long", "adapter")}
    assert asked == {"m": False, "long": True, "adapter": None}


def test_the_longest_of_several_prompts_has_to_fit():
    rig = Rig(2)
    listed(rig, "pod-0", m=1000)
    assert fits(rig, IDS[:600], IDS[100:700])["pod-0"] is True
    assert fits(rig, IDS[:600], IDS, max_tokens=1)["pod-0"] is False


def test_limits_change_with_lists_and_go_with_their_endpoints():
    rig = Rig(2)
    assert fits(rig, IDS) == {"pod-0": None, "pod-1": None}
    listed(rig, "pod-0", m=100)
    listed(rig, "pod-1", m=100)
    assert fits(rig, IDS) == {"pod-0": False, "pod-1": False}
    listed(rig, "pod-0", m=5000, longer=7000)
    assert fits(rig, IDS) == {"pod-0": True, "pod-1": False}
    rig.apply(EndpointRemoved(EndpointId("default/pod-1")))
    assert fits(rig, IDS) == {"pod-0": None}
    assert rig.fleet.pods.shortest_context == 5000
    rig.add("pod-0", "10.0.0.9")
    assert rig.fleet.pods.shortest_context == float("inf")


def test_of_a_text_that_was_never_counted_half_is_sure():
    rig = Rig(1)
    listed(rig, "pod-0", m=499)
    assert fits(rig, text(998)) == {"pod-0": True}
    assert fits(rig, text(1000)) == {"pod-0": False}


def test_estimates_that_held_are_surer():
    rig = Rig(1)
    listed(rig, "pod-0", m=890)
    assert fits(rig, text(1000, "z")) == {"pod-0": True}
    for number in range(60):
        words = text(1000, f"{number} ")
        rig.send("pod-0", f"r{number}", words)
        rig.apply(Finished(RequestId(f"r{number}"), Usage(1000, 1)))
    assert fits(rig, text(1000, "z")) == {"pod-0": False}
    assert fits(rig, text(980, "z")) == {"pod-0": True}


@given(
    lengths=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=3),
    most=st.none() | st.integers(0, 10**6),
    error=st.floats(0, 1),
)
def test_the_least_context_is_no_more_than_the_estimated_one(lengths, most, error):
    offsets = tuple([TokenOffsets(known + guessed, (), known) for known, guessed in lengths])
    quote = Quote(request(max_tokens=most), (), offsets)
    sure = max([known for known, _ in lengths], default=0) + (most or 0)
    assert sure <= quote.least_context(error) <= quote.tokens + (most or 0)
    assert quote.least_context(error) <= quote.least_context(0.0)
