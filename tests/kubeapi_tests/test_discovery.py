"""What a real API server says that it serves."""

import pytest

from tests.kubeapi_tests.cluster import Cluster


async def test_the_version_of_the_server(cluster: Cluster):
    found = (await cluster.call("GET", "/version")).json
    assert (found["major"], found["gitVersion"][:3]) == ("1", "v1.")


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
async def test_health_is_a_word(cluster: Cluster, path):
    reply = await cluster.call("GET", path)
    assert (reply.code, reply.text) == (200, "ok")


async def test_versions_of_the_core(cluster: Cluster):
    found = (await cluster.call("GET", "/api")).json
    assert (found["kind"], found["versions"]) == ("APIVersions", ["v1"])


async def test_groups(cluster: Cluster):
    found = (await cluster.call("GET", "/apis")).json
    groups = {each["name"]: each for each in found["groups"]}
    pools = groups["inference.networking.k8s.io"]
    assert pools["preferredVersion"] == {
        "groupVersion": "inference.networking.k8s.io/v1",
        "version": "v1",
    }
    assert {"coordination.k8s.io", "authentication.k8s.io", "llm-d.ai"} <= groups.keys()


async def test_one_group(cluster: Cluster):
    found = (await cluster.call("GET", "/apis/llm-d.ai")).json
    assert (found["kind"], found["name"]) == ("APIGroup", "llm-d.ai")


RESOURCES = {
    "/api/v1": {"pods": True, "pods/status": True, "namespaces": False, "events": True},
    "/apis/coordination.k8s.io/v1": {"leases": True},
    "/apis/inference.networking.k8s.io/v1": {
        "inferencepools": True,
        "inferencepools/status": True,
    },
    "/apis/llm-d.ai/v1alpha2": {"inferenceobjectives": True, "inferencemodelrewrites": True},
    "/apis/authentication.k8s.io/v1": {"tokenreviews": False},
}


@pytest.mark.parametrize(("path", "wanted"), RESOURCES.items())
async def test_resources_of_a_version(cluster: Cluster, path, wanted):
    found = (await cluster.call("GET", path)).json
    assert found["kind"] == "APIResourceList"
    namespaced = {each["name"]: each["namespaced"] for each in found["resources"]}
    assert wanted.items() <= namespaced.items()


@pytest.mark.parametrize(
    "path", ["/apis/nothing.example", "/apis/nothing.example/v1", "/nothing", "/version/more"]
)
async def test_what_is_not_served(cluster: Cluster, path):
    reply = await cluster.call("GET", path)
    assert (reply.code, reply.text) == (404, "404 page not found\n")


async def test_writes_say_in_openapi_that_they_validate_fields(cluster: Cluster):
    index = (await cluster.call("GET", "/openapi/v3")).json["paths"]
    where = index["apis/inference.networking.k8s.io/v1"]["serverRelativeURL"]
    path, _, query = where.partition("?")
    options = dict(each.split("=") for each in query.split("&") if each)
    document = (await cluster.call("GET", path, query=options)).json
    root = "/apis/inference.networking.k8s.io/v1/namespaces/{namespace}/inferencepools/{name}"
    names = {each["name"] for each in document["paths"][root]["patch"]["parameters"]}
    assert "fieldValidation" in names
