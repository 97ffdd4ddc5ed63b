"""The picker in others' Deployments, of which only the image is changed."""

from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.adapters.tls import certificate
from tests.adapters.kube.rig import CRDS, pod
from tests.kubeapi import FakeKubernetes
from tests.llm_d_router_deployments import DEPLOYMENTS, NAMESPACE, reads
from tests.processes import forked_picker
from tests.protocol.kube.objects import pool

LABELS = {"app": "vllm-qwen3-32b"}


def mounted(deployment, folder):
    """Write a container's files; give its arguments."""
    for name, text in deployment.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("$FILES", str(folder)))
    if deployment.tls:
        (folder / "tls").mkdir()
        for name, content in zip(("tls.key", "tls.crt"), certificate(None), strict=True):
            (folder / "tls" / name).write_bytes(content)
    return [each.replace("$FILES", str(folder)) for each in deployment.args]


def put_objects(api, *, with_pool):
    api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for number in (1, 2, 3):
        each = pod(f"p-{number}", f"127.0.9.{number}", labels=LABELS, namespace=NAMESPACE)
        api.put(each)
    if with_pool:
        document = pool("chat", labels=LABELS)
        document["metadata"]["namespace"] = NAMESPACE
        api.put(document)


async def status(port, service):
    """What a kubelet's probe hears."""
    asked = health_pb2.HealthCheckRequest(service=service)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(asked)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


async def metrics_status(port):
    url = f"http://127.0.0.1:{port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status


async def until_ready(lines):
    """The lines of a start, by their events."""
    found: dict[str, list[Any]] = {}
    async for line in lines:
        found.setdefault(line["event"], []).append(line)
        if line["event"] == "ready":
            return found
    raise AssertionError(found)


@pytest.mark.parametrize("name", DEPLOYMENTS)
async def test_it_serves_with_the_arguments_the_files_and_the_rights_of_its_chart(name, tmp_path):
    deployment = DEPLOYMENTS[name]
    async with FakeKubernetes(crds=CRDS) as api:
        put_objects(api, with_pool=deployment.pool)
        api.token("epp", deployment.cluster_rules)
        token = api.token("epp", deployment.rules, NAMESPACE)
        api.kubeconfig(tmp_path / "kubeconfig", user={"token": token})
        arguments = mounted(deployment, tmp_path)
        async with forked_picker(arguments, tmp_path, **deployment.env) as lines:
            started = await until_ready(lines)
            (serving,) = started["serving"]
            assert [line["endpoints"] for line in started["ready"]] == [3]
            assert serving["secure"] == ("--secure-serving=false" not in arguments)
            for service in deployment.probes:
                assert await status(serving["health_port"], service) == "SERVING"
            everybody = "--metrics-endpoint-auth=false" in arguments
            assert await metrics_status(serving["metrics_port"]) == (200 if everybody else 401)
        assert names_of(started) == set(deployment.said)
        assert not [line for each in started.values() for line in each if "missing_rules" in line]
        if "--ha-enable-leader-election" in arguments:
            assert api.get("Lease", f"epp-{NAMESPACE}-chat.llm-d.ai", NAMESPACE)


def names_of(started):
    """The flags, and the first variable of each reason, that a line at the start is about."""
    events = ("flag.without_effect", "flag.mapped", "environment.without_effect")
    lines = [line for event in events for line in started.get(event, ())]
    return {line["name"].partition(",")[0] for line in lines}


async def test_a_right_that_is_missing_is_named(tmp_path):
    deployment = DEPLOYMENTS["gateway chart"]
    async with FakeKubernetes(crds=CRDS) as api:
        put_objects(api, with_pool=True)
        token = api.token("epp", [reads("", "pods")], NAMESPACE)
        api.kubeconfig(tmp_path / "kubeconfig", user={"token": token})
        async with forked_picker(mounted(deployment, tmp_path), tmp_path) as lines:
            async for line in lines:
                if "inferencepools" in str(line.get("missing_rules", line.get("missing_rule"))):
                    break
