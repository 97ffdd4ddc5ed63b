"""Values files of llm-d-router's charts: each key has its effect, or the notes say why it has none.

Names, ports and rules are those of llm-d-router's charts between v0.10 and v1.0.
"""

import functools
import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.cli.main import main
from epp.config.file import POLICIES, load
from tests.charts import router_values as r
from tests.charts import values as v
from tests.charts.helm import ROOT, lint, notes, objects, only, refused_or_rendered
from tests.charts.picker import arguments, container, containers
from tests.charts.schemas import complaints
from tests.charts.values import both, merged
from tests.envoy_config import complaint

CHART = "warmpick"
KNOWN = yaml.safe_load((ROOT / "charts" / CHART / "files" / "router.yaml").read_text())
EVERY = pytest.mark.parametrize("name", r.CASES)


def rendered(name):
    return objects(CHART, r.CASES[name])


def based(path):
    """What there is without the value of a key."""
    return _based(json.dumps(r.KEYS[path][1]))


@functools.cache
def _based(values):
    return objects(CHART, json.loads(values))


def names(things):
    return {f"{each['kind']}/{each['metadata']['name']}" for each in things}


def leaves(tree, path=""):
    """The paths of all keys; an empty map is a key."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"


def test_every_documented_key_is_known_and_the_other_way_round():
    assert set(leaves(KNOWN)) == set(r.KEYS)


@pytest.mark.parametrize("path", r.KEYS)
def test_a_key_has_an_effect_or_the_notes_or_a_refusal_name_it(path):
    value, base = r.KEYS[path]
    values = both(base, r.at(f"router.{path}", value))
    things, refusal = refused_or_rendered(CHART, values)
    if refusal:
        assert f"router.{path}" in refusal
        return
    assert [found for thing in things for found in complaints(thing)] == []
    if things == based(path):
        assert any(f"router.{path}.".startswith(f"{named}.") for named in without_effect(values))


def without_effect(values):
    """The keys that the notes say mean nothing here."""
    said = notes(CHART, values).partition("Values without effect here:")[2]
    heads = [line[2:].partition(": ")[0] for line in said.splitlines() if line.startswith("- ")]
    return {key for head in heads for key in head.split(", ")}


@pytest.mark.parametrize("base", [v.POOL, r.POOL])
def test_backends_that_only_gke_prefers_are_named_elsewhere(base):
    preferred = {"name": "istio", "gke": {"preferredBackends": {"enabled": True}}}
    values = both(base, {"provider": preferred})
    assert "provider.gke.preferredBackends" in without_effect(values)


TRTLLM = r.router(modelServers={"type": "trtllm-serve"})
MOVED = r.epp(metricsDataSource={"path": "/prometheus/metrics"})


@pytest.mark.parametrize(
    ("more", "config", "named"),
    [
        (TRTLLM, r.plugins("queue-scorer"), True),
        (MOVED, r.plugins("queue-scorer"), True),
        (MOVED, r.plugins("queue-scorer", "metrics-data-source"), False),
        (MOVED, {}, False),
        ({}, r.plugins("queue-scorer"), False),
    ],
)
def test_a_place_of_metrics_that_a_file_of_yours_does_not_have_is_named(more, config, named):
    for key in ("pluginsConfig", "pluginsCustomConfig"):
        given = config if key == "pluginsConfig" else {"x.yaml": yaml.safe_dump(config)}
        files = r.epp(pluginsConfigFile="x.yaml", **{key: given}) if config else {}
        values = merged(r.POOL, merged(more, files))
        assert ("router.epp.metricsDataSource" in without_effect(values)) == named


@EVERY
def test_kubernetes_takes_every_object(name):
    assert [found for thing in rendered(name) for found in complaints(thing)] == []
    assert lint(CHART, r.CASES[name]) == []


@EVERY
def test_the_picker_takes_its_flags(name):
    said = arguments(rendered(name))
    values = r.CASES[name]["router"]
    pool = values.get("inferencePool", {}).get("create", True)
    assert (said.pool_name, said.pool_namespace) == (("rel", "inf") if pool else (None, None))
    assert said.endpoint_selector == (None if pool else {"app": "vllm"})
    assert said.ha_enable_leader_election == (name == "leader")
    assert said.metrics_endpoint_auth == (name != "open-metrics")
    assert said.secure_serving == (name != "plaintext")


PICKER = {
    *("ConfigMap/rel-epp", "Deployment/rel-epp", "Service/rel-epp", "ServiceAccount/rel-epp"),
    *("Role/rel-epp-sa", "RoleBinding/rel-epp-sa", "Role/rel-epp-non-sa"),
    *("RoleBinding/rel-epp-non-sa", "ClusterRole/rel-inf-epp", "ClusterRoleBinding/rel-inf-epp"),
}
POOL = {"InferencePool/rel"}
READER = {
    *("Secret/inference-gateway-sa-metrics-reader-secret", "ServiceAccount/rel-epp-metrics-reader"),
    *("ClusterRole/rel-inf-epp-metrics-reader", "ClusterRoleBinding/rel-inf-epp-metrics-reader"),
}
REVIEWS = {"ClusterRole/rel-inf-epp", "ClusterRoleBinding/rel-inf-epp"}
ELECTION = {
    "Role/rel-epp-leader-election",
    "RoleBinding/rel-epp-leader-election-binding",
}
OBJECTS = {
    "gateway": PICKER | POOL,
    "gateway-istio": PICKER | POOL | {"DestinationRule/rel-epp", "HTTPRoute/rel"},
    "gateway-gke": PICKER
    | POOL
    | READER
    | {"HealthCheckPolicy/rel", "GCPBackendPolicy/rel", "ServiceMonitor/rel-epp-monitor"},
    "gateway-gke-grpc": PICKER
    | POOL
    | {"HealthCheckPolicy/rel", "HealthCheckPolicy/rel-epp", "GCPBackendPolicy/rel"},
    "leader": PICKER | POOL | ELECTION,
    "active-active": PICKER | POOL,
    "scaled": PICKER | POOL | {"HorizontalPodAutoscaler/rel-epp"},
    "scraped": PICKER | POOL | READER | {"ServiceMonitor/rel-epp-monitor"},
    "open-metrics": (PICKER | POOL | {"ServiceMonitor/rel-epp-monitor"}) - REVIEWS,
    "standalone": PICKER | {"ConfigMap/envoy"},
    "standalone-guide": PICKER | POOL | {"ConfigMap/envoy"},
    "service": PICKER | {"ConfigMap/envoy", "Deployment/rel-proxy", "Service/rel-proxy"},
    "service-scaled": PICKER
    | {"ConfigMap/envoy", "Deployment/rel-proxy", "Service/rel-proxy"}
    | {"HorizontalPodAutoscaler/rel-proxy"},
    "priority": (PICKER - {"Deployment/rel-epp"})
    | {"ConfigMap/envoy", "Deployment/rel-proxy", "Service/rel-proxy"}
    | {"StatefulSet/rel-epp", "Service/rel-epp-headless"},
    "preferred": (PICKER - {"Deployment/rel-epp"})
    | POOL
    | {"StatefulSet/rel-epp", "Service/rel-epp-backup", "HealthCheckPolicy/rel"}
    | {"HealthCheckPolicy/rel-epp-backup", "GCPBackendPolicy/rel", "GCPBackendPolicy/rel-backup"},
    "objectives": PICKER | POOL | {"InferenceObjective/high"},
    "renamed-envoy": PICKER | {"ConfigMap/hub-envoy"},
}


@pytest.mark.parametrize("name", OBJECTS)
def test_the_objects_are_llm_d_routers(name):
    assert names(rendered(name)) == OBJECTS[name]


def files(things):
    return only(things, "ConfigMap", "rel-epp")["data"]


def config(things):
    """The configuration that the picker is told to read."""
    return yaml.safe_load(files(things)[arguments(things).config_file.name])


def weights(things):
    (profile,) = config(things)["schedulingProfiles"]
    return {each["pluginRef"]: each.get("weight") for each in profile["plugins"]}


DEFAULT = {"queue-scorer": 2, "kv-cache-utilization-scorer": 2, "prefix-cache-scorer": 3}


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("gateway", DEFAULT),
        ("standalone", DEFAULT),
        ("payload-agnostic", {"active-request-scorer": 1, "session-affinity-scorer": 1}),
        (
            "predicted",
            dict.fromkeys(
                [
                    *("strict-affinity-filter", "slo-headroom-tier-filter"),
                    *("loose-affinity-filter", "latency-scorer", "weighted-random-picker"),
                ]
            ),
        ),
        ("structured", {"queue-scorer": None}),
    ],
)
def test_the_profile_is_llm_d_routers(name, profile):
    things = rendered(name)
    assert list(weights(things).items()) == list(profile.items())
    assert {"default-plugins.yaml", "payload-agnostic.yaml", "least-ttft.yaml"} <= set(
        files(things)
    )


def test_predicted_latency_has_the_gates_of_llm_d_router():
    said = config(rendered("predicted"))["plugins"]
    filters = {each["name"]: each["parameters"] for each in said if "name" in each}
    gate = {"ttftSource": "latencyPredictor", "maxTTFTPenaltyMs": 5000}
    assert filters == {
        "strict-affinity-filter": {"affinityThreshold": 0.99, **gate},
        "loose-affinity-filter": {"affinityThreshold": 0.8, **gate},
    }
    types = {each["type"] for each in said}
    assert {"predicted-latency-producer", "latency-slo-admitter"} <= types


def parameters(things, kind):
    return next(
        each.get("parameters") for each in config(things)["plugins"] if each["type"] == kind
    )


def test_where_metrics_are_read_goes_into_the_configuration():
    source = {"scheme": "https", "path": "/stats", "insecureSkipVerify": False}
    things = objects(CHART, both(r.POOL, r.epp(metricsDataSource=source)))
    assert parameters(things, "metrics-data-source") == source
    assert parameters(things, "core-metrics-extractor") is None
    assert parameters(rendered("sglang"), "core-metrics-extractor") == {"defaultEngine": "sglang"}


@pytest.mark.parametrize(
    ("values", "parsers"),
    [
        ({}, None),
        (r.epp(parsers=["openai-parser", "anthropic-parser"]), "openai-parser anthropic-parser"),
        (r.router(modelServers={"protocol": "grpc"}), "vllmgrpc-parser"),
        (r.router(modelServers={"type": "triton"}), "passthrough-parser"),
        (r.router(modelServers={"type": "sglang", "protocol": "grpc"}), None),
    ],
)
def test_parsers_are_as_model_servers_speak(values, parsers):
    said = config(objects(CHART, both(r.POOL, values)))
    named = [each["pluginRef"] for each in said.get("requestHandler", {}).get("parsers", ())]
    assert named == (parsers or "").split()
    assert set(named) <= {each["type"] for each in said["plugins"]}


@pytest.mark.parametrize("name", r.CASES)
def test_the_picker_takes_its_configuration(name, tmp_path):
    things = rendered(name)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config(things)))
    assert main(["check", str(path)]) == 0


def test_the_default_is_the_policy_that_imitates_llm_d_router():
    text = files(rendered("gateway"))["default-plugins.yaml"]
    assert load(text).profile == load(POLICIES["linear"]).profile


@pytest.mark.parametrize("name", ["standalone", "service", "plaintext", "own-envoy", "priority"])
def test_envoy_takes_its_configuration(name, tmp_path):
    path = tmp_path / "envoy.yaml"
    path.write_text(only(rendered(name), "ConfigMap", "envoy")["data"]["envoy.yaml"])
    assert complaint(path) == ""


@pytest.mark.parametrize(
    ("values", "standalone"),
    [
        (r.POOL, False),
        (both(r.BASE, r.POOL), True),
        (merged(r.BASE, r.POOL, {"provider": {"name": "istio"}}), False),
        (merged(r.BASE, r.POOL, {"httpRoute": {"create": True}}), False),
        (both(r.POOL, r.router(extraServicePorts=r.HTTP)), True),
        (both(r.POOL, r.router(inferencePool={"create": False})), True),
        (merged(r.BASE, r.POOL, r.router(proxy={"enabled": False})), False),
        (both(r.ISTIO, r.router(proxy={"enabled": True})), True),
    ],
)
def test_files_that_both_charts_share_are_taken_for_one(values, standalone):
    said = notes(CHART, values)
    assert ("ConfigMap/envoy" in names(objects(CHART, values))) == standalone
    assert f"for its {'standalone' if standalone else 'gateway'} chart" in said
    assert f"router.proxy.enabled={'false' if standalone else 'true'}" in said


def test_keys_that_nobody_knows_are_named():
    values = both(r.POOL, r.router(replicas=3, epp={"parser": "x", "image": {"name": "y"}}))
    assert objects(CHART, values) == objects(CHART, r.POOL)
    assert without_effect(values) == {
        "router.replicas",
        "router.epp.parser",
        "router.epp.image.name",
    }


@pytest.mark.parametrize(
    ("values", "key"),
    [
        (r.router(proxy={"enabled": False, "replicas": 3}), "router.proxy"),
        (r.router(tokenizer={"modelName": "m"}), "router.tokenizer"),
        (r.router(monitoring={"interval": "5s"}), "router.monitoring"),
        (r.router(latencyPredictor={"eppEnv": {"A": "b"}}), "router.latencyPredictor"),
        (r.router(tracing={"sampling": {"sampler": "always_on"}}), "router.tracing"),
        ({"provider": {"name": "gke"}, **r.router(inferencePool={"create": False})}, "provider"),
        (
            r.router(modelServers={"protocol": "grpc"}, epp={"parsers": ["openai-parser"]}),
            "router.epp.parsers",
        ),
    ],
)
def test_what_waits_for_another_value_is_named(values, key):
    assert key in without_effect(both(r.POOL, values))


def test_flags_as_guides_write_them():
    values = both(r.POOL, r.epp(replicas=2, flags={"ha-enable-leader-election=false": ""}))
    things = objects(CHART, values)
    assert arguments(things).ha_enable_leader_election is False
    assert "Role/rel-epp-leader-election" not in names(things)


@pytest.mark.parametrize("image", ["ghcr.io/llm-d/llm-d-router-endpoint-picker:v0.10.0"])
def test_the_notes_say_whose_image_it_is(image):
    registry, _, rest = image.rpartition("/")
    repository, _, tag = rest.partition(":")
    given = {"registry": registry, "repository": repository, "tag": tag}
    values = both(r.POOL, r.epp(image=given))
    assert container(objects(CHART, values))["image"] == image
    assert f"{image}, which is another picker's" in notes(CHART, values)


@pytest.mark.parametrize("name", ["gateway", "service", "priority", "tokenizer", "gmp", "scaled"])
def test_null_is_as_if_nothing_had_been_said(name):
    # Files copied from the charts' own have keys with nothing but comments below them.
    nothing = merged(*(r.at(f"router.{path}", None) for path in leaves(KNOWN)))
    assert objects(CHART, both(nothing, r.CASES[name])) == rendered(name)


SWITCHES = [r.CASES[name] for name in r.CASES if name != "own-envoy"]


@settings(max_examples=25)
@given(st.lists(st.sampled_from(SWITCHES), min_size=1, max_size=5))
def test_any_values_together_render_what_kubernetes_takes_or_are_refused(switches):
    values = merged(*switches)
    things, reason = refused_or_rendered(CHART, values)
    assert [found for thing in things for found in complaints(thing)] == []
    assert bool(things) != bool(reason)
    assert not reason or "router." in reason or "httpRoute." in reason
    if things:
        assert "<no value>" not in notes(CHART, values)
        arguments(things)


@pytest.mark.parametrize("values", [r.STANDALONE, r.SERVICE])
def test_arguments_of_the_proxy_may_name_its_pod(values):
    args = {"args": ["--service-node", "$(NS_NAME)/$(POD_NAME)", "-c", "/etc/envoy/envoy.yaml"]}
    things = objects(CHART, both(values, r.router(proxy=args)))
    (envoy,) = [
        each
        for thing in things
        if thing["kind"] == "Deployment"
        for each in containers(thing["spec"]["template"]["spec"])
        if each["name"] == "envoy-proxy"
    ]
    fields = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in envoy["env"]}
    assert fields == {"NS_NAME": "metadata.namespace", "POD_NAME": "metadata.name"}
    mine = [{"name": "A", "value": "b"}]
    things = objects(CHART, both(values, r.router(proxy={"env": mine})))
    assert str(mine[0]) in str(things)
    assert "NS_NAME" not in str(things)
