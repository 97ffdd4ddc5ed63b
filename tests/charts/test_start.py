"""Whatever values the chart takes, the picker starts with; the others the chart refuses."""

import pytest

from epp.adapters.replicas.redis_server import redis_server
from epp.cli.observer_flags import _MIN_RECORDING
from epp.cli.types import size
from epp.config.parsers import PARSERS
from tests.adapters.self_signed import self_signed
from tests.charts import router_values as r
from tests.charts import values as v
from tests.charts.helm import objects, only, refused_or_rendered
from tests.charts.picker import containers, options
from tests.charts.schemas import complaints
from tests.envoy_config import complaint

CHART = "warmpick"
CASES = {
    **v.CASES,
    **{f"router-{name}": values for name, values in r.CASES.items()},
}


@pytest.mark.parametrize("name", CASES)
def test_the_picker_starts(name, tmp_path):
    assert options(objects(CHART, CASES[name]), tmp_path)


def said(path, value):
    return r.at(f"inferenceExtension.{path}", value)


def starts(base, values, folder):
    """Whether the picker starts; if not, what the chart says."""
    things, reason = refused_or_rendered(CHART, v.merged(base, values))
    if reason:
        return False, reason
    assert [found for thing in things for found in complaints(thing)] == []
    return bool(options(things, folder)), ""


