"""kubectl as a reader, where it is found: what people type works on the API of the tests."""

import asyncio
import json

import pytest

from tests.kubeapi_tests.cluster import CRDS, config_map, pod, pool
from tests.kubeapi_tests.kubectl import Kubectl, needs_kubectl

pytestmark = needs_kubectl("the tests' Kubernetes API as kubectl reads it")


@pytest.fixture
def kubectl(api, tmp_path):
    return Kubectl(api, tmp_path)


async def test_apply_get_patch_and_delete(api, kubectl):
    assert "inferencepool.inference.networking.k8s.io/a created" in await kubectl(
        "apply", "-f", "-", body=pool()
    )
    assert "unchanged" in await kubectl("apply", "-f", "-", body=pool())
    assert "configured" in await kubectl(
        "apply", "-f", "-", body=pool(targetPorts=[{"number": 9000}])
    )
    found = json.loads(await kubectl("get", "infpool", "a", "-o", "json"))
    assert found["spec"]["targetPorts"] == [{"number": 9000}]
    patch = '{"spec":{"appProtocol":"kubernetes.io/h2c"}}'
    await kubectl("patch", "inferencepool", "a", "--type=merge", "-p", patch)
    assert api.get("InferencePool", "a")["spec"]["appProtocol"] == "kubernetes.io/h2c"
    assert "deleted" in await kubectl("delete", "inferencepool", "a")
    assert "No resources found" in (await kubectl.run("get", "inferencepools"))[2]


async def test_apply_validates_on_the_server(kubectl):
    code, _, told = await kubectl.run("apply", "-f", "-", body=pool(wishes=1))
    assert code == 1
    assert 'unknown field "spec.wishes"' in told
    code, _, told = await kubectl.run("apply", "-f", "-", body=pool(targetPorts=[]))
    assert code == 1
    assert "should have at least 1 items" in told


async def test_three_way_apply_of_a_built_in_kind(kubectl):
    for data in ({"x": "1", "y": "2"}, {"x": "3"}):
        await kubectl("apply", "-f", "-", body=config_map() | {"data": data})
    found = json.loads(await kubectl("get", "cm", "a", "-o", "json"))
    assert found["data"] == {"x": "3"}


async def test_server_side_apply(kubectl):
    said = await kubectl("apply", "--server-side", "-f", "-", body=config_map(x="1"))
    assert "serverside-applied" in said
    code, _, told = await kubectl.run(
        "apply",
        "--server-side",
        "--field-manager=other",
        "-f",
        "-",
        body=config_map(x="2"),
    )
    assert code == 1
    assert "Apply failed with 1 conflict" in told


async def test_status_by_subresource_and_wait(api, kubectl):
    api.put(pod())
    waiting = asyncio.create_task(
        kubectl("wait", "--for=condition=Ready", "pod/a", "--timeout=30s")
    )
    await api.asked(lambda ask: ask.verb == "watch" and ask.resource == "pods")
    patch = '{"status":{"conditions":[{"type":"Ready","status":"True"}]}}'
    await kubectl("patch", "pod", "a", "--subresource=status", "-p", patch)
    assert "condition met" in await waiting


async def test_deletion_is_waited_for(api, kubectl):
    api.put(pod(nodeName="n"))
    waiting = asyncio.create_task(kubectl("delete", "pod", "a"))
    await api.asked(lambda ask: ask.verb == "watch" and ask.resource == "pods")
    assert "deletionTimestamp" in api.get("Pod", "a")["metadata"]
    api.delete("Pod", "a")
    assert 'pod "a" deleted' in await waiting


async def test_definitions_are_applied_and_established(kubectl):
    for path in CRDS:
        await kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))
    said = await kubectl("wait", "--for=condition=Established", "crd", "--all")
    assert said.count("condition met") == len(CRDS)


async def test_a_dry_run_on_the_server(api, kubectl):
    said = await kubectl("apply", "--dry-run=server", "-f", "-", body=pool())
    assert "created (server dry run)" in said
    assert [ask.verb for ask in api.requests if ask.resource == "inferencepools"][-1] == "create"
    assert "No resources found" in (await kubectl.run("get", "inferencepools"))[2]


async def test_a_namespace_goes_with_all_that_is_in_it(kubectl):
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}
    await kubectl("apply", "-f", "-", body=body)
    await kubectl("apply", "-n", "other", "-f", "-", body=config_map())
    await kubectl("delete", "namespace", "other")
    assert (await kubectl.run("get", "cm", "-n", "other"))[1] == ""


async def test_who_may_not_is_told_what_lacks(api, kubectl):
    api.kubeconfig(kubectl.kubeconfig, user={"token": api.token("nobody")})
    code, _, told = await kubectl.run("get", "pods")
    assert code == 1
    assert 'User "nobody" cannot list resource "pods" in API group ""' in told
