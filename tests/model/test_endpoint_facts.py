"""What sources beside metrics pages say of endpoints: attributes, served models, places."""

import pytest

from epp.model.endpoint import EndpointId, Load, attribute_key
from epp.model.events import (
    AttributesReported,
    EndpointRemoved,
    ModelsListed,
    OrcaReported,
    ScrapeFailed,
    ScrapeFailure,
)
from epp.model.kv_changes import BlocksStored, CacheChanged, CacheFeedUp, EngineHash
from epp.model.request import RequestId
from epp.model.topology import Topology, TopologyLabels, topology_of
from tests.model.rig import LONG, Rig
from tests.strategies import endpoint, prompt

GPU = attribute_key("GPUUtilization", "dcgm-extractor")


def attributes(rig, name, **found):
    rig.apply(AttributesReported(EndpointId(f"default/{name}"), found))


def listed(rig, name, *models):
    rig.apply(ModelsListed(EndpointId(f"default/{name}"), frozenset(models)))


def test_a_key_has_its_producer_where_there_is_one():
    assert GPU == "GPUUtilization/dcgm-extractor"
    assert attribute_key("llm-d.ai/multicluster-queue-size") == "llm-d.ai/multicluster-queue-size"


def test_attributes_of_several_sources_stay_beside_each_other():
    rig = Rig()
    attributes(rig, "pod-0", gpu=0.5)
    rig.report("pod-0", waiting=3, attributes={"tokens": 7.0})
    attributes(rig, "pod-0", power=300.0)
    rig.report("pod-0", waiting=4, attributes={"tokens": 8.0})
    load = rig.pod("pod-0").load
    assert load.waiting == 4
    assert load.attributes == {"gpu": 0.5, "tokens": 8.0, "power": 300.0}
    attributes(rig, "pod-0", gpu=0.25)
    rig.send("pod-0", "r1", "x")
    target = rig.pod("pod-0").endpoint.target
    rig.apply(OrcaReported(RequestId("r1"), target, kv_usage=0.5))
    assert rig.pod("pod-0").load.attributes == load.attributes | {"gpu": 0.25}
    assert rig.pod("pod-1").load.attributes == {}
    assert Load().attributes == {}


def test_another_engine_under_the_name_starts_without_attributes_and_models():
    rig = Rig(1)
    attributes(rig, "pod-0", gpu=0.5)
    listed(rig, "pod-0", "llama")
    rig.add("pod-0", "10.0.0.9")
    assert rig.pod("pod-0").load.attributes == {}
    assert rig.fleet.pods.serves("llama") is None


def test_a_model_is_known_not_to_be_served_once_all_have_said_so():
    rig = Rig(2)
    assert rig.fleet.pods.serves("llama") is None
    listed(rig, "pod-0", "llama", "adapter")
    assert rig.fleet.pods.serves("llama") is True
    assert rig.fleet.pods.serves("qwen") is None
    listed(rig, "pod-1", "llama")
    assert (rig.fleet.pods.serves("adapter"), rig.fleet.pods.serves("qwen")) == (True, False)
    rig.add("pod-2", "10.0.0.3")
    assert rig.fleet.pods.serves("qwen") is None


def test_models_are_those_of_the_last_list_and_go_with_their_endpoints():
    rig = Rig(2)
    listed(rig, "pod-0", "llama", "adapter")
    listed(rig, "pod-1", "llama")
    listed(rig, "pod-0", "llama")
    assert rig.fleet.pods.serves("adapter") is False
    rig.apply(EndpointRemoved(EndpointId("default/pod-0")))
    assert rig.fleet.pods.serves("llama") is True
    listed(rig, "pod-1")
    assert rig.fleet.pods.serves("llama") is False
    rig.apply(EndpointRemoved(EndpointId("default/pod-1")))
    assert rig.fleet.pods.serves("llama") is None


def test_lists_of_unknown_endpoints_change_nothing():
    rig = Rig(1)
    listed(rig, "pod-7", "llama")
    attributes(rig, "pod-7", gpu=0.5)
    assert rig.fleet.pods.serves("llama") is None


