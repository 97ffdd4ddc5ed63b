"""Envoy, `epp serve`, an API server and model servers: pods that come and go under traffic."""

import asyncio
import contextlib
import itertools
import signal
import sys

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from e2e.corridor import CHAT, DEADLINE, REASON, SERVER, Plan, chat
from e2e.kube_corridor import LABELS, kube_corridor
from e2e.serving import serving
from e2e.test_operations import SERVING, health
from tests.adapters.kube.rig import pod

PLAN = Plan(routing="original_dst", server_flags=("--speed", "4"))
WORKERS = 6


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory):
    """Picker and gateway; the pool is there, with pods `a` and `b` that stay."""
    async with kube_corridor(PLAN, tmp_path_factory.mktemp("kubernetes")) as made:
        made.put_pool()
        await made.start_pod("a")
        await made.start_pod("b")
        await made.start()
        yield made


class PrefixLookup(msgspec.Struct, frozen=True):
    """What became of a request, the `number`th: its status (0: broken off), and who answered."""

    number: int
    status: int
    server: str


class Traffic:
    """Clients that ask one after the other, streams and not, until told to stop.

    No question is asked twice: where an answer is known is not a reason to leave a new pod alone.
    """

    _questions = itertools.count()

    def __init__(self, gateway):
        self.answers = []
        self.begun = 0
        self._gateway = gateway
        self._more = True

    async def ask(self):
        number, self.begun = self.begun, self.begun + 1
        question = f"question {next(self._questions)} " * 20
        body = chat(question, stream=number % 2 == 0, max_tokens=24)
        status, server = 0, ""
        with contextlib.suppress(aiohttp.ClientError):
            async with self._gateway.stream(CHAT, body) as response:
                server = response.headers.get(SERVER, "")
                await response.read()
                status = response.status
        self.answers.append(PrefixLookup(number, status, server))

    async def _client(self):
        while self._more:
            await self.ask()

    async def count(self, more):
        """Wait until so many more were answered."""
        wanted = len(self.answers) + more
        async with asyncio.timeout(30):
            while len(self.answers) < wanted:
                await asyncio.sleep(0.01)

    async def hears(self, server):
        """Wait for a server's answer to what is asked from here on."""
        begun = self.begun
        async with asyncio.timeout(30):
            while server not in {each.server for each in self.answers if each.number >= begun}:
                await asyncio.sleep(0.01)

    async def settled(self):
        """Wait until all that were begun by now are answered; give how many those are."""
        begun = self.begun
        async with asyncio.timeout(30):
            while sum(each.number < begun for each in self.answers) < begun:
                await asyncio.sleep(0.01)
        return begun

    @contextlib.asynccontextmanager
    async def flowing(self):
        async with asyncio.TaskGroup() as tasks:
            for _ in range(WORKERS):
                tasks.create_task(self._client())
            try:
                yield
            finally:
                self._more = False

    def failed(self):
        return [each for each in self.answers if each.status != 200]


async def test_pods_come_and_go_under_traffic_and_no_request_fails(gateway):
    traffic = Traffic(gateway)
    async with traffic.flowing():
        await traffic.count(20)
        await gateway.start_pod("c")
        await gateway.endpoints_become(3)
        await traffic.hears("c")
        gateway.unready("c")
        await gateway.endpoints_become(2)
        noticed = await traffic.settled()
        await traffic.count(20)
        await gateway.kill_pod("c")
        await gateway.start_pod("d")
        await gateway.endpoints_become(3)
        await traffic.hears("d")
        gateway.unready("d")
        await gateway.endpoints_become(2)
        await traffic.settled()
        await traffic.count(20)
        await gateway.kill_pod("d")
    assert traffic.failed() == []
    assert "c" not in {each.server for each in traffic.answers if each.number >= noticed}


async def test_of_a_pod_that_is_killed_only_what_was_on_it_fails(gateway):
    await gateway.start_pod("e")
    await gateway.endpoints_become(3)
    traffic = Traffic(gateway)
    async with traffic.flowing():
        await traffic.count(20)
        gateway.unready("e")
        await gateway.endpoints_become(2)
        noticed = traffic.begun
        await gateway.kill_pod("e")
        await traffic.count(40)
    failed = traffic.failed()
    assert len(failed) <= WORKERS
    assert {each.server for each in failed} <= {"e", ""}
    assert [each for each in failed if each.number >= noticed] == []


async def test_a_server_that_dies_unannounced_is_left_alone_until_it_is_back(gateway):
    await gateway.start_pod("g")
    await gateway.endpoints_become(3)
    traffic = Traffic(gateway)
    async with traffic.flowing():
        await traffic.hears("g")
        gateway.kill_container("g")
        await gateway.endpoints_become(2)
        noticed = traffic.begun
        await traffic.count(60)
        await gateway.start_container("g")
        await gateway.endpoints_become(3)
        await traffic.hears("g")
    gateway.unready("g")
    await gateway.endpoints_become(2)
    assert {each.server for each in traffic.failed()} <= {"g", ""}
    assert [each for each in traffic.failed() if each.number >= noticed] == []


