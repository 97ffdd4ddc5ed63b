"""How long the containers of a picker's pod, and a proxy's own, serve when they are to end."""

import pytest
import yaml

from epp.protocol.kube.election import LeaderElectionConfig
from tests.charts import router_values as r
from tests.charts import values as v
from tests.charts.helm import objects, only
from tests.charts.picker import arguments, containers
from tests.charts.schemas import complaints

CHART = "warmpick"


def told_to_end(things):
    """When a kubelet tells each container to end that a stream keeps at work.

    A sidecar container is told so when the others have ended (Kubernetes, Sidecar Containers).
    """
    (pod,) = (
        thing["spec"]["template"]["spec"]
        for thing in things
        if thing["kind"] in {"Deployment", "StatefulSet"}
        and "epp" in {each["name"] for each in thing["spec"]["template"]["spec"]["containers"]}
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
