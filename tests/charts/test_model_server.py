"""The chart `model-server`: Kubernetes takes its objects, and the launcher their arguments."""

import pytest
from model_server.adapters import read
from model_server.client import ASK_SECONDS
from model_server.command import launch
from model_server.extra import OWN

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
PLACED = {
    "serviceAccountName": "models",
    "priorityClassName": "high",
    "runtimeClassName": "nvidia",
    "nodeSelector": {"gpu": "h100"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
}
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
            **PLACED,
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


NODE = {"POD_IP": "10.0.0.7"}


def launched(things, folder, **environ):
    """What the launcher makes of its file, in a pod with this environment."""
    path = folder / "server.yaml"
    path.write_text(only(things, "ConfigMap", "qwen")["data"]["server.yaml"])
    return launch([f"--config={path}"], "", NODE | environ, lambda: "gpu")


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
def test_the_launcher_takes_its_file(name, tmp_path):
    things = rendered(name)
    served = CASES[name].get("servedModelName") or CASES[name]["model"]
    for container in containers(things):
        assert container["command"] == ["python", "-m", "model_server.launch"]
        assert container["args"] == ["--config=/config/server.yaml"]
    made = launched(things, tmp_path)
    assert made.settings.device == CASES[name].get("variant", "gpu")
    assert made.settings.served_model_name == {"/models/llama/": "llama"}.get(served, served)
    ports = {each["name"]: each["containerPort"] for each in containers(things)[0]["ports"]}
    assert (ports["http"], ports["probes"]) == (made.settings.port, made.life.probe_port)
    assert ports.get("kv-events") == made.settings.kv_events_port
    assert ports.get("kv-replay") == made.settings.kv_replay_port


def test_what_is_said_of_the_engine_reaches_it(tmp_path):
    cpu = launched(rendered("cpu"), tmp_path).settings
    assert (cpu.kv_cache_bytes, cpu.block_size, cpu.threads) == (4 << 30, 64, 8)
    tuned = launched(rendered("tuned"), tmp_path).settings
    assert (tuned.max_model_len, tuned.max_num_seqs, tuned.host) == (32768, 64, "::")
    assert (tuned.tensor_parallel_size, tuned.extra) == (1, ("--seed=1",))


@pytest.mark.parametrize("adapters", [LORA["lora"]["adapters"], []])
def test_adapters_are_followed_without_a_new_pod(adapters, tmp_path):
    things = objects(
        CHART, v.merged(CASES["lora"], {"lora": {"adapters": adapters}}), release="qwen"
    )
    settings = launched(things, tmp_path).settings
    assert (settings.lora_file, settings.max_loras) == ("/adapters/adapters.yaml", 4)
    text = only(things, "ConfigMap", "qwen-adapters")["data"]["adapters.yaml"]
    wanted = read(text, settings.served_model_name).present.values()
    assert [(each.name, each.path) for each in wanted] == [
        (each["name"], each["path"]) for each in adapters
    ]
    volumes = {each["name"]: each for each in templates(things)[0]["spec"]["volumes"]}
    assert volumes["adapters"]["configMap"]["name"] == "qwen-adapters"
    assert templates(things) == templates(rendered("lora"))


@pytest.mark.parametrize("rank", [0, 3])
def test_several_nodes_are_one_server(rank, tmp_path):
    told = {
        "LWS_GROUP_SIZE": "4",
        "LWS_WORKER_INDEX": str(rank),
        "LWS_LEADER_ADDRESS": "qwen-0.qwen.inf",
    }
    settings = launched(rendered("nodes"), tmp_path, **told).settings
    assert (settings.nodes, settings.node_rank, settings.serves) == (4, rank, rank == 0)
    assert (settings.leader_address, settings.tensor_parallel_size) == ("qwen-0.qwen.inf", 8)
    for container in containers(rendered("nodes")):
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}


@pytest.mark.parametrize("values", [MODEL, NODES], ids=["one node", "several nodes"])
def test_pods_run_where_and_as_what_they_are_told(values):
    for pod in templates(objects(CHART, v.merged(MODEL, values, PLACED))):
        assert {name: pod["spec"][name] for name in PLACED} == PLACED


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
def test_a_pod_has_time_to_end(name, tmp_path):
    things = rendered(name)
    pod, *_ = templates(things)
    (container,) = pod["spec"]["containers"]
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    made = launched(things, tmp_path)
    drain = made.settings.drain_seconds
    assert pod["spec"]["terminationGracePeriodSeconds"] > pause + drain + 10
    for probe in ("readinessProbe", "livenessProbe"):  # two questions to the engine each
        assert container[probe]["timeoutSeconds"] > 2 * ASK_SECONDS
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] > made.life.start_seconds


def test_without_a_pause_there_is_no_hook():
    # Kubernetes before 1.33 refuses a pause of 0 seconds.
    things = objects(CHART, v.merged(MODEL, {"drain": {"preStopSeconds": 0}}))
    assert [found for thing in things for found in complaints(thing)] == []
    assert "lifecycle" not in containers(things)[0]


def test_kv_events_are_for_pickers_alone():
    policy = only(rendered("events"), "NetworkPolicy")["spec"]
    requests, probes, events = policy["ingress"]
    assert probes == {"ports": [{"port": 8080, "protocol": "TCP"}]}
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
    security = templates(things)[0]["spec"]["securityContext"]
    assert (security["fsGroup"], security["fsGroupChangePolicy"]) == (65532, "OnRootMismatch")


