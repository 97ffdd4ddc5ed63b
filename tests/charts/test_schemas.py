"""The schemas that charts and manifests are held to say no to what the API server says no to."""

from copy import deepcopy

import pytest

from tests.charts import values as v
from tests.charts.helm import objects, only
from tests.charts.schemas import complaints

THINGS = [
    *objects("warmpick", v.merged(v.CASES["on-istio"], v.ENVOY, v.FENCED)),
    *objects("warmpick", v.merged(v.CASES["on-gke"], v.ACTIVE, v.CASES["certificate"])),
    *objects("warmpick", v.CASES["on-envoy-gateway"]),
]

EXT_PROC = ("spec", "extProc", 0)
CA = {"group": "", "kind": "Secret", "name": "ca"}


def wrong(kind, path, value):
    """The first object of a kind, with one field changed or added."""
    thing = deepcopy(next(each for each in THINGS if each["kind"] == kind))
    *way, last = path
    place = thing
    for step in way:
        place = place[step]
    place[last] = value
    return thing


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Deployment", ("spec", "replicas"), "three"),
        ("Deployment", ("spec", "template", "spec", "containers", 0, "imagePullPolicies"), "x"),
        ("Deployment", ("spec", "template", "spec", "containers", 0, "ports", 0), {"name": "x"}),
        ("Deployment", ("metadata", "labels", "x"), "not a label"),
        ("Service", ("spec", "ports", 0, "port"), "http"),
        ("Service", ("metadata", "name"), "Upper"),
        ("ConfigMap", ("data", "x"), 1),
        ("Role", ("rules", 0, "verb"), ["get"]),
        ("ClusterRole", ("rules",), {}),
        ("NetworkPolicy", ("spec", "ingress", 0, "port"), 1),
        ("PodDisruptionBudget", ("spec", "minAvailble"), 1),
        ("HorizontalPodAutoscaler", ("spec", "maxReplicas"), None),
        ("InferencePool", ("spec", "targetPorts", 0, "number"), 65536),
        ("InferencePool", ("spec", "targetPorts"), []),
        ("InferencePool", ("spec", "endpointPickerRef", "failureMode"), "FailAjar"),
        ("InferencePool", ("spec", "selector", "matchExpressions"), []),
        ("HTTPRoute", ("spec", "rules", 0, "timeouts", "request"), "5 minutes"),
        ("HTTPRoute", ("spec", "rules", 0, "backendRefs", 0, "weigth"), 1),
        ("DestinationRule", ("spec", "trafficPolicy", "tls", "mode"), "NONE"),
        ("ServiceMonitor", ("spec", "endpoints", 0, "bearerToken"), "x"),
        ("PodMonitoring", ("spec", "endpoints", 0, "interval"), "soon"),
        ("HealthCheckPolicy", ("spec", "default", "timeoutSec"), "2s"),
        ("GCPBackendPolicy", ("spec", "targetRef", "kind"), "Service"),
        ("Certificate", ("spec", "issuerRef"), {}),
        ("Backend", ("spec", "endpoints", 0, "fqdn", "hostname"), "llm"),
        ("Backend", ("spec", "tls"), {"insecureSkipVerify": False}),
        ("Backend", ("spec", "tls"), {"insecureSkipVerify": True, "caCertificateRefs": [CA]}),
        ("EnvoyExtensionPolicy", (*EXT_PROC, "failOpen"), True),
        ("EnvoyExtensionPolicy", (*EXT_PROC, "backendRefs"), []),
        ("EnvoyExtensionPolicy", (*EXT_PROC, "processingMode", "request", "body"), "Duplex"),
        ("EnvoyExtensionPolicy", (*EXT_PROC, "statusOnError"), 200),
        ("EnvoyExtensionPolicy", (*EXT_PROC, "metadata", "writable"), []),
        ("BackendTrafficPolicy", ("spec", "circuitBreaker", "maxRequests"), 1),
        ("BackendTrafficPolicy", ("spec", "targetRefs", 0, "kind"), "InferencePool"),
        ("EnvoyPatchPolicy", ("spec", "targetRef", "namespace"), "inf"),
        ("EnvoyPatchPolicy", ("spec", "jsonPatches", 0, "operation", "op"), "delete"),
    ],
)
def test_a_wrong_field_is_complained_of(kind, path, value):
    assert complaints(wrong(kind, path, value)) != []


def test_in_other_modes_the_filter_may_fail_open():
    policy = wrong("EnvoyExtensionPolicy", (*EXT_PROC, "failOpen"), True)
    policy["spec"]["extProc"][0]["processingMode"]["request"]["body"] = "Streamed"
    assert complaints(policy) == []


def test_what_was_not_changed_is_not_complained_of():
    assert [found for thing in THINGS for found in complaints(thing)] == []


POD = ("spec", "template", "spec")
PICKER = (*POD, "containers", 0)
ENVOY = (*POD, "initContainers", 0)
SLEEP = ("lifecycle", "preStop", "sleep", "seconds")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ((*POD, "volumes", 1, "name"), "plugins-config-volume", "volume plugins-config-volume is"),
        ((*ENVOY, "name"), "epp", "container epp is there 2 times"),
        ((*ENVOY, "ports", 1, "name"), "http", "envoy-sidecar's port http is there 2 times"),
        ((*PICKER, "volumeMounts", 1, "mountPath"), "/config", "epp's mount /config"),
        ((*PICKER, *SLEEP), 0, "epp sleeps for 0 of 130 seconds"),
        ((*PICKER, *SLEEP), 131, "epp sleeps for 131 of 130 seconds"),
        ((*POD, "terminationGracePeriodSeconds"), 19, "epp sleeps for 20 of 19 seconds"),
        ((*PICKER, "restartPolicy"), "Always", "epp is not a sidecar container"),
    ],
)
def test_what_no_schema_says_of_a_pod_is_noticed(path, value, words):
    (found,) = complaints(wrong("Deployment", path, value))
    assert words in found


def test_a_kind_without_a_schema_is_a_mistake():
    thing = only(THINGS, "DestinationRule") | {"kind": "UnheardOf"}
    with pytest.raises(AssertionError, match=r"no schema for networking\.istio\.io"):
        complaints(thing)
