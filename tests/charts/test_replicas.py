"""Replicas that tell each other what they see, as the chart installs them."""

import base64

import pytest
import yaml

from epp.adapters.replicas.settings import MIN_SECRET, PeerAddress
from epp.cli.replica_flags import replicas_of
from tests.charts import values as v
from tests.charts.helm import notes, objects, only, refused_or_rendered
from tests.charts.picker import arguments, container
from tests.envoy_config import complaint

CHART = "warmpick"


def rendered(*more):
    return objects(CHART, v.merged(v.POOL, v.EXCHANGE, *more))


def test_nothing_is_there_unless_it_is_wanted():
    things = objects(CHART, v.merged(v.POOL, v.epp(replicas=3)))
    assert not [each for each in things if each["metadata"]["name"].endswith("-replicas")]
    assert arguments(things).replicas == []


def test_replicas_find_each_other_by_a_headless_service():
    things = rendered()
    service = only(things, "Service", "rel-epp-replicas")["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    assert service["selector"] == only(things, "Deployment")["spec"]["selector"]["matchLabels"]
    parsed = arguments(things)
    settings = replicas_of(parsed, b"x" * MIN_SECRET)
    assert settings is not None
    assert settings.peers == [PeerAddress("rel-epp-replicas.inf.svc.cluster.local", 9004)]
    (port,) = [each for each in container(things)["ports"] if each["name"] == "replicas"]
    assert port["containerPort"] == settings.port == 9004
    assert not parsed.ha_enable_leader_election


def test_the_secret_is_made_and_mounted_where_the_picker_reads_it():
    things = rendered()
    secret = only(things, "Secret", "rel-epp-replicas")
    assert len(base64.b64decode(secret["data"]["secret"])) >= MIN_SECRET
    assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    pod = only(things, "Deployment")["spec"]["template"]["spec"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "replicas"]
    (mount,) = [each for each in container(things)["volumeMounts"] if each["name"] == "replicas"]
    assert volume["secret"]["secretName"] == "rel-epp-replicas"
    assert str(arguments(things).hash_secret_file) == f"{mount['mountPath']}/secret"


def test_a_secret_of_ones_own_is_used():
    things = rendered(v.epp(exchange={"secretName": "mine"}))
    assert not [each for each in things if each["kind"] == "Secret"]
    pod = only(things, "Deployment")["spec"]["template"]["spec"]
    assert "mine" in [each.get("secret", {}).get("secretName") for each in pod["volumes"]]


def test_a_server_in_between_takes_the_place_of_ports():
    things = rendered(v.REDIS, v.FENCED)
    parsed = arguments(things)
    assert parsed.replicas == ["rediss://pickers@redis:6380/1"]
    pod = only(things, "Deployment")["spec"]["template"]["spec"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "replicas-redis"]
    mounts = {each["name"]: each["mountPath"] for each in container(things)["volumeMounts"]}
    assert volume["secret"]["secretName"] == "redis"
    assert str(parsed.replicas_password_file) == f"{mounts['replicas-redis']}/password"
    assert str(parsed.hash_secret_file) == f"{mounts['replicas']}/secret"
    ports = {each["name"] for each in container(things)["ports"]}
    assert "replicas" not in ports
    (port,) = only(things, "Service", "rel-epp-replicas")["spec"]["ports"]
    assert port["targetPort"] in ports
    policy = only(things, "NetworkPolicy")["spec"]
    opened = [each.get("port") for rule in policy["egress"] for each in rule["ports"]]
    assert 6380 in opened
    assert not {9004} & {each["port"] for rule in policy["ingress"] for each in rule["ports"]}


def test_a_server_needs_no_password_and_has_a_port_without_one_being_said():
    things = rendered(v.epp(exchange={"redis": {"url": "redis://redis"}}), v.FENCED)
    assert arguments(things).replicas_password_file is None
    policy = only(things, "NetworkPolicy")["spec"]
    assert 6379 in [each.get("port") for rule in policy["egress"] for each in rule["ports"]]


def test_not_all_go_at_once():
    things = rendered()
    assert only(things, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    deployment = only(things, "Deployment")["spec"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    (spread,) = deployment["template"]["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"


def test_a_network_policy_lets_replicas_talk_to_each_other_alone():
    policy = only(rendered(v.FENCED), "NetworkPolicy")["spec"]
    for rules, others in ((policy["ingress"], "from"), (policy["egress"], "to")):
        (rule,) = [each for each in rules if {"port": 9004, "protocol": "TCP"} in each["ports"]]
        assert rule[others] == [{"podSelector": {"matchLabels": {"inferencepool": "rel-epp"}}}]


def test_each_worker_of_a_pod_has_a_port_for_the_others():
    things = rendered(v.epp(workers=3), v.FENCED)
    assert arguments(things).workers == 3
    ports = [each for each in container(things)["ports"] if each["name"].startswith("replicas")]
    assert [each["containerPort"] for each in ports] == [9004, 9005, 9006]
    policy = only(things, "NetworkPolicy")["spec"]
    span = {"port": 9004, "protocol": "TCP", "endPort": 9006}
    for rules in (policy["ingress"], policy["egress"]):
        assert len([each for each in rules if span in each["ports"]]) == 1


def test_workers_need_no_other_replicas_and_one_is_no_flag():
    assert arguments(objects(CHART, v.merged(v.POOL, v.epp(workers=2)))).workers == 2
    words = container(objects(CHART, v.POOL))["args"]
    assert not [each for each in words if "workers" in each]


def test_a_pod_may_take_the_cores_of_its_workers():
    for workers, cores in ((1, 0.9), (3, 2.7)):
        things = objects(CHART, v.merged(v.POOL, v.epp(workers=workers), v.ALERTS))
        groups = only(things, "PrometheusRule")["spec"]["groups"]
        rules = {each.get("alert"): each for group in groups for each in group["rules"]}
        limit = rules["WarmpickPickerSaturated"]["expr"].rpartition("> ")[2]
        assert float(limit) == pytest.approx(cores)


@pytest.mark.parametrize(
    ("cpu", "enough"), [("1", False), ("1500m", False), (2, True), ("2000m", True), (2.5, True)]
)
def test_the_notes_say_when_workers_have_fewer_cores_than_they_are(cpu, enough):
    asked = v.epp(workers=2, resources={"requests": {"cpu": cpu}})
    said = notes(CHART, v.merged(v.POOL, asked))
    assert (f"asks for {cpu} CPU for all" in said) is not enough
    assert "workers take" not in notes(CHART, v.merged(v.POOL, v.epp(resources={"requests": {}})))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (v.epp(workers=2, replicas=2), "set inferenceExtension.exchange.enabled=true, or"),
        (v.epp(workers=2, exchange={"enabled": True, "port": 65535}), "choose 65534 or lower"),
    ],
)
def test_workers_that_cannot_be_are_refused(more, reason):
    things, said = refused_or_rendered(CHART, v.merged(v.POOL, more))
    assert not things
    assert reason in said


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (v.epp(leaderElection=True), "set inferenceExtension.leaderElection=false"),
        (
            v.epp(flags={"ha-enable-leader-election": True}),
            "leave out inferenceExtension.flags.ha-enable-leader-election",
        ),
        ({"router": {}}, ""),
    ],
)
def test_what_does_not_go_together_is_refused(more, reason):
    things, said = refused_or_rendered(CHART, v.merged(v.POOL, v.EXCHANGE, more))
    assert bool(things) is (not reason)
    assert reason in said


