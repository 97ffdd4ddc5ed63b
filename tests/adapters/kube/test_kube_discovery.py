"""Discovery of a pool in Kubernetes: events of endpoints, the routing table, readiness."""

import asyncio
import itertools

import msgspec
import pytest
import yaml
from structlog.testing import capture_logs

from epp.adapters.kube.kube_discovery import KubeDiscovery
from epp.adapters.kube.kube_settings import KubeAccess, KubeSettings
from epp.errors import ConfigError
from epp.model.events import EndpointUpserted
from epp.protocol.kube.election import LeaderElectionConfig
from tests.adapters.kube.rig import (
    CRDS,
    QUICK,
    StandInFleet,
    discovering,
    pod,
    rewrite,
    watched,
)
from tests.kubeapi import FakeKubernetes, faults
from tests.protocol.kube.objects import legacy_pool, objective, objective_v1, pool
from tests.tasks import running, until

OBJECTIVES = yaml.safe_load(
    next(path for path in CRDS if path.stem == "inferenceobjectives.llm-d.ai").read_text()
)["spec"]["versions"]
GATEWAY_GROUP = "inference.networking.k8s.io"
LEGACY = "inference.networking.x-k8s.io"


@pytest.fixture
async def api():
    async with FakeKubernetes(crds=CRDS) as made:
        yield made


