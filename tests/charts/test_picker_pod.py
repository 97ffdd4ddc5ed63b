"""What the containers of the picker's pod share: volumes, ports, and who they run as."""

from collections import Counter

import pytest
import yaml

from epp.protocol.kube.election import LeaderElectionConfig
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


def told_to_end(things):
    """When a kubelet tells each container to end that a stream keeps at work.

    A sidecar container is told so when the others have ended (Kubernetes, Sidecar Containers).
    """
    (pod,) = (
        thing["spec"]["template"]["spec"]
        for thing in things
        if thing["kind"] in {"Deployment", "StatefulSet"}
        and "epp" in named(thing["spec"]["template"]["spec"]["containers"])
    )
    told = {
        each["name"]: each.get("lifecycle", {})
        .get("preStop", {})
        .get("sleep", {})
        .get("seconds", 0)
        for each in pod["containers"]
    }
    last = told["epp"] + arguments(things).drain_timeout
    return {each["name"]: last for each in containers(pod)} | told


STANDBY = v.epp(replicas=2)
RECREATE = v.epp(strategy={"type": "Recreate"})
PREFERRED = {"provider": {"name": "gke", "gke": {"preferredBackends": {"enabled": True}}}}


@pytest.mark.parametrize("more", [{}, STANDBY, RECREATE])
@pytest.mark.parametrize(
    ("values", "epp"), [(v.CASES["standalone"], v.epp), (r.STANDALONE, r.epp), (v.POOL, v.epp)]
)
@pytest.mark.parametrize("grace", [130, 70, 20, 12, 8, 1])
def test_streams_have_the_grace_period_whoever_waits_for_the_pod(grace, values, epp, more):
    things = objects(CHART, v.merged(values, more, epp(terminationGracePeriodSeconds=grace)))
    assert [found for thing in things for found in complaints(thing)] == []
    told = told_to_end(things)
    end = told["epp"] + arguments(things).drain_timeout
    assert max(0 if arguments(things).ha_enable_leader_election else 1, grace - 5) == end
    assert told.get("envoy-sidecar", told.get("envoy-proxy", end)) == end


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ({}, 20),  # another one starts meanwhile
        (STANDBY, 0),  # another one leads when this one's lease is free
        (v.both(STANDBY, RECREATE), 0),
        (RECREATE, 5),  # another one starts afterwards
        (PREFERRED, 5),
        (v.epp(terminationGracePeriodSeconds=40), 10),
    ],
)
def test_a_picker_that_is_to_go_serves_until_others_are_asked(values, seconds):
    things = objects(CHART, v.merged(v.POOL, values))
    assert told_to_end(things)["epp"] == seconds


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


@pytest.mark.parametrize("values", [v.POOL, v.CASES["standalone"]])
def test_a_new_leader_is_ready_before_the_old_one_says_that_it_is_not(values):
    """The proxy asks the picker, the kubelet the proxy; then a second for Services to learn it."""
    things = objects(CHART, v.merged(values, STANDBY))
    spec = only(things, "Deployment", "rel-epp")["spec"]["template"]["spec"]
    seconds = max(each["readinessProbe"]["periodSeconds"] for each in containers(spec))
    if len(containers(spec)) > 1:
        text = only(things, "ConfigMap", "rel-epp-envoy")["data"]["envoy.yaml"]
        clusters = {
            each["name"]: each for each in yaml.safe_load(text)["static_resources"]["clusters"]
        }
        seconds += int(clusters["epp"]["health_checks"][0]["interval"].removesuffix("s"))
    assert seconds + 1 <= LeaderElectionConfig(identity="").notice_period


@pytest.mark.parametrize(
    ("mode", "more", "seconds"),
    [
        ("STREAMED", {}, 125),
        ("STREAMED", RECREATE, 20),
        ("STREAMED", STANDBY, 20),
        ("FULL_DUPLEX_STREAMED", {}, 20),
    ],
)
def test_streams_that_the_picker_leaves_early_have_time_before_it_ends(mode, more, seconds):
    """Envoy beside it ends then, and with it what it serves alone (`--observe-responses`)."""
    text = f"processing_mode: {{response_body_mode: {mode}}}"
    own = v.epp(sidecar={"configMap": {"data": {"envoy.yaml": text}}})
    things = objects(CHART, v.merged(v.CASES["standalone"], own, more))
    assert [found for thing in things for found in complaints(thing)] == []
    assert told_to_end(things)["epp"] == seconds


def test_without_a_grace_period_there_is_no_pause():
    none = v.epp(terminationGracePeriodSeconds=0)
    things = objects(CHART, v.merged(v.CASES["standalone"], none))
    assert [found for thing in things for found in complaints(thing)] == []
    assert told_to_end(things) == {"epp": 0, "envoy-sidecar": 0}


@pytest.mark.parametrize("grace", [None, 30, 600, 3])
def test_streams_of_a_proxy_by_itself_have_its_grace_period(grace):
    said = {} if grace is None else {"terminationGracePeriodSeconds": grace}
    things = objects(CHART, v.merged(r.SERVICE, r.router(proxy=said)))
    assert [found for thing in things for found in complaints(thing)] == []
    (proxy,) = only(things, "Deployment", "rel-proxy")["spec"]["template"]["spec"]["containers"]
    assert proxy["lifecycle"]["preStop"]["sleep"]["seconds"] == max(1, (grace or 70) - 5)


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


def test_a_network_policy_lets_names_be_looked_up():
    # OpenShift's DNS: port 53 of the Service is 5353 of its pods, which is what a policy sees.
    names, *_ = opened("egress")
    assert sorted(names) == [(port, kind) for port in (53, 5353) for kind in ("TCP", "UDP")]


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
