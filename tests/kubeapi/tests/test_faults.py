"""The faults and the handles that tests hold; a real cluster has none of them on demand."""

import asyncio
import base64
import ssl

import aiohttp
import pytest

from tests.kubeapi import FakeKubernetes, faults
from tests.kubeapi.answers import Answer
from tests.kubeapi.status import ApiError
from tests.kubeapi.tests.cluster import CRDS, Cluster, config_map, opened, pod, pool

pytestmark = pytest.mark.usefixtures("fake")

ANSWERED = {
    "429": (faults.too_many(7), 429, "Too many requests, please try again later.\n", "7"),
    "500": (faults.internal("etcd"), 500, "Internal error occurred: etcd", None),
    "502": (faults.bad_gateway(), 502, "<html>502 Bad Gateway</html>\n", None),
    "503": (faults.unavailable(), 503, "currently unable to handle the request", None),
    "410": (faults.gone(), 410, "too old resource version", None),
    "other": (faults.answering(Answer(code=418, body=b"tea")), 418, "tea", None),
}


@pytest.mark.parametrize("case", ANSWERED.values(), ids=ANSWERED)
async def test_a_fault_falls_on_one_request_and_then_no_more(cluster: Cluster, fake, case):
    effect, code, said, after = case
    fake.fail(effect, verb="list", resource="pods")
    assert (await cluster.get("configmaps")).code == 200
    assert (await cluster.get("pods", "a")).code == 404
    reply = await cluster.get("pods")
    assert reply.code == code
    assert said in reply.text
    assert reply.headers.get("Retry-After") == after
    assert (await cluster.get("pods")).code == 200


async def test_a_connection_that_is_reset_instead_of_an_answer(cluster: Cluster, fake):
    fake.fail(faults.dropped(), times=2)  # aiohttp itself asks again once
    with pytest.raises(aiohttp.ClientConnectionError):
        await cluster.get("pods")


async def test_a_request_is_held_until_it_is_let_go(cluster: Cluster, fake):
    gate = asyncio.Event()
    fake.fail(faults.held_until(gate), verb="create")
    waiting = asyncio.create_task(cluster.create("configmaps", config_map()))
    await fake.asked(lambda ask: ask.verb == "create" and ask.resource == "configmaps")
    assert (await cluster.get("configmaps", "a")).code == 404
    gate.set()
    assert (await waiting).code == 201


async def test_no_answer_at_all(cluster: Cluster, fake):
    fake.fail(faults.hanging())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await cluster.get("pods")


async def test_watches_are_reset(cluster: Cluster, fake):
    async with cluster.watch("pods") as pods, cluster.watch("configmaps") as maps:
        fake.drop_watches("pods")
        with pytest.raises(aiohttp.ClientPayloadError):
            await pods.rest()
        await cluster.made("configmaps", config_map("zz"))
        event = await maps.next()
        assert event is not None


async def test_half_a_line_and_then_the_end(cluster: Cluster, fake):
    async with cluster.watch("pods") as events:
        (stream,) = fake.watches
        stream.say(b'{"type":"ADDED","obj')
        stream.finish()
        assert await events.response.content.read() == b'{"type":"ADDED","obj'


async def test_a_bookmark_on_demand(cluster: Cluster, fake):
    query = {"allowWatchBookmarks": "true", "resourceVersion": str(fake.store.revision)}
    async with cluster.watch("pods", **query) as events:
        await cluster.made("configmaps", config_map())
        fake.bookmark("pods")
        event = await events.next()
    assert event is not None
    assert event["type"] == "BOOKMARK"
    assert event["object"]["metadata"]["resourceVersion"] == str(fake.store.revision)


