"""What the containers of the picker's pod share: volumes, ports, and who they run as."""

from collections import Counter

import pytest

from tests.charts import router_values as r
from tests.charts import values as v
from tests.charts.helm import objects, only, refused_or_rendered
from tests.charts.picker import arguments
from tests.charts.schemas import complaints

CHART = "warmpick"
PLACE = "/tmp"  # noqa: S108 (in a container)
TMP = {"name": "tmp", "emptyDir": {}}
SCRATCH = {"name": "scratch", "emptyDir": {}}
RENDERER = v.merged(v.POOL, v.epp(renderer={"enabled": True, "modelName": "m"}))


def pod(*values):
    return only(objects(CHART, v.merged(*values)), "Deployment", "rel-epp")["spec"]["template"][
        "spec"
    ]


def named(things):
    return {each["name"]: each for each in things}


def within(spec, name, kind="containers"):
    return named(spec[kind])[name]


@pytest.mark.parametrize(
    ("base", "values"),
    [
        (v.POOL, v.epp(volumes=[TMP], volumeMounts=[{"name": "tmp", "mountPath": PLACE}])),
        (v.POOL, v.epp(volumes=[TMP])),
        (v.POOL, v.epp(volumes=[SCRATCH], volumeMounts=[{"name": "scratch", "mountPath": PLACE}])),
        (
            v.POOL,
            v.epp(volumes=[SCRATCH], volumeMounts=[{"name": "scratch", "mountPath": f"{PLACE}/"}]),
        ),
        (RENDERER, v.epp(renderer={"volumes": [TMP]})),
        (v.CASES["sidecar"], v.epp(sidecar={"volumes": [TMP, {"name": "log", "emptyDir": {}}]})),
        (r.TOKENIZER, r.router(tokenizer={"volumes": [TMP]})),
        (v.POOL, {}),
    ],
)
def test_a_volume_for_tmp_of_ones_own_takes_the_place_of_the_charts(base, values):
    spec = pod(base, values)
    volumes = Counter(each["name"] for each in spec["volumes"])
    assert set(volumes.values()) == {1}
    for container in spec["containers"]:
        mounts = container["volumeMounts"]
        places = Counter(each["mountPath"].rstrip("/") for each in mounts)
        assert set(places.values()) == {1}
        assert {each["name"] for each in mounts} <= volumes.keys()
        assert container["name"] != "epp" or PLACE in places


def test_a_recording_can_be_written_to_a_claim():
    # The folder of a new volume is root's, unless its group is said.
    assert "fsGroup" not in pod(v.CASES["recorded"])["securityContext"]
    claimed = pod(v.CASES["recorded-on-a-claim"])["securityContext"]
    assert claimed["fsGroup"] == 65532
    assert claimed["fsGroupChangePolicy"] == "OnRootMismatch"
    own = v.epp(podSecurityContext={"fsGroup": 1000})
    assert pod(v.CASES["recorded-on-a-claim"], own)["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
        "fsGroup": 1000,
    }


@pytest.mark.parametrize("more", [{}, v.ENVOY, {"inferenceExtension": {"strategy": None}}])
def test_a_context_that_is_taken_away_is_not_there(more):
    # On OpenShift, which says itself who a pod runs as.
    spec = pod(RENDERER, v.epp(podSecurityContext=None), more)
    assert "securityContext" not in spec


INIT = r.router(tokenizer={"initContainers": [{"name": "fetch", "image": "curl"}]})
USER = r.epp(podSecurityContext={"runAsUser": 1000})
NON_ROOT = r.epp(podSecurityContext={"runAsNonRoot": True})


@pytest.mark.parametrize(
    ("values", "as_image"),
    [
        ([r.TOKENIZER, INIT], True),
        ([r.TOKENIZER, INIT, USER], False),
        ([r.TOKENIZER, INIT, NON_ROOT], False),
        ([RENDERER], True),
        ([RENDERER, v.epp(podSecurityContext={"runAsUser": 1000})], False),
    ],
)
def test_a_renderer_runs_as_its_image_says_unless_the_values_say_who(values, as_image):
    # vLLM's image is root's: a kubelet starts no such container where the pod has runAsNonRoot.
    spec = pod(*values)
    assert spec["securityContext"]["runAsNonRoot"] is True
    renderer = within(spec, "vllm-render")["securityContext"]
    assert (renderer.get("runAsNonRoot") is False) == as_image
    assert renderer["allowPrivilegeEscalation"] is False
    assert renderer["capabilities"]["drop"] == ["ALL"]
    assert renderer["capabilities"].get("add") == (["DAC_OVERRIDE"] if as_image else None)
    assert "runAsNonRoot" not in within(spec, "epp")["securityContext"]
    for container in spec.get("initContainers", ()):
        assert container.get("securityContext") == ({"runAsNonRoot": False} if as_image else None)


