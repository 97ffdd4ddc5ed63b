"""The schemas that charts and manifests are held to say no to what the API server says no to."""

from copy import deepcopy

import pytest

from tests.charts import values as v
from tests.charts.helm import objects, only
from tests.charts.schemas import complaints

THINGS = [
    *objects("warmpick", v.merged(v.CASES["on-istio"], v.ENVOY, v.FENCED)),
    *objects("warmpick", v.merged(v.CASES["on-gke"], v.ACTIVE, v.CASES["certificate"])),
]


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
    ],
)
def test_a_wrong_field_is_complained_of(kind, path, value):
    assert complaints(wrong(kind, path, value)) != []


def test_what_was_not_changed_is_not_complained_of():
    assert [found for thing in THINGS for found in complaints(thing)] == []


def test_a_kind_without_a_schema_is_a_mistake():
    thing = only(THINGS, "DestinationRule") | {"kind": "UnheardOf"}
    with pytest.raises(AssertionError, match=r"no schema for networking\.istio\.io"):
        complaints(thing)
