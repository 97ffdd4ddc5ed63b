"""The chart's roles and the picker against a Kubernetes API: what is granted is what is asked."""

import contextlib

import msgspec
import pytest
import structlog

from epp.adapters.kube.kube_discovery import KubeDiscovery
from epp.adapters.kube.kube_settings import KubeAccess, KubeSettings
from epp.cli.pool_flags import pool_of
from epp.protocol.kube.election import LeaderElectionConfig
from tests.adapters.kube.rig import CRDS, QUICK, pod
from tests.charts import router_values as r
from tests.charts import values as v
from tests.charts.helm import objects
from tests.charts.picker import arguments
from tests.kubeapi import FakeKubernetes
from tests.tasks import Changed, running

SHORT = LeaderElectionConfig(identity="", lease_duration=9, retry_period=0.5)


@contextlib.asynccontextmanager
async def kubernetes(things):
    """An API with what the chart renders of what the picker reads, and a model server."""
    async with FakeKubernetes(crds=CRDS) as api:
        api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "inf"}})
        for thing in things:
            if thing["kind"] in {"InferencePool", "InferenceObjective"}:
                api.put(thing)
        api.put(pod("a", labels={"app": "vllm", "tier": "gpu"}, namespace="inf"))
        yield api


def role(things):
    """The rules of the picker's Roles, together."""
    return [rule for thing in things if thing["kind"] == "Role" for rule in thing["rules"]]


def settings_of(things, api, path, rules):
    """What the rendered flags mean to the picker, with the rights of `rules` alone."""
    environ = {"NAMESPACE": "inf", "POD_NAME": "rel-epp-6d5f-x2x"}
    source = pool_of(arguments(things), "", environ).source
    assert isinstance(source, KubeSettings)
    token = api.token("epp", rules=rules, namespace="inf")
    access = KubeAccess(kubeconfig=str(api.kubeconfig(path, user={"token": token})), environ={})
    return msgspec.structs.replace(source, access=access, reflector=QUICK, election=SHORT)


class Told(Changed):
    def __init__(self):
        super().__init__()
        self.events = []

    def apply(self, event):
        self.events.append(event)
        self()


class Missed(Changed):
    """The rules that the log says are missing."""

    def __init__(self):
        super().__init__()
        self.rules = []

    def __call__(self, _logger, _method, line):
        self.rules += [line["missing_rule"]] if "missing_rule" in line else []
        super().__call__()
        raise structlog.DropEvent


@contextlib.contextmanager
def listening():
    """Listen to the log instead of writing it."""
    processors = structlog.get_config()["processors"]
    kept, missed = processors.copy(), Missed()
    processors[:] = [missed]
    structlog.configure(processors=processors)
    try:
        yield missed
    finally:
        processors[:] = kept


def asked(api):
    return {(ask.verb, ask.group, ask.resource) for ask in api.requests if ask.user == "epp"}


def granted(rules):
    return {
        (verb, group, resource)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


CASES = {name: v.CASES[name] for name in ("objectives", "leader", "selector", "selector-leader")}
CASES |= {f"router-{name}": r.CASES[name] for name in ("leader", "objectives", "standalone")}
CASES["v1alpha2"] = v.merged(v.CASES["objectives"], v.OLD_POOL)


@contextlib.asynccontextmanager
async def picking(settings):
    """A picker at work, as far as it talks to Kubernetes."""
    told = Told()
    discovery = KubeDiscovery(settings, told.apply, told)
    await discovery.load()
    async with running(discovery.run()):
        yield discovery, told
        if discovery.lease is not None:
            await discovery.lease.release()


@pytest.mark.parametrize("name", CASES)
async def test_the_picker_asks_for_all_that_it_is_granted_and_for_nothing_else(name, tmp_path):
    things = objects("warmpick", CASES[name])
    async with kubernetes(things) as api:
        settings = settings_of(things, api, tmp_path / "kubeconfig", role(things))
        with listening() as missed:
            async with picking(settings) as (discovery, told):
                await told.until(lambda: discovery.ready)
                for one in granted(role(things)):
                    await api.asked(lambda ask, it=one: (ask.verb, ask.group, ask.resource) == it)
        assert asked(api) == granted(role(things))
    assert missed.rules == []


def without_one(rules):
    """Every way to leave out one rule."""
    return [(rule, [each for each in rules if each is not rule]) for rule in rules]


@pytest.mark.parametrize("name", CASES)
async def test_the_log_says_which_rule_is_missing(name, tmp_path):
    things = objects("warmpick", CASES[name])
    for rule, rest in without_one(role(things)):
        async with kubernetes(things) as api:
            settings = settings_of(things, api, tmp_path / "kubeconfig", rest)
            with listening() as missed:
                async with picking(settings):
                    await missed.until(lambda it=missed: it.rules)
        assert any(plural in each for each in missed.rules for plural in rule["resources"])


def llm_d_routers(*groups):
    """The rules of llm-d-router's own Roles, with the groups of objectives that they have."""
    verbs = ["get", "watch", "list"]
    kinds = ["inferenceobjectives", "inferencemodelrewrites"]
    pools = {"apiGroups": ["inference.networking.k8s.io"], "resources": ["inferencepools"]}
    objects_of = [{"apiGroups": [group], "resources": kinds, "verbs": verbs} for group in groups]
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": verbs}
    return [pods, *([pools | {"verbs": verbs}, *objects_of] if groups else [])]


@pytest.mark.parametrize(
    ("name", "groups", "missing"),
    [
        ("objectives", ("llm-d.ai", "inference.networking.x-k8s.io"), set()),
        ("objectives", ("llm-d.ai",), {"inference.networking.x-k8s.io"}),
        ("selector", (), {"llm-d.ai", "inference.networking.x-k8s.io"}),
    ],
)
async def test_the_rights_of_llm_d_routers_chart_are_enough(name, groups, missing, tmp_path):
    things = objects("warmpick", CASES[name])
    async with kubernetes(things) as api:
        rules = llm_d_routers(*groups)
        settings = settings_of(things, api, tmp_path / "kubeconfig", rules)
        with listening() as missed:
            async with picking(settings) as (discovery, told):
                await told.until(lambda: discovery.ready)
                assert [each.endpoint.target for each in told.events if hasattr(each, "endpoint")]
                priorities = {"high": 5, "batch": -1} if name == "objectives" else {}
                assert discovery.routing.priorities == priorities
        assert {rule.split('"')[1] for rule in missed.rules} == missing