async def test_a_pool_is_applied_before_it_is_ready(api, tmp_path):
    api.put(pool(ports=(8000, 8001)))
    api.put(pod("a", "10.0.0.1"))
    api.put(pod("b", "10.0.0.2", ready=False))
    api.put(pod("c", "10.0.0.3", labels={"app": "other"}))
    async with discovering(api, tmp_path) as (discovery, fleet):
        await fleet.until(lambda: discovery.ready)
        assert fleet.targets == ["10.0.0.1:8000", "10.0.0.1:8001"]
        assert (fleet.listed, fleet.ready) == (1, [True])
        api.patch("Pod", "b", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
        await fleet.until(lambda: "10.0.0.2:8001" in fleet.targets)
        api.patch("Pod", "a", {"metadata": {"annotations": {"llm-d.ai/active-ports": "8001"}}})
        await fleet.until(lambda: "10.0.0.1:8000" not in fleet.targets)
        api.delete("Pod", "b")
        await fleet.until(lambda: fleet.targets == ["10.0.0.1:8001"])


async def test_a_pool_that_is_not_there_yet_is_waited_for(api, tmp_path):
    api.put(pod("a"))
    async with discovering(api, tmp_path) as (discovery, fleet):
        ask = await watched(api, "inferencepools")
        assert ask.query["fieldSelector"] == "metadata.name=pool"  # what a Role may be limited to
        assert not discovery.ready
        api.put(pool())
        await fleet.until(lambda: discovery.ready)
        assert fleet.targets == ["10.0.0.1:8000"]


@pytest.mark.parametrize("seen", [True, False])
async def test_a_deleted_pool_removes_its_endpoints(seen, api, tmp_path):
    api.put(pool())
    api.put(pod("a"))
    async with discovering(api, tmp_path) as (discovery, fleet):
        await fleet.until(lambda: discovery.ready)
        if not seen:
            await api.down()
        api.delete("InferencePool", "pool", group=GATEWAY_GROUP)
        if not seen:
            api.compact()
            await api.up()
        await fleet.until(lambda: not discovery.ready and not fleet.endpoints)
        assert fleet.told_at_removals == [[False]]  # gateways send to others before they go
        api.put(pod("b", "10.0.0.2"))
        api.put(pool(ports=(9000,)))
        await fleet.until(lambda: discovery.ready)
        assert fleet.targets == ["10.0.0.1:9000", "10.0.0.2:9000"]
        assert (fleet.ready, fleet.listed) == ([True, False, True], 2)


async def test_another_selector_and_other_ports(api, tmp_path):
    api.put(pool())
    api.put(pod("a", "10.0.0.1"))
    api.put(pod("b", "10.0.0.2", labels={"app": "other"}))
    async with discovering(api, tmp_path) as (discovery, fleet):
        await fleet.until(lambda: discovery.ready)
        api.put(pool(labels={"app": "other"}))
        await fleet.until(lambda: fleet.targets == ["10.0.0.2:8000"])
        api.put(pool(labels={"app": "other"}, ports=tuple(range(8000, 8008))))
        await fleet.until(lambda: len(fleet.targets) == 8)
        assert set(fleet.endpoints) == {f"default/b-rank-{rank}" for rank in range(8)}
        api.put(pod("c", "10.0.0.3"))
        api.put(pod("d", "10.0.0.4", labels={"app": "other"}))
        await fleet.until(lambda: len(fleet.targets) == 16)
        assert fleet.ready == [True]
        await until(lambda: [each.ask.resource for each in api.watches].count("pods") == 1)
    listed = [ask for ask in api.requests if (ask.verb, ask.resource) == ("list", "pods")]
    assert len(listed) == 2  # once for each selector


async def test_scaled_to_zero_and_back_it_stays_ready(api, tmp_path):
    api.put(pool())
    api.put(pod("a"))
    async with discovering(api, tmp_path) as (discovery, fleet):
        await fleet.until(lambda: discovery.ready)
        api.delete("Pod", "a")
        await fleet.until(lambda: not fleet.endpoints)
        api.put(pod("b"))
        await fleet.until(lambda: fleet.targets == ["10.0.0.1:8000"])
        assert fleet.ready == [True]


async def test_one_name_again_is_another_pod(api, tmp_path):
    api.put(pool())
    first = api.put(pod("a"))["metadata"]["uid"]
    async with discovering(api, tmp_path) as (discovery, fleet):
        await fleet.until(lambda: discovery.ready)
        api.delete("Pod", "a")
        second = api.put(pod("a"))["metadata"]["uid"]
        await fleet.until(
            lambda: {each.uid for each in fleet.endpoints.values()} == {second} != {first}
        )


@pytest.mark.parametrize("selector", [{"app": "vllm"}, "app in (vllm,sglang),!canary"])
async def test_a_selector_stands_for_a_pool(selector, api, tmp_path):
    api.uninstall("inferencepools.inference.networking.k8s.io")
    api.put(pod("a"))
    settings = {"selector": selector, "ports": (8000, 8001)}
    async with discovering(api, tmp_path, **settings) as (discovery, fleet):
        await fleet.until(lambda: discovery.ready)
        assert fleet.targets == ["10.0.0.1:8000", "10.0.0.1:8001"]
        assert "inferencepools" not in {ask.resource for ask in api.requests}


async def test_objectives_and_rewrites_of_both_groups_take_effect_at_once(api, tmp_path):
    api.put(pool())
    api.put(objective("urgent", 5))
    async with discovering(api, tmp_path) as (discovery, fleet):
        await fleet.until(lambda: discovery.ready)
        assert discovery.routing.priorities == {"urgent": 5}
        assert not discovery.routing.exact
        api.put(objective("batch", -1, group=LEGACY))
        api.put(rewrite("r", (["m"], {"n": 1}), group=LEGACY))
        await routed(discovery, lambda routing: routing.exact and len(routing.priorities) == 2)
        assert discovery.routing.priorities == {"urgent": 5, "batch": -1}
        api.delete("InferenceModelRewrite", "r", group=LEGACY)
        api.put(objective("urgent", 6))
        await routed(discovery, lambda routing: not routing.exact)
        await routed(discovery, lambda routing: routing.priorities["urgent"] == 6)


async def test_objectives_of_v1_follow_the_labels_of_the_pool(api, tmp_path):
    api.put(pool())
    api.put(objective_v1("named", 3, poolRefs=[{"name": "other"}, {"name": "pool"}]))
    api.put(objective_v1("gold", 9, poolSelector={"matchLabels": {"tier": "gold"}}))
    api.put(objective("older", 1))
    async with discovering(api, tmp_path) as (discovery, fleet):
        await fleet.until(lambda: discovery.ready)
        assert discovery.routing.priorities == {"named": 3, "older": 1}
        labelled = pool()
        labelled["metadata"]["labels"] = {"tier": "gold"}
        api.put(labelled)
        await routed(discovery, lambda routing: routing.priorities.get("gold") == 9)
        api.delete("InferencePool", "pool", group=GATEWAY_GROUP)
        await routed(discovery, lambda routing: "gold" not in routing.priorities)


async def test_where_only_v1alpha2_is_served_it_is_enough(api, tmp_path):
    api.put(pool())
    api.put(objective("urgent", 5))
    served = {"spec": {"versions": [OBJECTIVES[1]]}}
    api.patch("CustomResourceDefinition", "inferenceobjectives.llm-d.ai", served)
    async with discovering(api, tmp_path) as (discovery, fleet):
        await fleet.until(lambda: discovery.ready)
        assert discovery.routing.priorities == {"urgent": 5}


async def test_a_pool_of_v1alpha2(api, tmp_path):
    api.put(legacy_pool(port=9000))
    api.put(pod("a", "10.0.0.1"))
    api.put(objective("theirs", 1))
    api.put(objective("ours", 2, ref={"group": LEGACY}))
    async with discovering(api, tmp_path, pool_group=LEGACY) as (discovery, fleet):
        await fleet.until(lambda: discovery.ready)
        assert fleet.targets == ["10.0.0.1:9000"]
        assert discovery.routing.priorities == {"ours": 2}
        api.put(legacy_pool(port=9001))
        await fleet.until(lambda: fleet.targets == ["10.0.0.1:9001"])


async def routed(discovery, condition):
    await until(lambda: condition(discovery.routing))


async def test_kinds_that_are_not_installed_are_logged_once(api, tmp_path):
    for path in CRDS:
        if "inferencepools" not in path.name:
            api.uninstall(path.stem)
    api.put(pool())
    with capture_logs() as logs:
        async with discovering(api, tmp_path) as (discovery, fleet):
            await fleet.until(lambda: discovery.ready)
            asked = ("list", "inferenceobjectives")
            for after in range(0, 60, 20):
                await api.asked(lambda ask: (ask.verb, ask.resource) == asked, after=after)
    absent = [each["resource"] for each in logs if each["event"] == "kube.not_installed"]
    assert sorted(absent) == sorted(
        [
            "inferenceobjectives.v1.llm-d.ai",
            *(
                f"{plural}.v1alpha2.{group}"
                for plural in ("inferenceobjectives", "inferencemodelrewrites")
                for group in ("llm-d.ai", LEGACY)
            ),
        ]
    )


async def test_unusable_objects_are_logged_once(api, tmp_path):
    api.put(pool())
    api.put(pod("a", ports="8000, eight"))
    api.put(objective("theirs", 1, ref={"name": "other"}))
    with capture_logs() as logs:
        async with discovering(api, tmp_path) as (discovery, fleet):
            await fleet.until(lambda: discovery.ready)
            await watched(api)
            before = len(api.requests)
            api.compact()
            api.drop_watches()
            await watched(api, after=before)
            api.put(pod("b", "10.0.0.2"))
            await fleet.until(lambda: len(fleet.targets) == 2)
    noted = [each for each in logs if each["event"].partition(".")[0] in {"pod", "object"}]
    assert {(each["event"], each["object"]) for each in noted} == {
        ("pod.active_ports_malformed", "pod/a"),
        ("object.foreign_pool", "inferenceobjective.llm-d.ai/theirs"),
    }
    assert len(noted) == 2


async def test_a_thousand_pods_let_other_tasks_run(api, tmp_path):
    """Counted, not timed: what runs beside gets a turn for every few endpoints."""
    api.put(pool())
    for number in range(1000):
        api.put(pod(f"p{number}", f"10.1.{number // 250}.{number % 250}"))
    loop = asyncio.get_running_loop()
    turns = []

    def turn(fleet):
        turns.append(len(fleet.endpoints))
        if len(fleet.endpoints) < 1000:
            loop.call_soon(turn, fleet)

    settings = msgspec.structs.replace(QUICK, page_size=100)
    async with discovering(api, tmp_path, reflector=settings) as (discovery, fleet):
        turn(fleet)
        await fleet.until(lambda: discovery.ready)
    assert len(fleet.endpoints) == 1000
    most = max(after - before for before, after in itertools.pairwise(turns))
    assert most <= 32


async def test_endpoints_stay_while_the_api_server_is_away(api, tmp_path):
    api.put(pool())
    api.put(pod("a"))
    async with discovering(api, tmp_path) as (discovery, fleet):
        await fleet.until(lambda: discovery.ready)
        await api.down()
        api.delete("Pod", "a")
        api.put(pod("b", "10.0.0.2"))
        assert (discovery.ready, fleet.targets) == (True, ["10.0.0.1:8000"])
        api.compact()
        await api.up()
        await fleet.until(lambda: fleet.targets == ["10.0.0.2:8000"])
        assert fleet.ready == [True]


async def test_a_kind_that_the_api_fails_to_give_does_not_keep_the_pool(api, tmp_path):
    api.put(pool())
    api.put(pod("a"))
    broken = faults.internal("conversion webhook for InferenceObjective failed")
    api.fail(broken, resource="inferenceobjectives", times=None)
    async with discovering(api, tmp_path) as (discovery, fleet):
        await fleet.until(lambda: discovery.ready)


async def test_of_two_replicas_one_is_ready_and_the_other_stands_by_warm(api, tmp_path):
    api.put(pool())
    api.put(pod("a"))
    quick = {
        "elect": True,
        "election": LeaderElectionConfig(
            identity="", lease_duration=5, retry_period=0.05, notice_period=0.01
        ),
    }
    async with discovering(api, tmp_path, **quick) as (one, fleet):
        await fleet.until(lambda: one.ready)
        async with discovering(api, tmp_path, **quick) as (two, standby):
            await standby.until(lambda: standby.listed)
            assert (one.ready, two.ready) == (True, False)
            await one.lease.release()
            assert one.ready  # one of them always is
            await standby.until(lambda: two.ready)
            assert standby.targets == fleet.targets == ["10.0.0.1:8000"]
            assert one.ready
            await one.lease.handed_over()
            assert not one.ready
    spec = api.get("Lease", "epp-default-pool.llm-d.ai")["spec"]
    assert spec["leaseTransitions"] == 1


async def test_a_replica_that_could_not_serve_does_not_lead(api, tmp_path):
    """It would keep the lease from one that could."""
    api.put(pool())
    api.put(pod("a"))
    api.fail(faults.internal(), resource="pods", times=None)
    quick = LeaderElectionConfig(identity="", lease_duration=60, retry_period=0.05)
    async with discovering(api, tmp_path, elect=True, election=quick) as (one, fleet):
        for _ in range(3):
            await api.asked(lambda ask: ask.resource == "pods", after=len(api.requests))
        assert [ask for ask in api.requests if ask.resource == "leases"] == []
        api.mend()
        await fleet.until(lambda: one.ready)


async def test_a_leader_stays_ready_while_the_api_server_is_away(api, tmp_path):
    api.put(pool())
    api.put(pod("a"))
    quick = LeaderElectionConfig(identity="", lease_duration=1, retry_period=0.05)
    async with discovering(api, tmp_path, elect=True, election=quick) as (one, fleet):
        await fleet.until(lambda: one.ready)
        for kind in ("pods", "leases"):
            api.fail(faults.dropped(), resource=kind, times=None)
        numbers = iter(range(25))  # of attempts: longer than the lease lasts

        def often(ask):
            return ask.resource == "leases" and next(numbers, 25) >= 24

        await api.asked(often, after=len(api.requests))
        assert one.ready
        api.mend()
        api.put(pod("b", "10.0.0.2"))
        await fleet.until(lambda: len(fleet.targets) == 2)
        assert one.ready


async def test_without_access_to_an_api_server_nothing_starts():
    settings = KubeSettings(
        namespace="default", pool="pool", access=KubeAccess(kubeconfig="/nowhere", environ={})
    )
    with pytest.raises(ConfigError, match="there is no kubeconfig at /nowhere"):
        await KubeDiscovery(settings, print, print).load()


async def test_an_event_that_cannot_be_applied_costs_its_endpoint(api, tmp_path):
    api.put(pool())
    api.put(pod("a", "10.0.0.1"))
    fleet = StandInFleet()

    def apply(event):
        if isinstance(event, EndpointUpserted) and event.endpoint.name.startswith("bad"):
            raise ValueError("bad")
        fleet.apply(event)

    access = KubeAccess(kubeconfig=str(api.kubeconfig(tmp_path / "kubeconfig")), environ={})
    settings = KubeSettings(namespace="default", pool="pool", reflector=QUICK, access=access)
    made = KubeDiscovery(settings, apply, fleet)
    await made.load()
    with capture_logs() as logs:
        async with running(made.run()):
            await fleet.until(lambda: len(fleet.targets) == 1)
            for number in range(3):
                api.put(pod(f"bad{number}", f"10.0.0.2{number}"))
            api.put(pod("c", "10.0.0.3"))
            await fleet.until(lambda: len(fleet.targets) == 2)
            assert made.ready
    failed = [line for line in logs if line["event"] == "endpoint.event_failed"]
    assert [(line["kind"], line["count"]) for line in failed] == [
        ("EndpointUpserted", 1),
        ("EndpointUpserted", 2),
    ]


async def test_a_discovery_that_has_ended_goes_on_where_it_is_run_again(api, tmp_path):
    api.put(pool())
    api.put(pod("a", "10.0.0.1"))
    async with discovering(api, tmp_path) as (made, fleet):
        await fleet.until(lambda: len(fleet.targets) == 1)
    api.put(pod("c", "10.0.0.3"))
    async with running(made.run()):
        await fleet.until(lambda: len(fleet.targets) == 2)
