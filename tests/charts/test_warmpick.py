"""The chart `warmpick`: Kubernetes takes every object that Helm renders, and they fit together."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.charts import values as v
from tests.charts.helm import lint, notes, objects, only, refused_or_rendered
from tests.charts.picker import arguments
from tests.charts.picker import containers as running
from tests.charts.schemas import complaints

CHART = "warmpick"
EVERY = pytest.mark.parametrize("name", v.CASES)


def rendered(name):
    return objects(CHART, v.CASES[name])


def pods(things):
    deployment = only(things, "Deployment")
    return deployment["spec"]["template"]


def containers(things):
    return {each["name"]: each for each in running(pods(things)["spec"])}


def flags(things):
    return containers(things)["epp"]["args"]


@EVERY
def test_kubernetes_takes_every_object(name):
    assert [found for thing in rendered(name) for found in complaints(thing)] == []


@EVERY
def test_lint_finds_nothing(name):
    assert lint(CHART, v.CASES[name]) == []


def test_lint_needs_no_values():
    assert lint(CHART, {}) == []


@EVERY
def test_no_object_is_there_twice_and_none_in_another_namespace(name):
    things = rendered(name)
    names = Counter((each["kind"], each["metadata"]["name"]) for each in things)
    assert [each for each, count in names.items() if count > 1] == []
    cluster_wide = {"ClusterRole", "ClusterRoleBinding"}
    assert {
        each["metadata"].get("namespace") for each in things if each["kind"] not in cluster_wide
    } == {"inf"}


@EVERY
def test_no_container_has_more_rights_than_it_needs(name):
    spec = pods(rendered(name))["spec"]
    group = {"fsGroup", "fsGroupChangePolicy"} if name == "recorded-on-a-claim" else set()
    assert {key: said for key, said in spec["securityContext"].items() if key not in group} == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for container in running(spec):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}


def within(selector, labels):
    return selector.items() <= labels.items()


@EVERY
def test_what_selects_the_picker_finds_it(name):
    things = rendered(name)
    labels = pods(things)["metadata"]["labels"]
    service = only(things, "Service", "rel-epp")
    assert within(only(things, "Deployment")["spec"]["selector"]["matchLabels"], labels)
    assert within(service["spec"]["selector"], labels)
    for thing in things:
        if thing["kind"] in {"PodDisruptionBudget", "PodMonitoring"}:
            assert within(thing["spec"]["selector"]["matchLabels"], labels)
        if thing["kind"] == "NetworkPolicy":
            assert within(thing["spec"]["podSelector"]["matchLabels"], labels)
        if thing["kind"] == "ServiceMonitor":
            assert within(thing["spec"]["selector"]["matchLabels"], service["metadata"]["labels"])


@EVERY
def test_ports_that_are_named_are_there(name):
    things = rendered(name)
    named = {
        port["name"]: port["containerPort"]
        for container in containers(things).values()
        for port in container.get("ports", ())
    }
    service = only(things, "Service", "rel-epp")["spec"]["ports"]
    for port in service:
        assert port["targetPort"] in {*named, *named.values()}
    for thing in things:
        if thing["kind"] == "ServiceMonitor":
            assert thing["spec"]["endpoints"][0]["port"] in {port["name"] for port in service}
        if thing["kind"] == "PodMonitoring":
            assert thing["spec"]["endpoints"][0]["port"] in named
    if name not in {"selector", "selector-leader", "standalone", "pool-of-ones-own"}:
        pool = only(things, "InferencePool")["spec"]
        picker = pool.get("endpointPickerRef") or pool["extensionRef"]
        assert picker["name"] == only(things, "Service", "rel-epp")["metadata"]["name"]
        port = picker["port"]["number"] if "port" in picker else picker["portNumber"]
        assert port in {each["port"] for each in service}


@EVERY
def test_volumes_that_are_mounted_are_there(name):
    things = rendered(name)
    made = {each["metadata"]["name"] for each in things if each["kind"] == "ConfigMap"}
    volumes = {each["name"]: each for each in pods(things)["spec"]["volumes"]}
    assert len(volumes) == len(pods(things)["spec"]["volumes"])
    for container in containers(things).values():
        assert {each["name"] for each in container.get("volumeMounts", ())} <= volumes.keys()
    for volume in volumes.values():
        assert volume.get("configMap", {}).get("name") in {None, *made}


READ = ("list", "watch")
PODS = (("",), ("pods",), (), READ)
POOLS = (("inference.networking.k8s.io",), ("inferencepools",), (), READ)
ROUTING = (
    ("llm-d.ai", "inference.networking.x-k8s.io"),
    ("inferenceobjectives", "inferencemodelrewrites"),
    (),
    READ,
)


def lease(pool):
    group, plural = ("coordination.k8s.io",), ("leases",)
    named = (group, plural, (f"epp-inf-{pool}.llm-d.ai",), ("get", "update"))
    return (group, plural, (), ("create",)), named


REVIEWS = (
    (("authentication.k8s.io",), ("tokenreviews",), (), ("create",)),
    (("authorization.k8s.io",), ("subjectaccessreviews",), (), ("create",)),
)


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("defaults", {PODS, POOLS, ROUTING, *REVIEWS}),
        ("leader", {PODS, POOLS, ROUTING, *lease("rel"), *REVIEWS}),
        ("active", {PODS, POOLS, ROUTING, *REVIEWS}),
        ("selector", {PODS, ROUTING, *REVIEWS}),
        ("selector-leader", {PODS, ROUTING, *lease("rel-epp")}),
    ],
)
def test_the_picker_may_do_this_and_no_more(name, rules):
    things = rendered(name)
    account = pods(things)["spec"]["serviceAccountName"]
    roles = {(each["kind"], each["metadata"]["name"]): each.get("rules") for each in things}
    bound = [
        (each["roleRef"]["kind"], each["roleRef"]["name"])
        for each in things
        if each["kind"].endswith("Binding")
        and each["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "inf"}]
    ]
    found = [
        tuple(
            tuple(rule.get(key, ())) for key in ("apiGroups", "resources", "resourceNames", "verbs")
        )
        for role in bound
        for rule in roles[role]
    ]
    assert sorted(found) == sorted(rules)


@pytest.mark.parametrize(
    ("given", "replicas", "elects"),
    [(True, 1, True), ("T", 1, True), ("yes", 1, True), ("false", 2, False), (False, 2, False)],
)
def test_the_flag_of_leader_election_goes_before_the_values(given, replicas, elects):
    flag = {"ha-enable-leader-election": given}
    values = v.epp(replicas=replicas, leaderElection=not elects, flags=flag)
    things = objects(CHART, v.merged(v.POOL, values))
    roles = {each["metadata"]["name"] for each in things if each["kind"] == "Role"}
    strategy = only(things, "Deployment")["spec"]["strategy"]["rollingUpdate"]
    assert arguments(things).ha_enable_leader_election == elects
    assert ("rel-epp-leader-election" in roles) == elects
    assert strategy["maxUnavailable"] == ("100%" if elects else 0)


BESIDES = {
    "envoy-gateway": {
        *("Backend", "EnvoyExtensionPolicy", "BackendTrafficPolicy", "EnvoyPatchPolicy"),
        "ServiceMonitor",
    },
    "gke": {"HealthCheckPolicy", "GCPBackendPolicy", "PodMonitoring"},
    "istio": {"DestinationRule", "ServiceMonitor"},
}


@pytest.mark.parametrize("said", ["False", "f", "no", 0])
def test_gateways_and_the_proxy_know_every_word_by_which_tls_is_off(said):
    plain = v.epp(flags={"secure-serving": said})
    rule = objects(CHART, v.merged(v.CASES["on-istio"], plain))
    assert arguments(rule).secure_serving is False
    assert only(rule, "DestinationRule")["spec"]["trafficPolicy"]["tls"] == {"mode": "DISABLE"}
    proxy = objects(CHART, v.merged(v.CASES["standalone"], plain))
    assert "tls" not in only(proxy, "ConfigMap", "rel-epp-envoy")["data"]["envoy.yaml"]


@pytest.mark.parametrize("old", [{}, v.OLD_POOL])
def test_gke_s_policies_are_about_the_pool(old):
    things = objects(CHART, v.merged(v.POOL, old, v.provider("gke")))
    pool = only(things, "InferencePool")
    for kind in ("HealthCheckPolicy", "GCPBackendPolicy"):
        target = only(things, kind)["spec"]["targetRef"]
        assert target["group"] == pool["apiVersion"].partition("/")[0]
        assert (target["kind"], target["name"]) == (pool["kind"], pool["metadata"]["name"])


@pytest.mark.parametrize("name", v.PROVIDERS)
def test_a_provider_gets_its_own_objects(name):
    usual = {
        *("ClusterRole", "ClusterRoleBinding", "ConfigMap", "Deployment", "HTTPRoute"),
        *("InferencePool", "Role", "RoleBinding", "Secret", "Service", "ServiceAccount"),
    }
    kinds = {each["kind"] for each in rendered(f"on-{name}")}
    assert kinds - usual == BESIDES.get(name, {"ServiceMonitor"})


def test_istio_is_told_how_the_picker_serves():
    secure = only(rendered("on-istio"), "DestinationRule")["spec"]
    plain = v.merged(v.CASES["on-istio"], v.epp(flags={"secure-serving": False}))
    assert secure["host"] == "rel-epp.inf.svc.cluster.local"
    assert secure["trafficPolicy"]["tls"] == {"mode": "SIMPLE", "insecureSkipVerify": True}
    open_rule = only(objects(CHART, plain), "DestinationRule")["spec"]
    assert open_rule["trafficPolicy"]["tls"] == {"mode": "DISABLE"}


def test_the_cluster_s_domain_is_in_every_name_of_the_picker():
    domain = v.epp(clusterDomain="corp.internal")
    rule = only(objects(CHART, v.merged(v.CASES["on-istio"], domain)), "DestinationRule")
    made = only(objects(CHART, v.merged(v.CASES["certificate"], domain)), "Certificate")
    assert rule["spec"]["host"] == "rel-epp.inf.svc.corp.internal"
    names = ["rel-epp", "rel-epp.inf.svc", "rel-epp.inf.svc.corp.internal"]
    assert made["spec"]["dnsNames"] == names


def test_ports_that_flags_move_are_open_and_asked_for_health():
    moved = v.epp(flags={"metrics-port": 9191, "grpc-health-port": 9303})
    things = objects(CHART, v.merged(v.POOL, v.FENCED, v.provider("gke"), moved))
    ports = {each["name"]: each["containerPort"] for each in containers(things)["epp"]["ports"]}
    assert (ports["metrics"], ports["grpc-health"]) == (9191, 9303)
    rules = only(things, "NetworkPolicy")["spec"]["ingress"]
    opened = [each["port"] for rule in rules for each in rule["ports"]]
    assert sorted(opened) == sorted(ports.values())
    check = only(things, "HealthCheckPolicy", "rel-epp")["spec"]["default"]["config"]
    assert check["grpcHealthCheck"]["port"] == 9303


@pytest.mark.parametrize(
    ("provider", "kind", "field"),
    [("none", "ServiceMonitor", "tlsConfig"), ("gke", "PodMonitoring", "tls")],
)
@pytest.mark.parametrize("given", [None, {"serverName": "llm-epp"}])
def test_metrics_that_have_a_certificate_are_asked_for_over_tls(provider, kind, field, given):
    values = v.merged(v.POOL, v.provider(provider), v.SCRAPED)
    (plain,) = only(objects(CHART, values), kind)["spec"]["endpoints"]
    assert (plain["scheme"], field in plain) == ("http", False)
    served = v.epp(flags={"metrics-cert-dir": "/certs"})
    told = {} if given is None else v.epp(monitoring={"prometheus": {"tlsConfig": given}})
    monitor = only(objects(CHART, v.merged(values, served, told)), kind)
    assert complaints(monitor) == []
    (asked,) = monitor["spec"]["endpoints"]
    assert asked["scheme"] == "https"
    assert asked[field] == {"insecureSkipVerify": True} | (given or {})


def test_a_proxy_of_its_own_may_ask_for_picks_beside_the_gateways():
    gateway = {"podSelector": {"matchLabels": {"app": "gateway"}}}
    fenced = v.epp(networkPolicy={"gateways": [gateway]}, sidecar={"mode": "service"})
    things = objects(CHART, v.merged(v.CASES["standalone"], fenced))
    picks = only(things, "NetworkPolicy")["spec"]["ingress"][0]
    first, proxy = picks["from"]
    labels = only(things, "Deployment", "rel-proxy")["spec"]["template"]["metadata"]["labels"]
    assert (first, picks["ports"][0]["port"]) == (gateway, 9002)
    assert within(proxy["podSelector"]["matchLabels"], labels)


def test_the_route_leads_to_the_pool():
    things = rendered("route")
    route = only(things, "HTTPRoute")["spec"]
    (rule,) = route["rules"]
    assert route["parentRefs"][0]["namespace"] == "gateways"
    assert rule["backendRefs"] == [
        {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "rel"}
    ]
    assert {each["name"]: each["value"] for each in rule["matches"][0]["headers"]} == {
        "X-Gateway-Base-Model-Name": "Qwen/Qwen3-32B",
        "x-team": "a",
    }
    assert rule["timeouts"] == {"request": "300s"}
    assert "timeouts" not in only(rendered("on-gke"), "HTTPRoute")["spec"]["rules"][0]


@pytest.mark.parametrize("base", [v.POOL, {"router": {"modelServers": {"matchLabels": {}}}}])
def test_a_label_that_is_a_number_keeps_its_digits(base):
    labels = {"build": 20261129, "hot": True}
    where = v.both(base, {"router": {"modelServers": {"matchLabels": labels}}})
    if "router" not in base:
        where = v.both(base, {"inferencePool": {"modelServers": {"matchLabels": labels}}})
    things = objects(CHART, v.merged(where, v.FENCED))
    assert [found for thing in things for found in complaints(thing)] == []
    selected = only(things, "InferencePool")["spec"]["selector"]["matchLabels"]
    assert {"build": "20261129", "hot": "true"}.items() <= selected.items()
    peers = [
        rule["to"][0] for rule in only(things, "NetworkPolicy")["spec"]["egress"] if "to" in rule
    ]
    assert peers == [{"podSelector": {"matchLabels": selected}}]
    assert "build=20261129" in notes(CHART, where)


def test_a_changed_configuration_is_a_new_pod():
    def checksum(values):
        return pods(objects(CHART, values))["metadata"]["annotations"]["checksum/config"]

    assert checksum(v.CASES["custom"]) != checksum(v.CASES["defaults"])
    assert checksum(v.CASES["tuned"]) == checksum(v.CASES["defaults"])


def test_a_long_release_name_still_makes_names():
    things = objects(CHART, v.CASES["leader"], release="a" * 53, namespace="b" * 63)
    assert [found for thing in things for found in complaints(thing)] == []
    assert only(things, "Service")["metadata"]["name"] == "a" * 40 + "-epp"


@EVERY
def test_notes_tell_the_next_step(name):
    said = notes(CHART, v.CASES[name])
    waits = "kubectl -n inf rollout status deployment/rel-epp" in said
    assert waits == ("--ha-enable-leader-election=true" not in flags(rendered(name)))
    assert "<no value>" not in said
    assert "\n\n\n" not in said
    steps = [line[0] for line in said.splitlines() if line[:2] in {"1.", "2.", "3."}]
    assert steps in (["1", "2"], ["1", "2", "3"])


SWITCHES = (
    v.ACTIVE,
    v.ENVOY,
    v.SCRAPED,
    v.OPEN,
    v.FENCED,
    v.ROUTED,
    v.TOKENS,
    v.RECORDED,
    v.CUSTOM,
    v.TUNED,
    v.epp(replicas=3),
    v.EXCHANGE,
    v.epp(leaderElection=True),
    v.epp(tls={"secretName": "mine"}),
    *map(v.provider, v.PROVIDERS),
)


@settings(max_examples=25)
@given(st.sampled_from((v.POOL, v.SELECTOR)), st.lists(st.sampled_from(SWITCHES), max_size=6))
def test_any_switches_together_render_what_kubernetes_takes_or_are_refused(base, switches):
    things, reason = refused_or_rendered(CHART, v.merged(base, *switches))
    assert [found for thing in things for found in complaints(thing)] == []
    assert bool(things) != bool(reason)
    assert not reason or any(
        word in reason
        for word in (
            "inferenceExtension.",
            "provider.",
            "inferenceObjectives",
            "experimentalHttpRoute.",
        )
    )