def test_a_renderers_own_context_is_used():
    mine = {"runAsUser": 2000, "readOnlyRootFilesystem": True}
    for base in (RENDERER, r.TOKENIZER):
        spec = pod(base, v.epp(renderer={"securityContext": mine}))
        assert within(spec, "vllm-render")["securityContext"] == mine
    said = {"runAsUser": 3000, "allowPrivilegeEscalation": False}
    fetch = {"name": "fetch", "image": "curl", "securityContext": said}
    spec = pod(r.TOKENIZER, r.router(tokenizer={"initContainers": [fetch]}))
    assert within(spec, "fetch", "initContainers") == fetch


@pytest.mark.parametrize(
    ("base", "values", "words"),
    [
        (v.POOL, v.epp(grpcHealthPort=9002), "port 9002 is used twice in the picker's pod"),
        (v.POOL, v.epp(flags={"metrics-port": "9003"}), "inferenceExtension.flags.metrics-port"),
        (v.merged(v.POOL, v.EXCHANGE), v.epp(exchange={"port": 9003}), "exchange.port"),
        (
            v.merged(v.POOL, v.EXCHANGE),
            v.epp(workers=3, exchange={"port": 9088}),
            "port 9090 is used twice in the picker's pod",
        ),
        (RENDERER, v.epp(renderer={"port": 9090}), "inferenceExtension.renderer.port"),
        (v.merged(RENDERER, v.ENVOY), v.epp(renderer={"port": 8081}), "and by the proxy"),
        (r.TOKENIZER, r.router(tokenizer={"port": 9003}), "router.tokenizer.port"),
        (r.POOL, r.epp(grpcHealthPort=9090), "router.epp.grpcHealthPort"),
        (v.POOL, v.epp(metricsPort=9002), "port 9002 is used twice in the picker's Service"),
        (
            v.CASES["standalone"],
            v.epp(extraServicePorts=[{"name": "x", "port": 8081, "targetPort": 9000}]),
            "inferenceExtension.extraServicePorts (x)",
        ),
        (r.POOL, r.router(metricsPort=9002), "router.metricsPort"),
    ],
)
def test_a_port_that_is_there_twice_is_refused(base, values, words):
    things, reason = refused_or_rendered(CHART, v.merged(base, values))
    assert things == []
    assert words in reason
    assert "give one of them another port" in reason


@pytest.mark.parametrize(
    "values",
    [
        [v.epp(extraServicePorts=[{"name": "x", "port": 9002, "protocol": "UDP"}])],
        [v.CASES["standalone"], v.epp(sidecar={"mode": "service"}, renderer={"port": 8081})],
        [v.epp(workers=3, exchange={"port": 9003})],
    ],
)
def test_ports_that_do_not_meet_are_taken(values):
    assert pod(v.POOL, *values)["containers"]


def pauses(things):
    """For how long each container goes on before it is told to end."""
    return {
        each["name"]: each["lifecycle"]["preStop"]["sleep"]["seconds"]
        for thing in things
        if thing["kind"] == "Deployment"
        for each in thing["spec"]["template"]["spec"]["containers"]
        if "lifecycle" in each
    }


@pytest.mark.parametrize(
    ("grace", "proxy", "picker", "drain"),
    [(130, 120, 125, 0), (20, 10, 15, 0), (8, 1, 3, 0), (1, 1, 1, 0)],
)
def test_streams_have_the_grace_period_whose_pauses_the_api_server_takes(
    grace, proxy, picker, drain
):
    things = objects(
        CHART, v.merged(v.CASES["standalone"], v.epp(terminationGracePeriodSeconds=grace))
    )
    assert [found for thing in things for found in complaints(thing)] == []
    assert pauses(things) == {"envoy-sidecar": proxy, "epp": picker}
    assert arguments(things).drain_timeout == drain