ONE_NODE = {"modelCache": {"persistentVolumeClaim": {"accessModes": ["ReadWriteOnce"]}}}


@pytest.mark.parametrize(
    ("values", "strategy"),
    [
        ({}, ("RollingUpdate", {"maxSurge": 1, "maxUnavailable": 0})),
        ({"replicas": 2}, ("RollingUpdate", {"maxSurge": 1, "maxUnavailable": 1})),
        # Where all GPUs are taken a new pod would wait for ever beside the old one.
        ({"strategy": {"type": "Recreate"}}, ("Recreate", None)),
        # And one on another node for the claim.
        (v.merged(CLAIM, ONE_NODE), ("Recreate", None)),
        (CLAIM, ("RollingUpdate", {"maxSurge": 1, "maxUnavailable": 0})),
    ],
)
def test_a_new_pod_can_take_the_place_of_an_old_one(values, strategy):
    things = objects(CHART, v.merged(MODEL, values))
    assert [found for thing in things for found in complaints(thing)] == []
    said = only(things, "Deployment")["spec"]["strategy"]
    assert (said["type"], said.get("rollingUpdate")) == strategy


@EVERY
def test_notes_tell_the_next_step(name):
    said = notes(CHART, CASES[name])
    assert "helm install rel-pool charts/warmpick" in said
    # kubectl shows logs of its own kinds only, which a LeaderWorkerSet is not.
    assert f" logs {'pod/rel-0' if name == 'nodes' else 'deployment/rel'}\n" in said
    assert "<no value>" not in said
    assert "\n\n\n" not in said


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model": ""}, "model is required"),
        ({"variant": "tpu"}, "must be one of 'gpu', 'cpu'"),
        (v.merged(NODES, {"variant": "cpu"}), "multiNode.enabled requires variant=gpu"),
        ({"variant": "cpu", "engine": {"blockSize": 16}}, "it must be a multiple of 32"),
        ({"lora": {"adapters": [{"name": "a", "path": "b"}]}}, "lora.enabled is false"),
        ({"lora": {"enabled": True, "adapters": [{"name": "a"}]}}, "missing property 'path'"),
        (
            v.merged(CLAIM, {"modelCache": {"persistentVolumeClaim": {"existingClaim": "x"}}}),
            "create and existingClaim are both set: keep only one",
        ),
        (
            v.merged(
                CLAIM,
                {
                    "replicas": 2,
                    "modelCache": {"persistentVolumeClaim": {"accessModes": ["ReadWriteOnce"]}},
                },
            ),
            "add ReadWriteMany to modelCache",
        ),
        (v.merged(NODES, CLAIM, ONE_NODE), "add ReadWriteMany to modelCache"),
        (
            v.merged(NODES, {"strategy": {"type": "Recreate"}}),
            "strategy applies only to a Deployment",
        ),
        (
            v.merged(EVENTS, {"kvEvents": {"port": 8000}}),
            "must differ, but are 8000, 8080, 8000, 5558",
        ),
        ({"gpus": 1}, "additional properties 'gpus' not allowed"),
        ({"engine": {"kvCacheBytes": "lots"}}, "at '/engine/kvCacheBytes'"),
        ({"engine": {"kvCacheBytes": "0"}}, "at '/engine/kvCacheBytes'"),
        *(
            ({"engine": {"args": [f"{flag}=1"]}}, f"engine.args has {flag}, which the launcher")
            for flag in OWN
        ),
        ({"engine": {"args": ["--shutdown_timeout", "1"]}}, "has --shutdown-timeout, which"),
        ({"replicas": None}, "replicas is null: leave it out"),
        ({"kvEvents": {"port": None}}, "kvEvents.port is null: leave it out"),
        ({"image": {"registry": None}}, "image.registry is null: leave it out"),
        (
            v.merged(EVENTS, {"networkPolicy": {"pickers": None}}),
            "networkPolicy.pickers is null: leave it out",
        ),
        ({"monitoring": {"interval": "1.5s"}}, "at '/monitoring/interval'"),
        ({"networkPolicy": {"pickers": []}}, "at '/networkPolicy/pickers': minItems"),
    ],
)
def test_bad_values_are_refused(values, words):
    things, reason = refused_or_rendered(CHART, v.merged(MODEL, values))
    assert things == []
    assert words in reason


def test_labels_and_annotations_of_ones_own_are_there_once():
    mine = {
        "podLabels": {"app": "qwen", "llm-d.ai/engine-type": "mine"},
        "podAnnotations": {"checksum/config": "0", "note": "b"},
    }
    stood, made = (
        only(objects(CHART, each), "Deployment")["spec"]["template"]["metadata"]
        for each in (v.merged(MODEL, {"podLabels": {"app": "qwen"}}), v.merged(MODEL, mine))
    )
    assert made["labels"] == {**stood["labels"], "llm-d.ai/engine-type": "mine"}
    assert made["annotations"] == {**stood["annotations"], "note": "b"}


def test_a_pod_without_resources_has_its_gpus():
    (container,) = containers(objects(CHART, v.merged(MODEL, {"resources": None})))
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 1}}


def test_a_key_without_a_value_adds_no_labels_or_annotations():
    nothing = v.merged(MODEL, {"podLabels": None, "podAnnotations": None})
    assert objects(CHART, nothing) == objects(CHART, MODEL)