def fits(kind, text):
    try:
        kind(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("url", [
    "redis://r", "redis://r:", "redis://u@r:6379/0", "redis://[::1]:6379/15", "redis://r:65535/",
    "rediss://r?ssl_ca_certs={pem}", "rediss://r:1/0?ssl_certfile={pem}&ssl_keyfile={pem}",
    "redis://r:0", "redis://r:65536", "redis://r/x", "redis://r/123456", "redis://r/0/1",
    "redis://r?ssl_ca_certs=/x", "redis://r/0?db=3", "rediss://r?db=3",
])  # fmt: skip
def test_a_redis_server_is_one_that_the_picker_can_ask(url, tmp_path):
    pem, base = tmp_path / "pem", v.merged(v.POOL, v.EXCHANGE)
    pem.write_bytes(b"".join(self_signed("EC")))
    url = url.format(pem=pem)
    taken, reason = starts(base, said("exchange.redis.url", url), tmp_path)
    assert taken == fits(redis_server, url)
    assert taken or f'exchange.redis.url is "{url}", but must be redis://' in reason


@pytest.mark.parametrize(
    "text", ["0", "1", "1M", "1048575", "1048576", "1023Ki", "1024Ki", "2M", "1Mi", "1G"]
)
def test_a_recording_has_room_for_what_the_picker_writes_at_least(text, tmp_path):
    taken, reason = starts(v.CASES["recorded"], said("recording.maxBytes", text), tmp_path)
    assert taken == (size(text) >= _MIN_RECORDING)
    assert taken or f'recording.maxBytes is "{text}", but must be 1Mi or more' in reason


PATHS = ("", "metrics", "/a?b=c", "/a#b", "/%zz", "/a b", "/\u00e9", "/a\nb", "{{ x }}")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("policy", ["least-ttft", "llm-d"])
def test_metrics_are_read_at_the_path_of_a_url(path, policy, tmp_path):
    base = v.merged(v.POOL, v.epp(policy=policy))
    taken, reason = starts(base, said("metricsDataSource.path", path), tmp_path)
    assert taken == (path in PATHS[:5])
    assert taken or "at '/inferenceExtension/metricsDataSource/path'" in reason


@pytest.mark.parametrize(
    "parsers", [*([each] for each in PARSERS), ["nope"], ["openai-parser"] * 2]
)
@pytest.mark.parametrize("place", ["inferenceExtension.parsers", "router.epp.parsers"])
def test_parsers_are_those_of_the_picker(parsers, place, tmp_path):
    base = v.POOL if place.startswith("inf") else r.POOL
    taken, reason = starts(base, r.at(place, parsers), tmp_path)
    assert taken == (len(parsers) == 1 and parsers[0] in PARSERS)
    assert taken or f"at '/{place.replace('.', '/')}" in reason


@pytest.mark.parametrize("selector", [
    "app=a", "app==a,tier=b", "llm-d.ai/x=true", "a_b=c.d-e", "app=a/b", "app=a b", "app=a,b",
])  # fmt: skip
def test_a_selector_is_one_that_the_picker_can_read(selector, tmp_path):
    base, path = v.SELECTOR, "endpointsServer.endpointSelector"
    taken, reason = starts(base, said(path, selector), tmp_path)
    assert taken == (selector in {"app=a", "app==a,tier=b", "llm-d.ai/x=true", "a_b=c.d-e"})
    assert taken or f'endpointSelector is "{selector}", but only equality' in reason


@pytest.mark.parametrize(("interval", "taken"), [("1m30s", True), ("500ms", True), ("1.5s", False)])
def test_prometheus_knows_no_fractions(interval, taken):
    scraped = v.both(v.SCRAPED, said("monitoring.interval", interval))
    things, reason = refused_or_rendered(CHART, v.merged(v.POOL, scraped))
    assert [found for thing in things for found in complaints(thing)] == []
    assert (bool(things), "at '/inferenceExtension/monitoring/interval'" in reason) == (
        taken,
        not taken,
    )


@pytest.mark.parametrize("path", [
    "exchange.port", "kvEvents.port", "recording.maxBytes", "monitoring.interval",
    "monitoring.prometheus.auth.secretName", "podDisruptionBudget.maxUnavailable",
])  # fmt: skip
def test_null_is_no_port_and_no_name(path):
    _, reason = refused_or_rendered(CHART, v.merged(v.POOL, said(path, None)))
    assert f"inferenceExtension.{path} is null: leave it out" in reason


def test_a_file_may_be_indented(tmp_path):
    text = "\n  apiVersion: llm-d.ai/v1\n  kind: EndpointPickerConfig\n  plugins: []\n\n"
    taken, _ = starts(v.POOL, v.epp(pluginsCustomConfig={"default-plugins.yaml": text}), tmp_path)
    assert taken


PRIORITY = v.merged(v.CASES["standalone"], v.epp(
    leaderElection=False, sidecar={"mode": "service", "priorityRouting": {"enabled": True}}
))  # fmt: skip


@pytest.mark.parametrize(("path", "value", "taken"), [
    ("sidecar.healthCheckInterval", "0s", False),
    ("sidecar.healthCheckInterval", "0.001s", True),
    ("sidecar.healthCheckTimeout", "0.000s", False),
    ("sidecar.healthCheckTimeout", "99999999999s", False),
    ("sidecar.healthCheckUnhealthyThreshold", 1 << 32, False),
    ("sidecar.healthCheckHealthyThreshold", (1 << 32) - 1, True),
    ("sidecar.priorityRouting.dnsRefreshRate", "0.001s", False),
    ("sidecar.priorityRouting.dnsRefreshRate", "0.002s", True),
    ("sidecar.priorityRouting.connectTimeout", "0s", False),
    ("sidecar.priorityRouting.connectTimeout", "0.250s", True),
])  # fmt: skip
def test_the_proxy_starts_too(path, value, taken, tmp_path):
    things, reason = refused_or_rendered(CHART, v.merged(PRIORITY, said(path, value)))
    assert (bool(things), f"at '/inferenceExtension/{path.replace('.', '/')}'" in reason) == (
        taken,
        not taken,
    )
    if taken:
        file = tmp_path / "envoy.yaml"
        file.write_text(only(things, "ConfigMap", "rel-epp-envoy")["data"]["envoy.yaml"])
        assert complaint(file) == ""


@pytest.mark.parametrize(
    ("name", "namespace"),
    [("123", "456"), ("1e3", "on"), ("true", "0x1f"), ("null", "n" * 63), ("a" * 53, "n" * 63)],
)
@pytest.mark.parametrize(
    "case", ["watched", "on-gke", "on-envoy-gateway", "exchange", "router-service"]
)
def test_any_name_is_a_text(name, namespace, case):
    things = objects(CHART, CASES[case], name, namespace)
    assert [found for thing in things for found in complaints(thing)] == []


def test_a_name_in_the_values_is_a_text():
    names = v.epp(
        priorityClassName="1e3",
        exchange={"secretName": "123", "redis": {"passwordSecretName": "456"}},
        monitoring={"prometheus": {"auth": {"secretName": "789"}}},
    )
    base = v.merged(v.POOL, v.EXCHANGE, v.REDIS, v.SCRAPED)
    things = objects(CHART, v.merged(base, names))
    assert [found for thing in things for found in complaints(thing)] == []


def test_a_label_of_the_values_stands_in_place_of_the_charts():
    mine = {"app.kubernetes.io/part-of": "prom"}
    watched = {"prometheus": {"extraLabels": mine}, "alerts": {"extraLabels": mine}}
    values = v.epp(monitoring=watched | {"dashboards": {"labels": mine}})
    things = objects(CHART, v.merged(v.CASES["watched"], values))
    server = {"model": "m", "monitoring": {"enabled": True, "labels": mine}}
    things += objects("model-server", server)
    kinds = [each["kind"] for each in things if mine.items() <= each["metadata"]["labels"].items()]
    assert sorted(kinds) == ["ConfigMap", "PodMonitor", "PrometheusRule", "ServiceMonitor"]


def test_a_variable_of_the_values_stands_in_place_of_the_charts():
    mine = [{"name": "OTEL_SERVICE_NAME", "value": "mine"}, {"name": "ZONE", "value": "a"}]
    traced = v.epp(tracing={"enabled": True}, env=mine)
    things = objects(CHART, v.merged(v.POOL, traced))
    assert [found for thing in things for found in complaints(thing)] == []
    (picker,) = containers(only(things, "Deployment")["spec"]["template"]["spec"])
    assert [each for each in picker["env"] if each in mine] == mine
    server = objects("model-server", {"model": "m", "env": [{"name": "HF_HOME", "value": "/hub"}]})
    assert [found for thing in server for found in complaints(thing)] == []
    (vllm,) = containers(only(server, "Deployment")["spec"]["template"]["spec"])
    assert {"name": "HF_HOME", "value": "/hub"} in vllm["env"]
