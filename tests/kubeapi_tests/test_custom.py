"""What a real API server does with custom resources: schemas, defaults, definitions."""

import pytest
import yaml

from tests.kubeapi.crds import kind_of
from tests.kubeapi_tests.cluster import CRDS, POOLS, Cluster, objective, pool

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


async def test_null_falls_to_the_default(cluster: Cluster):
    spec = (await cluster.made("inferencepools", pool(appProtocol=None)))["spec"]
    assert spec["appProtocol"] == "http"


async def test_defaults_fill_what_an_update_takes_out(cluster: Cluster):
    await cluster.made("inferencepools", pool(appProtocol="kubernetes.io/h2c"))
    reply = await cluster.patch("inferencepools", "a", {"spec": {"appProtocol": None}})
    assert reply.json["spec"]["appProtocol"] == "http"


async def test_eight_ports_are_taken(cluster: Cluster):
    made = await cluster.made("inferencepools", pool(targetPorts=EIGHT))
    assert len(made["spec"]["targetPorts"]) == 8


BROKEN_POOLS = {
    "no spec": ({"spec": None}, "spec", "Required value"),
    "no selector": (pool(selector=None), "spec.selector", "Required value"),
    "an empty selector": (
        pool(selector={"matchLabels": {}}),
        "spec.selector.matchLabels",
        "should have at least 1 properties",
    ),
    "no ports": (pool(targetPorts=[]), "spec.targetPorts", "should have at least 1 items"),
    "nine ports": (
        pool(targetPorts=[*EIGHT, {"number": 1}]),
        "spec.targetPorts",
        "must have at most 8 items",
    ),
    "a port of text": (
        pool(targetPorts=[{"number": "http"}]),
        "spec.targetPorts[0].number",
        "must be of type integer",
    ),
    "a port too high": (
        pool(targetPorts=[{"number": 70000}]),
        "spec.targetPorts[0].number",
        "should be less than or equal to 65535",
    ),
    "a port twice": (
        pool(targetPorts=[{"number": 1}, {"number": 1}]),
        "spec.targetPorts",
        "port number must be unique",
    ),
    "a picker that is a Service without port": (
        pool(endpointPickerRef={"name": "picker"}),
        "spec.endpointPickerRef",
        "port is required when kind is 'Service'",
    ),
    "a protocol that is none": (
        pool(appProtocol="gopher"),
        "spec.appProtocol",
        'supported values: "http", "kubernetes.io/h2c"',
    ),
    "a label value that is none": (
        pool(selector={"matchLabels": {"a": "b c"}}),
        "spec.selector.matchLabels.a",
        "should match",
    ),
}


@pytest.mark.parametrize(("body", "field", "said"), BROKEN_POOLS.values(), ids=BROKEN_POOLS)
async def test_pools_that_break_the_schema(cluster: Cluster, body, field, said):
    reply = await cluster.create("inferencepools", pool() | body)
    assert (reply.code, reply.reason) == (422, "Invalid")
    assert reply.message.startswith('InferencePool.inference.networking.k8s.io "a" is invalid')
    told = {each["field"]: each["message"] for each in reply.json["details"]["causes"]}
    assert said in told[field]


async def test_an_update_is_held_to_the_schema_too(cluster: Cluster):
    await cluster.made("inferencepools", pool())
    reply = await cluster.patch("inferencepools", "a", {"spec": {"targetPorts": []}})
    assert (reply.code, reply.reason) == (422, "Invalid")


async def test_unknown_fields_are_dropped_with_a_warning(cluster: Cluster):
    reply = await cluster.create("inferencepools", pool(wishes=1))
    assert reply.code == 201
    assert "wishes" not in reply.json["spec"]
    assert 'unknown field \\"spec.wishes\\"' in reply.headers["Warning"]


async def test_unknown_fields_are_refused_where_that_is_asked_for(cluster: Cluster):
    reply = await cluster.create("inferencepools", pool(wishes=1), fieldValidation="Strict")
    assert (reply.code, reply.reason) == (400, "BadRequest")
    assert 'strict decoding error: unknown field "spec.wishes"' in reply.message


