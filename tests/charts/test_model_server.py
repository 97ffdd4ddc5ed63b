"""The chart `model-server`: Kubernetes takes its objects, and the launcher their arguments."""

import pytest
from model_server.launch import parse

from tests.charts import values as v
from tests.charts.helm import lint, notes, objects, only, refused_or_rendered
from tests.charts.schemas import complaints

CHART = "model-server"
MODEL = {"model": "Qwen/Qwen3-32B"}
CPU = v.merged(
    MODEL, {"variant": "cpu", "engine": {"kvCacheBytes": "4G", "blockSize": 64, "threads": 8}}
)
LORA = {
    "lora": {
        "enabled": True,
        "adapters": [
            {"name": "sql", "path": "/adapters/sql"},
            {"name": "chat", "path": "hub/chat"},
        ],
    }
}
EVENTS = {"kvEvents": {"enabled": True}}
NODES = {"multiNode": {"enabled": True, "size": 4}, "gpu": {"count": 8}}
CLAIM = {"modelCache": {"persistentVolumeClaim": {"create": True, "storageClassName": "fast"}}}
CASES = {
    "gpu": MODEL,
    "cpu": CPU,
    "lora": v.merged(MODEL, LORA),
    "events": v.merged(
        MODEL, EVENTS, {"networkPolicy": {"clients": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}}
    ),
    "nodes": v.merged(MODEL, NODES, EVENTS, LORA),
    "claim": v.merged(MODEL, CLAIM, {"replicas": 3}),
    "folder": {
        "model": "/models/llama/",
        "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
        "volumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
    },
    "tuned": v.merged(
        MODEL,
        {
            "servedModelName": "qwen",
            "host": "::",
            "podLabels": {"app": "qwen", "tier": "gpu"},
            "replicas": 2,
            "image": {"registry": "registry.example:5000", "tag": "v1"},
            "imagePullSecrets": [{"name": "pull"}],
            "engine": {"maxModelLen": 32768, "maxNumSeqs": 64, "args": ["--seed=1"]},
            "huggingFaceToken": {"secretName": "hub"},
            "env": [{"name": "A", "value": "b"}],
            "nodeSelector": {"gpu": "h100"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "priorityClassName": "high",
            "runtimeClassName": "nvidia",
            "podAnnotations": {"a/b": "c"},
            "podDisruptionBudget": {"enabled": True},
            "monitoring": {"enabled": True, "labels": {"release": "prom"}},
        },
    ),
}
EVERY = pytest.mark.parametrize("name", CASES)


def rendered(name):
    return objects(CHART, CASES[name], release="qwen")


def templates(things):
    """The pods that serve, then those that work for them."""
    for thing in things:
        if thing["kind"] == "Deployment":
            return [thing["spec"]["template"]]
        if thing["kind"] == "LeaderWorkerSet":
            group = thing["spec"]["leaderWorkerTemplate"]
            return [group["leaderTemplate"], group["workerTemplate"]]
    raise AssertionError("no pods")


def containers(things):
    return [each["spec"]["containers"][0] for each in templates(things)]


@EVERY
def test_kubernetes_takes_every_object(name):
    assert [found for thing in rendered(name) for found in complaints(thing)] == []


@EVERY
def test_lint_finds_nothing(name):
    assert lint(CHART, CASES[name]) == []


@EVERY
def test_no_container_has_more_rights_than_it_needs(name):
    for pod, container in zip(templates(rendered(name)), containers(rendered(name)), strict=True):
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@EVERY
def test_the_launcher_takes_its_arguments(name):
    served = CASES[name].get("servedModelName") or CASES[name]["model"]
    container, *_ = containers(rendered(name))
    assert container["command"] == ["python", "-m", "model_server.launch"]
    settings = parse(container["args"]).settings
    assert settings.device == CASES[name].get("variant", "gpu")
    assert settings.served_model_name == {"/models/llama/": "llama"}.get(served, served)
    assert settings.port == container["ports"][0]["containerPort"] == 8000
    assert (settings.kv_events_port == 5557) == ("kvEvents" in CASES[name])


def test_what_is_said_of_the_engine_reaches_it():
    cpu = parse(containers(rendered("cpu"))[0]["args"]).settings
    assert (cpu.kv_cache_bytes, cpu.block_size, cpu.threads) == (4 << 30, 64, 8)
    tuned = parse(containers(rendered("tuned"))[0]["args"]).settings
    assert (tuned.max_model_len, tuned.max_num_seqs, tuned.host) == (32768, 64, "::")
    assert tuned.extra == ("--tensor-parallel-size=1", "--seed=1")
    adapters = parse(containers(rendered("lora"))[0]["args"]).settings.extra
    assert adapters[-3:] == ("--lora-modules", "sql=/adapters/sql", "chat=hub/chat")


def test_several_nodes_are_one_server():
    leader, worker = containers(rendered("nodes"))
    shared = [
        "--tensor-parallel-size=8",
        "--pipeline-parallel-size=4",
        "--nnodes=4",
        "--node-rank=$(LWS_WORKER_INDEX)",
        "--master-addr=$(LWS_LEADER_ADDRESS)",
    ]
    assert [each for each in leader["args"] if each in shared] == shared
    assert worker["command"] == ["vllm", "serve"]
    assert worker["args"][:2] == ["Qwen/Qwen3-32B", "--headless"]
    assert [each for each in worker["args"] if each in shared] == shared
    assert "ports" not in worker
    for container in (leader, worker):
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}


