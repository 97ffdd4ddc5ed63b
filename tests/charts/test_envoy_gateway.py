"""What `provider.name=envoy-gateway` renders for Envoy Gateway alone, and that it fits together."""

from collections import Counter
from itertools import product

import pytest

from tests.charts import router_values as r
from tests.charts import values as v
from tests.charts.helm import lint, notes, objects, only, refused_or_rendered
from tests.charts.schemas import complaints

BASE = v.CASES["on-envoy-gateway"]
HOST = "rel-epp.inf.svc"
CLUSTER = "type.googleapis.com/envoy.config.cluster.v3.Cluster"


def own(**values):
    return {"provider": {"envoyGateway": values}}


def route(**values):
    return {"experimentalHttpRoute": values}


def rendered(*values, **more):
    """The objects, each of which Envoy Gateway's definitions take."""
    things = objects("warmpick", v.merged(BASE, *values), **more)
    assert [found for thing in things for found in complaints(thing)] == []
    return things


def spec(things, kind, name=None):
    return only(things, kind, name)["spec"]


def patched(things):
    """The clusters that are patched, each with what is done to it, in order."""
    done: dict[str, list[str]] = {}
    for each in spec(things, "EnvoyPatchPolicy")["jsonPatches"]:
        assert each["type"] == CLUSTER
        done.setdefault(each["name"], []).append(
            f"{each['operation']['op']} {each['operation']['path']}"
        )
    return done


STEPS = [
    "remove /cluster_type",
    "remove /load_balancing_policy",
    "remove /load_assignment",
    "add /type",
    "add /lb_policy",
    "add /original_dst_lb_config",
]


def clusters(things):
    """The clusters that Envoy Gateway makes of the routes rendered: one a rule."""
    return {
        f"httproute/{each['metadata']['namespace']}/{each['metadata']['name']}/rule/{rule}"
        for each in things
        if each["kind"] == "HTTPRoute"
        for rule, _ in enumerate(each["spec"]["rules"])
    }


LONGEST = "r" * 53
NAMESPACE = "n" * 63


@pytest.mark.parametrize(
    ("release", "namespace", "gateways"),
    [
        *product(("rel", LONGEST), ("inf", NAMESPACE), ("", "gateways", "g" * 63)),
        ("r-" * 26 + "r", "inf", "inf"),
    ],
)
def test_names_fit_each_other_however_long(release, namespace, gateways):
    more = route(inferenceGatewayNamespace=gateways)
    things = rendered(more, release=release, namespace=namespace)
    assert patched(things) == dict.fromkeys(clusters(things), STEPS)
    backends = {each["metadata"]["name"] for each in things if each["kind"] == "Backend"}
    (rule,) = spec(things, "HTTPRoute")["rules"]
    (picker,) = spec(things, "EnvoyExtensionPolicy")["extProc"]
    named = [rule["backendRefs"][0]["name"], picker["backendRefs"][0]["name"]]
    assert {*named} == backends
    for kind in ("EnvoyExtensionPolicy", "BackendTrafficPolicy"):
        (target,) = spec(things, kind)["targetRefs"]
        assert target["name"] == only(things, "HTTPRoute")["metadata"]["name"]
    (endpoint,) = spec(things, "Backend", named[1])["endpoints"]
    service = only(things, "Service", named[1])["metadata"]
    host = f"{service['name']}.{service['namespace']}.svc.cluster.local"
    assert endpoint["fqdn"]["hostname"] == host
    patch = only(things, "EnvoyPatchPolicy")["metadata"]
    assert patch["namespace"] == (gateways or namespace)


def test_pools_behind_one_gateway_keep_out_of_each_others_way():
    releases = [("chat", "a"), ("chat", "b"), ("code", "a"), ("chat", "gateways")]
    where = route(inferenceGatewayNamespace="gateways")
    found = [rendered(where, release=name, namespace=space) for name, space in releases]
    identities = Counter(
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
        for things in found
        for each in things
        if "envoyproxy.io" in each["apiVersion"] or each["kind"] == "HTTPRoute"
    )
    twice = [identity for identity, times in identities.items() if times > 1]
    assert twice == []
    assert sum(len(patched(things)) for things in found) == len(releases)


def test_every_rule_of_every_route_is_patched():
    mine = [{"name": "batch", "rules": 3}, {"name": "chat"}]
    things = rendered(own(routes=mine))
    assert patched(things) == {
        f"httproute/inf/{rule}": STEPS
        for rule in ("rel/rule/0", *(f"batch/rule/{n}" for n in range(3)), "chat/rule/0")
    }
    for kind in ("EnvoyExtensionPolicy", "BackendTrafficPolicy"):
        assert [each["name"] for each in spec(things, kind)["targetRefs"]] == [
            "rel",
            "batch",
            "chat",
        ]