@pytest.mark.parametrize(
    ("labels", "hostname", "place"),
    [
        ({}, "", None),
        ({}, "gpu-1", Topology("gpu-1", "", "", "")),
        ({"kubernetes.io/hostname": "node-1"}, "gpu-1", Topology("node-1", "", "", "")),
        (
            {"topology.kubernetes.io/rack": "r", "topology.kubernetes.io/zone": "z"},
            "gpu-1",
            Topology("gpu-1", "r", "z", ""),
        ),
        ({"topology.kubernetes.io/region": "eu"}, "", Topology("", "", "", "eu")),
    ],
)
def test_the_place_of_an_endpoint(labels, hostname, place):
    assert topology_of(endpoint("a", labels=labels, hostname=hostname)) == place


def test_labels_of_other_names_say_where_an_endpoint_is():
    names = TopologyLabels(hostname="host", rack="rack")
    found = topology_of(endpoint("a", labels={"host": "h", "rack": "r"}), names)
    assert found == Topology("h", "r", "", "")


def asked(rig, model, **more):
    return set(rig.ask("x", target_model=model, **more))


def test_a_request_goes_where_its_model_is_listed():
    rig = Rig(4)
    listed(rig, "pod-0", "a")
    listed(rig, "pod-1", "b", "both")
    listed(rig, "pod-2", "a", "both")
    assert asked(rig, "a") == {"pod-0", "pod-2", "pod-3"}  # pod-3 has not listed its models
    assert asked(rig, "b") == {"pod-1", "pod-3"}
    assert asked(rig, "both") == {"pod-1", "pod-2", "pod-3"}
    assert asked(rig, "c") == {"pod-0", "pod-1", "pod-2", "pod-3"}
    listed(rig, "pod-0", "c")
    assert asked(rig, "c") == {"pod-0", "pod-3"}
    assert asked(rig, "a") == {"pod-2", "pod-3"}
    rig.apply(EndpointRemoved(EndpointId("default/pod-2")))
    assert asked(rig, "a") == {"pod-0", "pod-1", "pod-3"}  # no one lists it any more


def test_those_that_serve_its_model_are_asked_before_those_that_answer():
    rig = Rig(3)
    listed(rig, "pod-0", "a")
    listed(rig, "pod-1", "a")
    listed(rig, "pod-2", "b")
    rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.REFUSED))
    assert asked(rig, "a") == {"pod-1"}
    rig.apply(ScrapeFailed(EndpointId("default/pod-1"), ScrapeFailure.REFUSED))
    assert asked(rig, "a") == {"pod-0", "pod-1"}


def test_a_subset_that_does_not_list_the_model_stays():
    rig = Rig(3)
    for name, model in (("pod-0", "a"), ("pod-1", "b"), ("pod-2", "a")):
        listed(rig, name, model)
    targets = {name: rig.pod(name).endpoint.target for name in ("pod-0", "pod-1")}
    assert asked(rig, "a", subset=(targets["pod-1"],)) == {"pod-1"}
    assert asked(rig, "a", subset=tuple(targets.values())) == {"pod-0"}


def test_engines_that_may_serve_others_leave_an_unlisted_model_open():
    rig = Rig(2)
    listed(rig, "pod-0", "a")
    rig.apply(ModelsListed(EndpointId("default/pod-1"), frozenset("a"), serves_others=True))
    assert [rig.fleet.pods.serves(model) for model in ("a", "b")] == [True, None]
    listed(rig, "pod-1", "a")
    assert rig.fleet.pods.serves("b") is False


def names_one(rig, name, *models, **aliases):
    """An endpoint lists models, and names of them that share the cache of another name."""
    names = frozenset((*models, *aliases))
    rig.apply(ModelsListed(EndpointId(f"default/{name}"), names, aliases=aliases))


def hits(rig, model, *asked_as):
    """The endpoints that have cached the prompt, by the names under which it is asked for."""
    return [
        {name for name, tokens in rig.cached(LONG, target_model=each).items() if tokens}
        for each in (model, *asked_as)
    ]