def test_only_pods_that_serve_are_in_the_pool():
    leader, worker = templates(rendered("nodes"))
    assert leader["metadata"]["labels"]["app"] == "qwen"
    assert "app" not in worker["metadata"]["labels"]
    tuned, *_ = templates(rendered("tuned"))
    assert {"app": "qwen", "tier": "gpu"}.items() <= tuned["metadata"]["labels"].items()


@EVERY
def test_selectors_find_every_pod(name):
    things = rendered(name)
    for pod in templates(things):
        labels = pod["metadata"]["labels"].items()
        for thing in things:
            spec = thing.get("spec", {})
            if thing["kind"] in {"Deployment", "PodDisruptionBudget"}:
                assert spec["selector"]["matchLabels"].items() <= labels
            if thing["kind"] == "NetworkPolicy":
                assert spec["podSelector"]["matchLabels"].items() <= labels
            if thing["kind"] == "PodMonitor":
                assert spec["selector"]["matchLabels"].items() <= labels


@EVERY
def test_a_pod_has_time_to_end(name):
    pod, *_ = templates(rendered(name))
    (container,) = pod["spec"]["containers"]
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = parse(container["args"]).settings.drain_seconds
    assert pod["spec"]["terminationGracePeriodSeconds"] > pause + drain + 10
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 1800


def test_kv_events_are_for_pickers_alone():
    policy = only(rendered("events"), "NetworkPolicy")["spec"]
    requests, events = policy["ingress"]
    assert [each["port"] for each in requests["ports"]] == [8000]
    assert requests["from"] == [{"ipBlock": {"cidr": "10.0.0.0/8"}}]
    assert [each["port"] for each in events["ports"]] == [5557, 5558]
    picker = only(objects("warmpick", v.POOL), "Deployment")["spec"]["template"]["metadata"]
    (peer,) = events["from"]
    assert peer["podSelector"]["matchLabels"].items() <= picker["labels"].items()
    assert [each for each in rendered("gpu") if each["kind"] == "NetworkPolicy"] == []


def test_the_cache_is_kept_where_it_is_claimed():
    things = rendered("claim")
    claim = only(things, "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    volumes = {each["name"]: each for each in templates(things)[0]["spec"]["volumes"]}
    assert volumes["cache"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert volumes["shared-memory"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}


@EVERY
def test_notes_tell_the_next_step(name):
    said = notes(CHART, CASES[name])
    assert "helm install rel-pool charts/warmpick" in said
    assert "<no value>" not in said
    assert "\n\n\n" not in said


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model": ""}, "model is needed"),
        ({"variant": "tpu"}, "must be one of 'gpu', 'cpu'"),
        (v.merged(NODES, {"variant": "cpu"}), "multiNode.enabled is for variant=gpu"),
        ({"variant": "cpu", "engine": {"blockSize": 16}}, "takes multiples of 32"),
        ({"lora": {"adapters": [{"name": "a", "path": "b"}]}}, "lora.enabled is false"),
        ({"lora": {"enabled": True, "adapters": [{"name": "a"}]}}, "missing property 'path'"),
        (
            v.merged(CLAIM, {"modelCache": {"persistentVolumeClaim": {"existingClaim": "x"}}}),
            "keep one",
        ),
        (
            v.merged(
                CLAIM,
                {
                    "replicas": 2,
                    "modelCache": {"persistentVolumeClaim": {"accessModes": ["ReadWriteOnce"]}},
                },
            ),
            "must have ReadWriteMany",
        ),
        (v.merged(EVENTS, {"kvEvents": {"port": 8000}}), "must differ: 8000, 8000, 5558"),
        ({"gpus": 1}, "additional properties 'gpus' not allowed"),
        ({"engine": {"kvCacheBytes": "lots"}}, "at '/engine/kvCacheBytes'"),
        ({"networkPolicy": {"pickers": []}}, "at '/networkPolicy/pickers': minItems"),
    ],
)
def test_bad_values_are_refused(values, words):
    things, reason = refused_or_rendered(CHART, v.merged(MODEL, values))
    assert things == []
    assert words in reason