async def test_requests_go_on_while_the_api_server_is_away(gateway):
    traffic = Traffic(gateway)
    async with traffic.flowing():
        await traffic.count(10)
        await gateway.api.down()
        await traffic.count(30)
        gateway.api.compact()
        await gateway.api.up()
        await gateway.start_pod("f")
        await gateway.endpoints_become(3)
        await traffic.hears("f")
        gateway.unready("f")
        await gateway.endpoints_become(2)
    assert traffic.failed() == []


async def test_without_a_pool_it_is_not_ready_and_clients_get_a_503(gateway):
    await gateway.answers(gateway.operator_url("/readyz"), 200)
    gateway.api.delete("InferencePool", "pool", group="inference.networking.k8s.io")
    await gateway.answers(gateway.operator_url("/readyz"), 503)
    answer = await gateway.post(CHAT, chat("hello"))
    assert (answer.status, answer.headers[REASON]) == (503, "no-endpoints")
    gateway.put_pool()
    await gateway.answers(gateway.operator_url("/readyz"), 200)
    await gateway.endpoints_become(2)
    assert (await gateway.post(CHAT, chat("hello"))).status == 200


async def test_a_rewrite_takes_effect_without_a_restart(gateway):
    alias = {**chat("hello"), "model": "alias"}
    assert (await gateway.post(CHAT, alias)).status == 404
    rule = {
        "matches": [{"model": {"type": "Exact", "value": "alias"}}],
        "targets": [{"modelRewrite": "sim-model"}],
    }
    gateway.api.put(
        {
            "apiVersion": "llm-d.ai/v1alpha2",
            "kind": "InferenceModelRewrite",
            "metadata": {"name": "r"},
            "spec": {"poolRef": {"name": "pool"}, "rules": [rule]},
        }
    )

    async with asyncio.timeout(10):
        while (answer := await gateway.post(CHAT, alias)).status != 200:
            await asyncio.sleep(0.02)
    assert answer.json["model"] == "alias"
    gateway.api.delete("InferenceModelRewrite", "r", group="llm-d.ai")
    async with asyncio.timeout(10):
        while (await gateway.post(CHAT, alias)).status != 404:
            await asyncio.sleep(0.02)


async def test_it_is_ready_at_once_for_all_who_ask(tmp_path):
    async def late(_):
        await asyncio.Event().wait()

    async with (
        kube_corridor(PLAN, tmp_path) as gateway,
        serving(late, at=("127.0.1.1", gateway.pod_port)),
    ):
        await gateway.spawn_picker()
        await gateway.answers(gateway.operator_url("/readyz"), 503)
        gateway.api.put(pod("late", "127.0.1.1", labels=LABELS))
        gateway.put_pool()
        await gateway.answers(gateway.operator_url("/readyz"), 200)
        assert await health(gateway.health_port) == SERVING


async def test_one_replica_leads_and_another_follows_it(tmp_path):
    plan = msgspec.structs.replace(PLAN, picker_flags=("--ha-enable-leader-election",))
    async with kube_corridor(plan, tmp_path) as gateway:
        gateway.put_pool()
        await gateway.start_pod("a")
        await gateway.start()
        _, other = await gateway.second_picker("standby")
        await gateway.answers(f"{other}/healthz", 200)
        await gateway.answers(f"{other}/readyz", 503)
        await gateway.answers(gateway.operator_url("/readyz"), 200)
        gateway.signal(gateway.picker, signal.SIGTERM)
        # Where gateways are sent meanwhile: a Service without a ready pod goes on with this one.
        async with asyncio.timeout(DEADLINE):
            while await readiness(gateway, f"{other}/readyz") != 200:
                assert await readiness(gateway, gateway.operator_url("/readyz")) == 200
                assert (await gateway.post(CHAT, chat("hello"))).status == 200
        assert await gateway.picker.wait_exit(DEADLINE) == 0


async def test_a_leader_without_a_standby_says_that_it_goes_and_serves_on(tmp_path):
    flags = ("--ha-enable-leader-election", "--drain-timeout=4s")
    plan = msgspec.structs.replace(PLAN, picker_flags=flags)
    async with kube_corridor(plan, tmp_path) as gateway:
        gateway.put_pool()
        await gateway.start_pod("a")
        await gateway.start()
        await gateway.answers(gateway.operator_url("/readyz"), 200)
        gateway.signal(gateway.picker, signal.SIGTERM)
        async with asyncio.timeout(DEADLINE):
            while await readiness(gateway, gateway.operator_url("/readyz")) == 200:
                assert (await gateway.post(CHAT, chat("hello"))).status == 200
        assert (await gateway.post(CHAT, chat("hello"))).status == 200
        assert await gateway.picker.wait_exit(DEADLINE) == 0


async def readiness(gateway, url):
    async with gateway.client.get(url) as response:
        return response.status


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--pool-name=pool", "--kubeconfig=/nowhere"), "there is no kubeconfig at /nowhere"),
        (("--pool-name=pool", "--pool-group=example.com"), "--pool-group: no InferencePools"),
    ],
)
async def test_without_a_way_to_its_pool_it_does_not_start(flags, said):
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epp", "serve", *flags), stderr=asyncio.subprocess.PIPE
    )
    _, errors = await asyncio.wait_for(child.communicate(), 30)
    assert child.returncode == 2
    assert said in errors.decode()
