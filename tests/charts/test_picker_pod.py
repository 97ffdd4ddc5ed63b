"""What the containers of the picker's pod share: volumes, ports, and who they run as."""

from collections import Counter

import pytest

from tests.charts import router_values as r
from tests.charts import values as v
from tests.charts.helm import objects, only, refused_or_rendered
from tests.charts.picker import arguments, containers
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
    for container in containers(spec):
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


@pytest.mark.parametrize(
    ("base", "values", "targets"),
    [
        (v.CASES["standalone"], v.epp, {"http": 8081, "debug": "debug"}),
        (r.STANDALONE, r.router, {"http-8081": 8081, "metrics-19001": 19001}),
        (v.POOL, v.epp, {"http": "http"}),
    ],
)
def test_a_service_asks_the_proxy_beside_the_picker_by_number(base, values, targets):
    """Services of Kubernetes 1.30 and 1.31 do not know a sidecar container's names of ports."""
    ports = [
        {"name": f"x{number}", "port": number, "targetPort": name}
        for number, name in enumerate(targets, 81)
    ]
    things = objects(CHART, v.merged(base, values(extraServicePorts=ports)))
    (service,) = (
        each for each in things if each["kind"] == "Service" and "grpc-ext-proc" in str(each)
    )
    given = [each["targetPort"] for each in service["spec"]["ports"] if each["name"][0] == "x"]
    assert given == list(targets.values())


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
