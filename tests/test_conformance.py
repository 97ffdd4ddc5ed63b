"""A picker as the gateway conformance suite starts it: its arguments, its roles, its pools."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.adapters.kube.rig import CRDS, POOLS, pod
from tests.conformance import FILE
from tests.kubeapi import FakeKubernetes
from tests.processes import forked_picker, said
from tests.protocol.kube.objects import pool

NAMESPACE = "inference-conformance-app-backend"
COMMON = ("--grpc-port", "9002", "--grpc-health-port", "9003", "--zap-encoder", "json")


def reads(group, *resources):
    return {"apiGroups": [group], "resources": resources, "verbs": ["get", "list", "watch"]}


POOLS_AND_PODS = [reads("inference.networking.k8s.io", "inferencepools"), reads("", "pods")]
OLD = reads(
    "inference.networking.x-k8s.io",
    *("inferenceobjectives", "inferencemodelrewrites", "inferencepools"),
)
RELEASES = {
    "1.5": (("--v", "4", "--config-file", "plugins.yaml"), [OLD, *POOLS_AND_PODS], CRDS, [3000]),
    "1.6": ((), POOLS_AND_PODS, POOLS, [3000, 3002, 3004]),
    "1.6 where more is installed": ((), POOLS_AND_PODS, CRDS, [3000]),
}
"""Arguments, the Role's rules, which CRDs there are, and ports of the pool."""


async def probe(port):
    """What a kubelet's probe of the suite's asks."""
    asked = health_pb2.HealthCheckRequest(service="inference-extension")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(asked)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def put_namespace(api):
    api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})


def put_pool(api, ports):
    """Have the pool, and three pods of it."""
    for number in (1, 2, 3):
        api.put(pod(f"p-{number}", f"127.0.9.{number}", namespace=NAMESPACE))
    document = pool(ports=ports)
    document["metadata"]["namespace"] = NAMESPACE
    api.put(document)


@pytest.mark.parametrize("release", RELEASES)
async def test_a_picker_of_the_suites_becomes_ready(release, tmp_path):
    arguments, rules, crds, ports = RELEASES[release]
    arguments = ("--pool-name", "pool", "--pool-namespace", NAMESPACE, *COMMON, *arguments)
    async with FakeKubernetes(crds=crds) as api:
        put_namespace(api)
        token = api.token("default", rules, NAMESPACE)
        api.kubeconfig(tmp_path / "kubeconfig", user={"token": token})
        (tmp_path / "plugins.yaml").write_text(FILE)
        async with forked_picker(arguments, tmp_path) as lines:
            started = await said(lines, "serving")
            assert started["secure"] is True
            assert await probe(started["health_port"]) == "NOT_SERVING"
            put_pool(api, ports)
            assert (await said(lines, "ready"))["endpoints"] == 3 * len(ports)
            assert await probe(started["health_port"]) == "SERVING"
