"""What a real API server does with custom resources: schemas, defaults, definitions."""

import pytest

from tests.kubeapi.tests.cluster import CRDS, POOLS, Cluster, objective, pool

EIGHT = [{"number": 8000 + number} for number in range(8)]


async def test_defaults_of_a_pool(cluster: Cluster):
    spec = (await cluster.made("inferencepools", pool()))["spec"]
    assert spec["appProtocol"] == "http"
    assert spec["endpointPickerRef"] == {
        "group": "",
        "kind": "Service",
        "name": "picker",
        "port": {"number": 9002},
        "failureMode": "FailClose",
    }


async def test_defaults_of_an_objective(cluster: Cluster):
    spec = (await cluster.made("inferenceobjectives", objective()))["spec"]
    assert spec["poolRef"] == {
        "group": "inference.networking.k8s.io",
        "kind": "InferencePool",
        "name": "pool",
    }


async def test_defaults_fill_what_an_update_takes_out(cluster: Cluster):
    await cluster.made("inferencepools", pool(appProtocol="kubernetes.io/h2c"))
    reply = await cluster.patch("inferencepools", "a", {"spec": {"appProtocol": None}})
    assert reply.json["spec"]["appProtocol"] == "http"


BROKEN_POOLS = {
    "no spec": ({"spec": None}, "spec"),
    "no selector": (pool(selector=None), "spec.selector"),
    "an empty selector": (pool(selector={"matchLabels": {}}), "spec.selector.matchLabels"),
    "no ports": (pool(targetPorts=[]), "spec.targetPorts"),
    "nine ports": (pool(targetPorts=[*EIGHT, {"number": 1}]), "spec.targetPorts"),
    "a port of text": (pool(targetPorts=[{"number": "x"}]), "spec.targetPorts[0].number"),
    "a port too high": (pool(targetPorts=[{"number": 70000}]), "spec.targetPorts[0].number"),
    "a protocol that is none": (pool(appProtocol="gopher"), "spec.appProtocol"),
}


@pytest.mark.parametrize(("body", "field"), BROKEN_POOLS.values(), ids=BROKEN_POOLS)
async def test_pools_that_break_the_schema(cluster: Cluster, body, field):
    reply = await cluster.create("inferencepools", pool() | body)
    assert (reply.code, reply.reason) == (422, "Invalid")
    assert reply.message.startswith('InferencePool.inference.networking.k8s.io "a" is invalid')
    assert field in reply.fields


async def test_an_update_is_held_to_the_schema_too(cluster: Cluster):
    await cluster.made("inferencepools", pool())
    reply = await cluster.patch("inferencepools", "a", {"spec": {"targetPorts": []}})
    assert (reply.code, reply.reason) == (422, "Invalid")


async def test_unknown_fields_are_dropped(cluster: Cluster):
    reply = await cluster.create("inferencepools", pool(wishes=1))
    assert reply.code == 201
    assert "wishes" not in reply.json["spec"]


async def test_a_body_without_kind(cluster: Cluster):
    body = {name: part for name, part in pool().items() if name != "kind"}
    reply = await cluster.create("inferencepools", body)
    assert (reply.code, reply.reason) == (400, "BadRequest")


async def test_a_version_that_is_not_served(cluster: Cluster):
    path = f"/{POOLS[:-2]}v1alpha2/inferencepools"
    reply = await cluster.call("GET", path)
    assert reply.code == 404


async def test_a_definition_that_goes_takes_its_objects_and_watches(cluster: Cluster, fake):
    made = await cluster.made("inferencepools", pool())
    at = made["metadata"]["resourceVersion"]
    async with cluster.watch("inferencepools", resourceVersion=at) as events:
        fake.uninstall("inferencepools.inference.networking.k8s.io")
        assert [each["type"] for each in await events.rest()] == ["DELETED"]
    assert (await cluster.get("inferencepools")).code == 404
    for path in CRDS:
        fake.install(path)
    assert (await cluster.get("inferencepools")).json["items"] == []