def proxy(*more):
    """Render a proxy of pickers that are replicas; its configuration, and the picker's ports."""
    apart = v.epp(sidecar={"mode": "service"})
    things = rendered(v.CASES["standalone"], apart, *more)
    text = only(things, "ConfigMap", "rel-epp-envoy")["data"]["envoy.yaml"]
    ports = {each["name"]: each["containerPort"] for each in container(things)["ports"]}
    return things, text, ports


def test_a_proxy_knows_replicas_one_by_one(tmp_path):
    things, text, ports = proxy()
    config = yaml.safe_load(text)["static_resources"]
    (cluster,) = [each for each in config["clusters"] if each["name"] == "epp"]
    (group,) = cluster["load_assignment"]["endpoints"]
    (host,) = group["lb_endpoints"]
    where = host["endpoint"]["address"]["socket_address"]
    assert where["address"] == "rel-epp-replicas.inf.svc.cluster.local"
    assert only(things, "Service", "rel-epp-replicas")["spec"]["clusterIP"] == "None"
    assert where["port_value"] == ports["grpc"]
    assert cluster["type"] == "STRICT_DNS"
    assert cluster["common_lb_config"]["healthy_panic_threshold"] == {"value": 0}
    (checks,) = cluster["health_checks"]
    assert checks["no_traffic_interval"] == checks["interval"]
    path = tmp_path / "envoy.yaml"
    path.write_text(text)
    assert complaint(path) == ""


def test_a_pick_whose_replica_is_gone_is_tried_with_another_one():
    _, text, _ = proxy()
    filters = yaml.safe_load(text)["static_resources"]["listeners"][0]["filter_chains"][0]
    asking = filters["filters"][0]["typed_config"]["http_filters"][0]["typed_config"]
    retries = asking["grpc_service"]["retry_policy"]
    assert {"connect-failure", "reset"} <= set(retries["retry_on"].split(","))
    assert retries["retry_host_predicate"]
    beside = objects(CHART, v.CASES["standalone"])
    assert "retry_policy" not in only(beside, "ConfigMap", "rel-epp-envoy")["data"]["envoy.yaml"]


def test_a_proxy_is_ready_with_one_of_its_replicas():
    for exchange, least in ((True, 1), (False, 100)):
        _, text, _ = proxy(v.epp(exchange={"enabled": exchange}, replicas=3 if exchange else 1))
        assert f"epp: {{value: {least}}}" in text