async def test_nothing_comes_while_it_is_frozen(cluster: Cluster, fake):
    async with cluster.watch("pods") as events:
        fake.freeze()
        fake.put(pod() | {"metadata": {"name": "a", "namespace": cluster.namespace}})
        waiting = asyncio.create_task(cluster.get("pods"))
        await fake.asked(lambda ask: ask.verb == "list" and ask.resource == "pods")
        told = asyncio.create_task(events.told(1))
        done, _ = await asyncio.wait([waiting, told], timeout=0.05)
        assert not done
        fake.thaw()
        assert (await waiting).code == 200
        assert await told == [("ADDED", "a")]


async def test_a_restart_keeps_the_objects_and_forgets_history(cluster: Cluster, fake):
    made = await cluster.made("inferencepools", pool())
    await cluster.made("inferencepools", pool("b"))
    at = made["metadata"]["resourceVersion"]
    async with cluster.watch("inferencepools", resourceVersion=at) as events:
        assert await events.told(1) == [("ADDED", "b")]
        await fake.restart()
        with pytest.raises(aiohttp.ClientError):
            await events.rest()
    assert (await cluster.get("inferencepools", "a")).json == made
    async with cluster.watch("inferencepools", resourceVersion=at) as events:
        assert [each["type"] for each in await events.rest()] == ["ERROR"]


async def test_a_restart_may_keep_history(cluster: Cluster, fake):
    at = str(fake.store.revision)
    await cluster.made("inferencepools", pool())
    await fake.restart(keep_history=True)
    async with cluster.watch("inferencepools", resourceVersion=at) as events:
        assert await events.told(1) == [("ADDED", "a")]


async def test_requests_are_kept_as_they_were_understood(cluster: Cluster, fake):
    before = len(fake.requests)
    await cluster.get("inferencepools", limit="3")
    (ask,) = fake.requests[before:]
    assert (ask.verb, ask.group, ask.version, ask.resource) == (
        "list",
        "inference.networking.k8s.io",
        "v1",
        "inferencepools",
    )
    assert (ask.namespace, ask.user, ask.query) == (cluster.namespace, "admin", {"limit": "3"})


async def test_what_is_put_is_held_to_the_schema(fake):
    with pytest.raises(ApiError, match=r"spec\.targetPorts"):
        fake.put(pool(targetPorts=[]))


async def test_patch_changes_status_too(fake):
    fake.put(pod())
    patched = fake.patch("Pod", "a", {"status": {"podIP": "10.1.2.3"}, "spec": {"nodeName": "n"}})
    assert (patched["status"]["podIP"], patched["spec"]["nodeName"]) == ("10.1.2.3", "n")


async def test_over_tls_by_token_and_by_certificate(tmp_path):
    async with FakeKubernetes(crds=CRDS, tls=True) as api:
        async with opened(api, tmp_path) as cluster:
            assert api.url.startswith("https://")
            assert (await cluster.get("pods")).json["items"] == []
        assert api.authority is not None
        issued = api.authority.issue("bob", ("system:masters",))
        user = {
            "client-certificate-data": base64.b64encode(issued.certificate).decode(),
            "client-key-data": base64.b64encode(issued.key).decode(),
        }
        path = api.kubeconfig(tmp_path / "bob", user=user)
        assert path.stat().st_size > 0
        (tmp_path / "pair.pem").write_bytes(issued.certificate + issued.key)
        context = ssl.create_default_context(cadata=api.authority.certificate.decode())
        context.load_cert_chain(tmp_path / "pair.pem")
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(connector=connector) as session:
            assert (await session.get(f"{api.url}/api/v1/pods")).status == 200
        assert api.requests[-1].user == "bob"


async def test_what_a_pod_finds_of_its_cluster(tmp_path):
    async with FakeKubernetes(tls=True) as api:
        assert api.authority is not None
        found = api.in_cluster(tmp_path, api.token("epp"), "serving")
        assert found["KUBERNETES_SERVICE_PORT"] == api.url.rpartition(":")[2]
        assert (tmp_path / "namespace").read_text() == "serving"
        assert (tmp_path / "token").read_text() in api.access.tokens
        assert (tmp_path / "ca.crt").read_bytes() == api.authority.certificate