@pytest.mark.parametrize(
    "values",
    [
        [v.CASES["standalone"], v.epp(replicas=2)],
        [v.CASES["standalone"], v.epp(strategy={"type": "Recreate"})],
        [r.STANDALONE],
    ],
)
def test_a_picker_that_others_wait_for_is_soon_gone(values):
    things = objects(CHART, v.merged(*values))
    assert sorted(pauses(things).values()) == [15, 20]
    assert arguments(things).drain_timeout == 105
    short = objects(CHART, v.merged(*values, v.epp(terminationGracePeriodSeconds=12)))
    assert [found for thing in short for found in complaints(thing)] == []


def test_without_a_grace_period_there_is_no_pause():
    none = v.epp(terminationGracePeriodSeconds=0)
    things = objects(CHART, v.merged(v.CASES["standalone"], none))
    assert [found for thing in things for found in complaints(thing)] == []
    assert pauses(things) == {}


@pytest.mark.parametrize("grace", [None, 30, 600, 3])
def test_streams_of_a_proxy_by_itself_have_its_grace_period(grace):
    said = {} if grace is None else {"terminationGracePeriodSeconds": grace}
    things = objects(CHART, v.merged(r.SERVICE, r.router(proxy=said)))
    assert [found for thing in things for found in complaints(thing)] == []
    assert pauses(things) == {"envoy-proxy": max(1, (grace or 70) - 5)}


def opened(direction, *values):
    """The rules of the NetworkPolicy that have this direction, as their ports."""
    policy = only(objects(CHART, v.merged(v.POOL, v.FENCED, *values)), "NetworkPolicy")["spec"]
    return [
        [(each.get("port"), each["protocol"]) for each in rule["ports"]]
        for rule in policy[direction]
    ]


def test_a_network_policy_lets_in_what_the_values_open():
    debug = v.epp(
        extraContainerPorts=[
            {"name": "events", "containerPort": 5557},
            {"name": "trap", "containerPort": 5162, "protocol": "UDP"},
        ]
    )
    assert [(5557, "TCP"), (5162, "UDP")] in opened("ingress", debug)
    assert [(5000, "TCP")] in opened("ingress", v.CASES["sidecar"])
    assert opened("ingress")[0] == [(9002, "TCP")]


RULES = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: token-producer
  parameters:
    modelName: m
    vllm: {endpointDiscovery: {portRules: [{basePort: 7000}]}}
