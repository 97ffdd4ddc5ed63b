"""The manifests: Kubernetes takes them, they fit each other, and they say what the charts say."""

import subprocess

import pytest
import yaml
from model_server.client import ASK_SECONDS
from model_server.command import launch
from model_server.simulator.cli import parse as simulator

from tests.charts import values as v
from tests.charts.helm import ROOT, objects, only
from tests.charts.kubectl import KUBECTL, needs_kubectl
from tests.charts.schemas import complaints

MANIFESTS = ROOT / "manifests"
FOLDERS = {
    str(path.parent.relative_to(MANIFESTS)): path.parent
    for path in sorted(MANIFESTS.rglob("kustomization.yaml"))
}
EVERY = pytest.mark.parametrize("folder", FOLDERS)
GATEWAYS = [name for name in v.PROVIDERS if name != "none"]


def things(folder):
    """The objects of a kustomization, read from the files that it lists."""
    path = FOLDERS[folder]
    listed = yaml.safe_load((path / "kustomization.yaml").read_text())["resources"]
    return [
        thing for name in listed for thing in yaml.safe_load_all((path / name).read_text()) if thing
    ]


BY_NEED = {"inferencepools.inference.networking.x-k8s.io.yaml"}
"""With both kinds of pools in a cluster `kubectl get inferencepool` is ambiguous."""


@EVERY
def test_kubernetes_takes_every_object(folder):
    assert [found for thing in things(folder) for found in complaints(thing)] == []


@EVERY
def test_every_file_is_listed(folder):
    listed = yaml.safe_load((FOLDERS[folder] / "kustomization.yaml").read_text())["resources"]
    there = {path.name for path in FOLDERS[folder].glob("*.yaml")} - {"kustomization.yaml"}
    assert sorted(listed) == sorted(there - BY_NEED)


@needs_kubectl("manifests/ as `kubectl kustomize` builds it")
@EVERY
def test_kustomize_builds_it(folder):
    built = subprocess.run(
        [str(KUBECTL), "kustomize", str(FOLDERS[folder])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr

    def names(found):
        return sorted((each["kind"], each["metadata"]["name"]) for each in found)

    assert names(yaml.safe_load_all(built.stdout)) == names(things(folder))


def test_there_is_a_folder_for_every_gateway():
    folders = {name.partition("/")[2] for name in FOLDERS if name.startswith("gateways/")}
    assert folders == set(GATEWAYS)


def bare(thing):
    """What an object says, without who made it."""
    named = {key: thing["metadata"][key] for key in ("name",)}
    return {**thing, "metadata": named}


@pytest.mark.parametrize("name", GATEWAYS)
def test_a_gateway_gets_what_the_chart_gives_it(name):
    found = things(f"gateways/{name}")
    namespace = only(found, "HTTPRoute")["metadata"].get("namespace", "default")
    made = {"gateway": {"create": True}, "gatewayClass": {"create": True}}
    chart = objects(
        "warmpick",
        v.merged(v.POOL, v.provider(name), v.ROUTED, {"provider": {"envoyGateway": made}}),
        release="llm",
        namespace=namespace,
    )
    theirs = {(each["kind"], each["metadata"]["name"]): each for each in chart}
    shared = [
        each
        for each in found
        if name == "envoy-gateway" or each["kind"] not in {"Gateway", "GatewayClass"}
    ]
    assert shared
    for thing in shared:
        same = theirs[thing["kind"], thing["metadata"]["name"]]
        assert bare(same) == bare(thing)
        place = thing["metadata"].get("namespace", same["metadata"].get("namespace"))
        assert same["metadata"].get("namespace") == place


@pytest.mark.parametrize("name", GATEWAYS)
def test_a_route_finds_its_gateway(name):
    found = things(f"gateways/{name}")
    (parent,) = only(found, "HTTPRoute")["spec"]["parentRefs"]
    assert parent["name"] == only(found, "Gateway")["metadata"]["name"]
    classes = {each["metadata"]["name"] for each in found if each["kind"] == "GatewayClass"}
    assert classes <= {only(found, "Gateway")["spec"]["gatewayClassName"]}


@pytest.mark.parametrize("folder", ["models/gpu", "models/cpu", "models/simulator"])
def test_model_servers_are_in_the_pool(folder):
    pool = only(things("pools"), "InferencePool", "llm")["spec"]
    deployment = only(things(folder), "Deployment")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert pool["selector"]["matchLabels"].items() <= labels.items()
    assert deployment["selector"]["matchLabels"].items() <= labels.items()
    (container,) = deployment["template"]["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert [ports["http"]] == [each["number"] for each in pool["targetPorts"]]


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_a_probe_waits_for_both_questions_to_the_engine(device):
    spec = only(things(f"models/{device}"), "Deployment")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["timeoutSeconds"] > 2 * ASK_SECONDS


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_the_launcher_takes_its_arguments(device):
    spec = only(things(f"models/{device}"), "Deployment")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    made = launch(container["args"], "", {}, lambda: "gpu")
    settings = made.settings
    assert {"name": "probes", "containerPort": made.life.probe_port} in container["ports"]
    assert (settings.device, settings.port) == (device, 8000)
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["terminationGracePeriodSeconds"] > pause + settings.drain_seconds + 10


def test_objects_of_a_pool_refer_to_one_that_is_there():
    found = things("pools")
    pools = {each["metadata"]["name"]: each for each in found if each["kind"] == "InferencePool"}
    referring = [each for each in found if "poolRef" in each["spec"]]
    assert {each["spec"]["poolRef"]["name"] for each in referring} == {"llm"}
    for name, pool in pools.items():
        assert pool["spec"]["endpointPickerRef"]["name"] == f"{name}-epp"


def test_the_simulator_takes_its_arguments():
    (container,) = only(things("models/simulator"), "Deployment")["spec"]["template"]["spec"][
        "containers"
    ]
    settings = simulator(container["args"])
    assert (settings.port, settings.served_model_name) == (8000, "sim-model")