def test_without_a_route_there_is_what_a_route_needs():
    things = rendered(route(enabled=False))
    assert [each["metadata"]["name"] for each in things if each["kind"] == "Backend"] == [
        "rel",
        "rel-epp",
    ]
    assert {"EnvoyExtensionPolicy", "EnvoyPatchPolicy"}.isdisjoint(each["kind"] for each in things)


def picker_tls(*values):
    return spec(rendered(*values), "Backend", "rel-epp").get("tls")


MINE = [{"kind": "Secret", "name": "picker-ca"}]
CA = {"group": "", "kind": "Secret", "name": "rel-epp-tls"}


@pytest.mark.parametrize(
    ("values", "tls"),
    [
        ({}, {"insecureSkipVerify": True}),
        (v.CASES["secret"], {"insecureSkipVerify": True}),
        (
            v.merged(v.CASES["secret"], own(tls={"caCertificateRefs": MINE, "sni": "picker"})),
            {"caCertificateRefs": [{"group": "", **MINE[0]}], "sni": "picker"},
        ),
        (v.CASES["certificate"], {"caCertificateRefs": [CA], "sni": HOST}),
        (
            v.merged(v.CASES["certificate"], own(tls={"insecureSkipVerify": True})),
            {"insecureSkipVerify": True},
        ),
        (v.epp(flags={"secure-serving": False}), None),
        (v.epp(flags={"secure-serving": "false"}), None),
    ],
)
def test_the_pickers_certificate_is_checked_where_its_ca_is_known(values, tls):
    assert picker_tls(values) == tls


def test_cert_manager_writes_the_name_that_is_asked_for():
    things = rendered(v.CASES["certificate"])
    certificate = spec(things, "Certificate")
    tls = spec(things, "Backend", "rel-epp")["tls"]
    assert tls["sni"] in certificate["dnsNames"]
    assert tls["caCertificateRefs"][0]["name"] == certificate["secretName"]


@pytest.mark.parametrize(
    ("mode", "response"),
    [
        ("Streamed", {"body": "Streamed"}),
        ("FullDuplexStreamed", {"body": "FullDuplexStreamed"}),
        ("None", {}),
    ],
)
def test_the_mode_of_response_bodies_is_a_value(mode, response):
    (picker,) = spec(rendered(own(responseBodyMode=mode)), "EnvoyExtensionPolicy")["extProc"]
    assert picker["processingMode"] == {
        "request": {"body": "FullDuplexStreamed"},
        "response": response,
    }
    assert picker["failOpen"] is False


def test_limits_and_times_are_values():
    things = rendered(
        own(
            limits={"maxConnections": 7, "maxParallelRetries": 9},
            messageTimeout="3s",
            statusOnError=None,
            keepalive={"interval": "11s"},
        ),
        route(requestTimeout="1h"),
    )
    (picker,) = spec(things, "EnvoyExtensionPolicy")["extProc"]
    traffic = spec(things, "BackendTrafficPolicy")
    assert picker["messageTimeout"] == "3s"
    assert "statusOnError" not in picker
    pings = picker["backendSettings"]["http2"]["connectionKeepalive"]
    assert pings == {"interval": "11s", "timeout": "10s"}
    assert picker["backendSettings"]["circuitBreaker"] == traffic["circuitBreaker"]
    assert traffic["circuitBreaker"] == {
        "maxConnections": 7,
        "maxParallelRequests": 65535,
        "maxParallelRetries": 9,
        "maxPendingRequests": 65535,
    }
    assert traffic["timeout"]["http"]["streamIdleTimeout"] == "1h"


def test_there_may_be_no_pings():
    (picker,) = spec(rendered(own(keepalive=None)), "EnvoyExtensionPolicy")["extProc"]
    assert "http2" not in picker["backendSettings"]


SAME = None
ONE = {"from": "Selector", "selector": {"matchLabels": {"kubernetes.io/metadata.name": "inf"}}}


@pytest.mark.parametrize(
    ("place", "who", "namespaces"),
    [("", "", SAME), ("gateways", "", ONE), ("gateways", "All", {"from": "All"})],
)
def test_a_gateway_is_made_on_demand(place, who, namespaces):
    made = own(gateway={"create": True, "port": 8080, "allowRoutesFrom": who})
    things = rendered(made, route(inferenceGatewayNamespace=place))
    (listener,) = spec(things, "Gateway")["listeners"]
    assert listener["port"] == 8080
    assert listener.get("allowedRoutes", {}).get("namespaces") == namespaces
    assert only(things, "Gateway")["metadata"]["namespace"] == (place or "inf")
    assert not [each for each in things if each["kind"] == "GatewayClass"]


def test_one_envoy_of_a_class_is_patched_by_its_class():
    things = rendered(own(mergeGateways=True), route(inferenceGatewayNamespace="gateways"))
    patch = only(things, "EnvoyPatchPolicy")
    target = patch["spec"]["targetRef"]
    assert (target["kind"], target["name"]) == ("GatewayClass", "envoy-gateway")
    assert patch["metadata"]["namespace"] == "inf"