def test_names_of_one_model_share_a_cache():
    rig = Rig(2)
    names_one(rig, "pod-0", "llama", "fr", small="llama")
    rig.serve("pod-0", "r1", LONG, target_model="small")
    assert hits(rig, "small", "llama", "fr", "other") == [{"pod-0"}, {"pod-0"}, set(), set()]
    rig.serve("pod-1", "r2", LONG, target_model="llama")
    assert hits(rig, "small") == [{"pod-0", "pod-1"}]


def test_what_is_cached_stays_known_as_a_name_is_added():
    rig = Rig(3)
    for name in ("pod-0", "pod-1"):
        names_one(rig, name, "llama")
        rig.serve(name, f"r at {name}", LONG, target_model="llama")
    names_one(rig, "pod-2", "llama", big="llama")  # which is before it in the alphabet
    assert hits(rig, "llama") == [{"pod-0", "pod-1"}]
    rig.serve("pod-2", "r", LONG, target_model="big")
    assert hits(rig, "llama", "big") == [{"pod-0", "pod-1", "pod-2"}, {"pod-2"}]
    rig.apply(EndpointRemoved(EndpointId("default/pod-2")))
    assert hits(rig, "llama") == [{"pod-0", "pod-1"}]


def test_salts_keep_names_of_one_model_apart():
    rig = Rig(1)
    names_one(rig, "pod-0", "llama", small="llama")
    rig.serve("pod-0", "r1", LONG, target_model="small", cache_salt="mine")
    assert rig.cached(LONG, target_model="llama") == {"pod-0": 0}
    assert rig.cached(LONG, target_model="llama", cache_salt="mine")["pod-0"] > 0


@pytest.mark.parametrize("order", [("pod-0", "pod-1"), ("pod-1", "pod-0")])
def test_names_that_one_endpoint_serves_as_two_models_stay_apart(order):
    rig = Rig(2)
    for name in order:
        aliases = {"small": "llama"} if name == "pod-0" else {}
        names_one(rig, name, "llama", "small", **aliases)
    rig.serve("pod-1", "r1", LONG, target_model="small")
    assert hits(rig, "small", "llama") == [{"pod-1"}, set()]
    rig.apply(EndpointRemoved(EndpointId("default/pod-1")))
    rig.serve("pod-0", "r2", LONG, target_model="small")
    assert hits(rig, "small", "llama") == [{"pod-0"}, {"pod-0"}]


@pytest.mark.parametrize(
    ("models", "found"),
    [
        ("d", [set(), {"pod-3"}]),  # of which `a` is not asked for there
        ("da", [{"pod-3"}, set()]),  # as two models, so all four are apart
    ],
)
def test_names_are_one_across_endpoints_that_each_have_some_of_them(models, found):
    rig = Rig(4)
    names_one(rig, "pod-0", "a", b="a")
    names_one(rig, "pod-1", "d", c="d")
    names_one(rig, "pod-2", "c", b="c")
    names_one(rig, "pod-3", *models)
    rig.serve("pod-3", "r1", LONG, target_model="a")
    assert hits(rig, "a", "d") == found


def test_names_are_no_longer_one_once_no_endpoint_lists_them_so():
    rig = Rig(2)
    names_one(rig, "pod-0", "llama", small="llama")
    names_one(rig, "pod-1", "llama", small="llama")
    names_one(rig, "pod-0", "llama")
    rig.serve("pod-1", "r1", LONG, target_model="small")
    assert hits(rig, "llama") == [{"pod-1"}]
    names_one(rig, "pod-1", "small")
    rig.serve("pod-1", "r2", LONG, target_model="small")
    assert hits(rig, "small") == [{"pod-1"}]
    assert rig.cached(LONG, target_model="llama") == {"pod-0": 0}


def test_events_of_one_name_are_found_by_another():
    rig = Rig(1, token_block=16)
    names_one(rig, "pod-0", "llama", small="llama")
    ids = range(65)
    names = [EngineHash(each) for each in (1, 2, 3, 4)]
    stored = BlocksStored(names, None, prompt(ids[:64]).data, 16, model="small")
    pod = EndpointId("default/pod-0")
    rig.apply(CacheFeedUp(pod))
    rig.apply(CacheChanged(pod, (stored,)))
    found = {model: rig.cached(ids, target_model=model)["pod-0"] for model in ("llama", "other")}
    assert found == {"llama": 64, "other": 0}
