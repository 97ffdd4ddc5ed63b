"""What sources beside metrics pages say of endpoints: attributes, served models, places."""

import pytest

from epp.model.endpoint import EndpointId, Load, attribute_key
from epp.model.events import (
    AttributesReported,
    EndpointRemoved,
    ModelsListed,
    OrcaReported,
)
from epp.model.request import RequestId
from epp.model.topology import Topology, TopologyLabels, topology_of
from tests.model.rig import Rig
from tests.strategies import endpoint

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
    assert rig.fleet.serves("llama") is None


def test_a_model_is_known_not_to_be_served_once_all_have_said_so():
    rig = Rig(2)
    assert rig.fleet.serves("llama") is None
    listed(rig, "pod-0", "llama", "adapter")
    assert rig.fleet.serves("llama") is True
    assert rig.fleet.serves("qwen") is None
    listed(rig, "pod-1", "llama")
    assert (rig.fleet.serves("adapter"), rig.fleet.serves("qwen")) == (True, False)
    rig.add("pod-2", "10.0.0.3")
    assert rig.fleet.serves("qwen") is None


def test_models_are_those_of_the_last_list_and_go_with_their_endpoints():
    rig = Rig(2)
    listed(rig, "pod-0", "llama", "adapter")
    listed(rig, "pod-1", "llama")
    listed(rig, "pod-0", "llama")
    assert rig.fleet.serves("adapter") is False
    rig.apply(EndpointRemoved(EndpointId("default/pod-0")))
    assert rig.fleet.serves("llama") is True
    listed(rig, "pod-1")
    assert rig.fleet.serves("llama") is False
    rig.apply(EndpointRemoved(EndpointId("default/pod-1")))
    assert rig.fleet.serves("llama") is None


def test_lists_of_unknown_endpoints_change_nothing():
    rig = Rig(1)
    listed(rig, "pod-7", "llama")
    attributes(rig, "pod-7", gpu=0.5)
    assert rig.fleet.serves("llama") is None


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