async def test_a_patch_with_unknown_fields_is_invalid_where_that_is_asked_for(cluster: Cluster):
    await cluster.made("inferencepools", pool())
    patch = {"spec": {"wishes": 1}}
    reply = await cluster.patch("inferencepools", "a", patch, fieldValidation="Strict")
    assert (reply.code, reply.reason, reply.fields) == (422, "Invalid", ["patch"])
    assert 'strict decoding error: unknown field "spec.wishes"' in reply.message


async def test_unknown_fields_cannot_be_applied(cluster: Cluster):
    reply = await cluster.patch(
        "inferencepools", "a", pool(wishes=1), kind="apply", fieldManager="x"
    )
    assert reply.code == 500
    assert ".spec.wishes: field not declared in schema" in reply.message


async def test_unknown_fields_can_be_ignored(cluster: Cluster):
    reply = await cluster.create("inferencepools", pool(wishes=1), fieldValidation="Ignore")
    assert reply.code == 201
    assert "Warning" not in reply.headers


async def test_a_body_without_kind(cluster: Cluster):
    body = {name: part for name, part in pool().items() if name != "kind"}
    reply = await cluster.create("inferencepools", body)
    assert (reply.code, reply.reason) == (400, "BadRequest")


async def test_a_version_that_is_not_served(cluster: Cluster):
    path = f"/{POOLS[:-2]}v1alpha2/inferencepools"
    reply = await cluster.call("GET", path)
    assert (reply.code, reply.text) == (404, "404 page not found\n")


async def test_definitions_are_established(cluster: Cluster):
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    reply = await cluster.call("GET", f"{path}/inferencepools.inference.networking.k8s.io")
    status = reply.json["status"]
    held = {each["type"]: each["status"] for each in status["conditions"]}
    assert held["Established"] == held["NamesAccepted"] == "True"
    assert status["storedVersions"] == ["v1"]


async def test_a_definition_that_goes_takes_its_objects_and_watches(cluster: Cluster, fake):
    made = await cluster.made("inferencepools", pool())
    at = made["metadata"]["resourceVersion"]
    async with cluster.watch("inferencepools", resourceVersion=at) as events:
        fake.uninstall("inferencepools.inference.networking.k8s.io")
        assert [each["type"] for each in await events.rest()] == ["DELETED"]
    assert (await cluster.get("inferencepools")).text == "404 page not found\n"
    for path in CRDS:
        fake.install(path)
    assert (await cluster.get("inferencepools")).json["items"] == []


TWO_VERSIONS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.kubeapi.example}
spec:
  group: kubeapi.example
  scope: Namespaced
  names: {plural: things, kind: Thing}
  versions:
  - {name: v1, served: true, storage: true, schema: &any {openAPIV3Schema: &open
      {type: object, x-kubernetes-preserve-unknown-fields: true}}}
  - {name: v1beta1, served: true, storage: false, schema: *any}
  - {name: v1alpha1, served: false, storage: false, schema: *any}
"""


async def test_versions_of_a_kind_are_the_same_objects(cluster: Cluster, fake):
    fake.put(yaml.safe_load(TWO_VERSIONS))
    root = "/apis/kubeapi.example/{}/namespaces/" + cluster.namespace + "/things"
    body = {
        "apiVersion": "kubeapi.example/v1beta1",
        "kind": "Thing",
        "metadata": {"name": "a"},
        "anything": {"goes": True},
    }
    made = await cluster.call("POST", root.format("v1beta1"), body)
    assert (made.code, made.json["apiVersion"]) == (201, "kubeapi.example/v1beta1")
    other = await cluster.call("GET", root.format("v1") + "/a")
    assert other.json == made.json | {"apiVersion": "kubeapi.example/v1"}
    assert (await cluster.call("GET", root.format("v1alpha1"))).code == 404


def test_a_rule_that_cannot_be_evaluated_is_refused_loudly():
    crd = yaml.safe_load(TWO_VERSIONS)
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["x-kubernetes-validations"] = [{"rule": "self.size() < 7"}]
    with pytest.raises(ValueError, match=r"does not know the rule 'self.size\(\) < 7'"):
        kind_of(crd)
