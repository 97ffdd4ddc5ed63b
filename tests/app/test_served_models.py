"""The list of models that the picker answers with: of all endpoints, each model once."""

import json
from itertools import count

import pytest

from epp.app.observing.served_models import ServedModels
from epp.errors import NoEndpoints
from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved, ModelsListed
from tests.model.rig import Rig


def listed(rig, name, **contexts):
    """An endpoint lists models with these contexts; 0 is not known."""
    known = {model: tokens for model, tokens in contexts.items() if tokens}
    rig.apply(ModelsListed(EndpointId(f"default/{name}"), frozenset(contexts), known))


def models(served):
    return {each.pop("id"): each for each in json.loads(served.page())["data"]}


def test_each_model_is_listed_once_by_name_with_its_shortest_context():
    rig = Rig(pods=2)
    served = ServedModels(rig.fleet, 1_700_000_000, count().__next__)
    listed(rig, "pod-0", zebra=0, llama=8192, adapter=4096)
    listed(rig, "pod-1", llama=4096, adapter=0)
    common = {"object": "model", "created": 1_700_000_000, "owned_by": "warmpick"}
    assert [*models(served).items()] == [
        ("adapter", common | {"max_model_len": 4096}),
        ("llama", common | {"max_model_len": 4096}),
        ("zebra", common),
    ]


def test_it_follows_what_endpoints_list_and_which_are_left():
    rig = Rig(pods=2)
    served = ServedModels(rig.fleet, 0, count().__next__)
    listed(rig, "pod-0", llama=0)
    listed(rig, "pod-1", qwen=0)
    assert [*models(served)] == ["llama", "qwen"]
    listed(rig, "pod-0", mistral=0)
    assert [*models(served)] == ["mistral", "qwen"]
    rig.apply(EndpointRemoved(EndpointId("default/pod-1")))
    listed(rig, "pod-1", late=0)  # of a poll that was under way
    assert [*models(served)] == ["mistral"]


@pytest.mark.parametrize("again", [False, True], ids=["gone", "another-engine"])
def test_without_any_list_it_says_so(again):
    rig = Rig(pods=1)
    served = ServedModels(rig.fleet, 0, count().__next__)
    with pytest.raises(NoEndpoints, match="no endpoint has listed its models yet"):
        served.page()
    listed(rig, "pod-0", llama=0)
    assert [*models(served)] == ["llama"]
    if again:
        rig.add("pod-0", "10.0.0.9")
    else:
        rig.apply(EndpointRemoved(EndpointId("default/pod-0")))
    with pytest.raises(NoEndpoints):
        served.page()


def test_one_that_lists_others_at_each_poll_has_the_list_made_once_a_second():
    rig, times = Rig(pods=1), iter((0.0, 0.9, 1.0))
    served = ServedModels(rig.fleet, 0, times.__next__)
    listed(rig, "pod-0", first=0)
    assert [*models(served)] == ["first"]
    listed(rig, "pod-0", second=0)
    assert [*models(served)] == ["first"]
    assert [*models(served)] == ["second"]


@pytest.mark.parametrize(("length", "most"), [(20, 1 << 14), (1024, 1024)])
def test_the_list_is_bounded_whatever_endpoints_list(length, most):
    rig = Rig(pods=3)
    served = ServedModels(rig.fleet, 0, count().__next__)
    for number in range(3):
        names = (f"{number} {each}".ljust(length, "x") for each in range(10_000))
        listed(rig, f"pod-{number}", **dict.fromkeys(names, 0))
    assert most / 2 < len(models(served)) < most


def test_many_endpoints_that_list_the_same_are_all_looked_at():
    rig = Rig(pods=300)
    served = ServedModels(rig.fleet, 0, count().__next__)
    for number in range(300):
        adapters = {f"adapter {each}": 0 for each in range(400)}
        listed(rig, f"pod-{number}", **adapters, **{f"last {number // 299}": 4096})
    assert "last 1" in models(served)