def test_a_route_below_a_path_takes_it_away():
    (rule,) = spec(rendered(route(pathPrefix="/chat")), "HTTPRoute")["rules"]
    assert rule["matches"][0]["path"]["value"] == "/chat"
    assert rule["filters"][0]["urlRewrite"]["path"]["replacePrefixMatch"] == "/"


def test_no_pool_is_needed():
    things = rendered(v.merged(v.SELECTOR))
    assert not [each for each in things if each["kind"] == "InferencePool"]
    assert len(patched(things)) == 1


def test_model_servers_of_grpc_are_asked_in_http2():
    things = rendered({"inferencePool": {"modelServerProtocol": "grpc"}})
    assert spec(things, "Backend", "rel")["appProtocols"] == ["gateway.envoyproxy.io/h2c"]


def test_values_of_llm_d_router_make_the_same():
    http = {"httpRoute": {"create": True, "inferenceGatewayName": "edge"}}
    things = objects("warmpick", v.merged(r.POOL, v.provider("envoy-gateway"), http))
    assert [found for thing in things for found in complaints(thing)] == []
    assert spec(things, "EnvoyPatchPolicy")["targetRef"]["name"] == "edge"
    assert [*patched(things)] == ["httproute/inf/rel/rule/0"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (own(failOpen=True), "rejects it for bodies in full duplex"),
        (own(responseBodyMode="Buffered"), "must be one of 'Streamed', 'FullDuplexStreamed'"),
        (own(statusOnError=200), "at '/provider/envoyGateway/statusOnError'"),
        (own(messageTimeout="10"), "at '/provider/envoyGateway/messageTimeout'"),
        (own(limits={"maxRequests": 1}), "'maxRequests' not allowed"),
        (own(limits={"maxConnections": -1}), "at '/provider/envoyGateway/limits/maxConnections'"),
        (own(gateway={"port": 0}), "at '/provider/envoyGateway/gateway/port'"),
        (own(routes=[{"name": "rel"}]), 'routes lists "rel" more than once'),
        (own(routes=[{"name": "Mine"}]), "at '/provider/envoyGateway/routes/0/name'"),
        (own(routes=[{"name": "a", "rules": 17}]), "at '/provider/envoyGateway/routes/0/rules'"),
        (own(tls={"caCertificateRefs": MINE}), "set inferenceExtension.tls.secretName"),
        (
            v.merged(
                v.CASES["secret"],
                own(tls={"caCertificateRefs": MINE, "insecureSkipVerify": True}),
            ),
            "caCertificateRefs and insecureSkipVerify are both set: keep only one",
        ),
        (
            v.merged(
                v.CASES["secret"],
                own(tls={"caCertificateRefs": MINE}),
                v.epp(flags={"secure-serving": False}),
            ),
            "flag secure-serving is false",
        ),
        (route(pathPrefix="chat"), "at '/experimentalHttpRoute/pathPrefix'"),
        (route(requestTimeout="1.5h"), "at '/experimentalHttpRoute/requestTimeout'"),
        (v.provider("envoy"), "must be one of 'gke', 'istio', 'envoy-gateway'"),
    ],
)
def test_what_envoy_gateway_would_not_take_is_refused(values, words):
    things, reason = refused_or_rendered("warmpick", v.merged(BASE, values))
    assert things == []
    assert words in reason


@pytest.mark.parametrize(
    "values",
    [
        own(gateway={"create": True}, gatewayClass={"create": True}),
        own(mergeGateways=True, routes=[{"name": "batch"}]),
        route(inferenceGatewayNamespace="gateways", pathPrefix="/chat"),
        v.merged(v.SELECTOR, v.ACTIVE),
        v.merged(v.CASES["certificate"], v.FENCED),
    ],
)
def test_lint_finds_nothing(values):
    assert lint("warmpick", v.merged(BASE, values)) == []


NOTED = [
    ({}, "extensionApis.enableBackend=true"),
    ({}, "extensionApis.enableEnvoyPatchPolicy=true"),
    ({}, "get envoypatchpolicy rel\n"),
    ({}, "requests end with 503, whatever failureMode says"),
    (own(statusOnError=None), "requests end with 500, whatever failureMode says"),
    (route(pathPrefix="/chat"), "curl http://$IP/chat/v1/models"),
    (route(headerMatches={"x-pool": "a"}), "/v1/models -H 'x-pool: a'"),
    (route(inferenceGatewayNamespace="gw"), "kubectl -n gw get envoypatchpolicy inf.rel"),
    (route(inferenceGatewayNamespace="gw"), "gw/inference-gateway must allow routes of the name"),
    (route(enabled=False), "experimentalHttpRoute.enabled=true, or name your HTTPRoutes"),
    (route(enabled=False), "{group: gateway.envoyproxy.io, kind: Backend, name: rel}"),
]


@pytest.mark.parametrize(("values", "words"), NOTED)
def test_the_notes_say_what_is_left_to_do(values, words):
    assert words in notes("warmpick", v.merged(BASE, values))