"""
RANKS = v.merged(
    v.TOKENS,
    v.epp(kvEvents={"enabled": True, "port": 5557, "replayPort": 6557}),
    {"inferencePool": {"targetPorts": [{"number": 8000}, {"number": 8001}]}},
)


@pytest.mark.parametrize(
    ("values", "ports"),
    [
        ({}, {8000}),
        (v.epp(flags={"model-server-metrics-port": 9400}), {8000, 9400}),
        (v.epp(flags={"config-text": RULES}), {8000, 7000}),
        # The publisher of a rank, and its replay, are at the port plus the rank.
        (RANKS, {8000, 8001, 5557, 5558, 6557, 6558}),
    ],
)
def test_a_network_policy_lets_the_picker_ask_model_servers_wherever_they_answer(values, ports):
    things = objects(CHART, v.merged(v.POOL, v.FENCED, values))
    assert [found for thing in things for found in complaints(thing)] == []
    servers = only(things, "InferencePool")["spec"]["selector"]
    egress = only(things, "NetworkPolicy")["spec"]["egress"]
    rules = [each for each in egress if each.get("to") == [{"podSelector": servers}]]
    allowed = [port for rule in rules for port in rule["ports"] if port["protocol"] == "TCP"]
    assert {port for port in ports if any(each.get("port", port) == port for each in allowed)} == (
        ports
    )
    everywhere = [port for rule in egress if "to" not in rule for port in rule["ports"]]
    assert all("port" in each for each in everywhere)


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [
        ("http://collector.observability:4317", 4317),
        ("https://collector:14317/", 14317),
        ("collector:4318", 4318),
        ("http://collector", 4317),
        ("http://localhost:4317", None),
        ("http://127.0.0.1:4317", None),
        ("http://[::1]:4317", None),
    ],
)
def test_a_network_policy_lets_spans_out_to_their_collector(endpoint, port):
    traced = v.epp(tracing={"enabled": True, "otelExporterEndpoint": endpoint})
    more = [each for each in opened("egress", traced) if each not in opened("egress")]
    assert more == ([[(port, "TCP")]] if port else [])
    off = v.epp(tracing={"enabled": False, "otelExporterEndpoint": endpoint})
    assert opened("egress", off) == opened("egress")


FLAGS = {
    "policy": "linear",
    "config-text": "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins:\n- type: x\n",
}


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_with_a_configuration_takes_the_place_of_the_file(name):
    said = arguments(objects(CHART, v.merged(v.POOL, v.epp(flags={name: FLAGS[name]}))))
    assert getattr(said, name.replace("-", "_")) == FLAGS[name]
    assert said.config_file is None
    things, reason = refused_or_rendered(
        CHART, v.merged(v.POOL, v.TOKENS, v.epp(flags={name: FLAGS[name]}))
    )
    assert things == []
    assert "if the flag config-text or policy is set" in reason


SERVICE = v.merged(v.CASES["standalone"], v.epp(sidecar={"mode": "service"}))


@pytest.mark.parametrize(
    ("values", "name", "own", "label", "checksum"),
    [
        (v.POOL, "rel-epp", "inferenceExtension", "inferencepool", "config"),
        (SERVICE, "rel-proxy", "sidecar", "llm-d-router-proxy", "envoy"),
    ],
)
def test_labels_and_annotations_of_ones_own_are_there_once(values, name, own, label, checksum):
    mine = {
        "podLabels": {"app.kubernetes.io/component": "mine", "team": "a", label: "other"},
        "podAnnotations": {f"checksum/{checksum}": "0", "note": "b"},
    }
    given = v.epp(**mine) if own == "inferenceExtension" else v.epp(sidecar=mine)
    stood, made = (
        only(objects(CHART, each), "Deployment", name)["spec"]["template"]["metadata"]
        for each in (values, v.merged(values, given))
    )
    labels = {**stood["labels"], "app.kubernetes.io/component": "mine", "team": "a"}
    assert made["labels"] == labels
    assert made["annotations"] == {**stood["annotations"], "note": "b"}


def test_a_key_without_a_value_adds_no_labels_or_annotations():
    nothing = {"podLabels": None, "podAnnotations": None}  # `podLabels:` in a file
    given = v.merged(SERVICE, v.epp(**nothing, sidecar=nothing))
    assert objects(CHART, given) == objects(CHART, SERVICE)


def test_a_proxy_of_its_own_says_where_it_runs():
    mine = {
        "nodeSelector": {"pool": "edge"},
        "affinity": {"podAntiAffinity": {}},
        "tolerations": [{"key": "edge", "operator": "Exists"}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
        ],
        "priorityClassName": "high",
    }
    things = objects(CHART, v.merged(SERVICE, v.epp(sidecar=mine)))
    assert [found for thing in things for found in complaints(thing)] == []
    spec = only(things, "Deployment", "rel-proxy")["spec"]["template"]["spec"]
    assert {name: spec[name] for name in mine} == mine
    assert (
        not mine.keys() & only(things, "Deployment", "rel-epp")["spec"]["template"]["spec"].keys()
    )


def test_a_proxy_of_its_own_outlives_a_node():
    budget = v.epp(podDisruptionBudget={"enabled": True})
    things = objects(CHART, v.merged(SERVICE, budget))
    assert [found for thing in things for found in complaints(thing)] == []
    proxy = only(things, "Deployment", "rel-proxy")["spec"]
    assert only(things, "PodDisruptionBudget", "rel-proxy")["spec"]["selector"] == proxy["selector"]
    (spread,) = proxy["template"]["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert spread["labelSelector"] == proxy["selector"]
    kinds = [
        each["metadata"]["name"]
        for each in objects(CHART, v.merged(v.POOL, budget))
        if each["kind"] == "PodDisruptionBudget"
    ]
    assert kinds == ["rel-epp"]
