"""A reflector's objects are those of the API server, whatever faults that has."""

import asyncio
import random
import time

import msgspec
import pytest
from structlog.testing import capture_logs

from epp.adapters.kube.reflector import Backoff
from epp.protocol.kube.resources import pods, pools
from tests.adapters.kube.rig import QUICK, connected, following, pod, watched
from tests.kubeapi import faults
from tests.kubeapi.answers import Answer
from tests.kubeapi.status import GroupResource


def events(logs, *names):
    return [each for each in logs if each["event"] in names]


@pytest.fixture
async def logs():
    with capture_logs() as taken:
        yield taken


WEATHER = {
    "reset": faults.dropped(),
    "410": faults.gone(),
    "429": faults.too_many(retry_after=0),
    "500": faults.internal(),
    "502": faults.bad_gateway(),
    "503": faults.unavailable(),
    "no JSON": faults.answering(Answer(body=b"<html>hello</html>\n")),
    "half a line": faults.answering(Answer(body=b'{"type":"ADDED","object":{"metad')),
    "no list": faults.answering(Answer(body=b"[]\n")),
}


@pytest.mark.parametrize("verb", ["list", "watch"])
@pytest.mark.parametrize("effect", WEATHER.values(), ids=WEATHER)
async def test_temporary_failures_are_retried(verb, effect, api, connection):
    api.put(pod("a"))
    api.fail(effect, verb=verb, resource="pods", times=4)
    async with following(connection) as seen:
        await seen.until(lambda: "a" in seen.names)
        api.put(pod("b"))
        api.delete("Pod", "a")
        await seen.until(lambda: seen.names == {"b"})


async def test_after_a_restart_it_resumes_or_lists_again(api, connection):
    for name in "abc":
        api.put(pod(name))
    async with following(connection) as seen:
        await watched(api)
        await api.restart(keep_history=True)
        api.put(pod("d"))
        await seen.until(lambda: "d" in seen.names)
        assert seen.lists == 1
        await watched(api, after=len(api.requests) - 1)
        await api.down()
        api.delete("Pod", "b")
        api.put(pod("a", "10.0.0.9"))
        api.compact()
        await api.up()
        await seen.until(lambda: seen.names == {"a", "c", "d"})
    assert seen.removed == ["b"]
    assert seen.objects["a"].status.pod_ip == "10.0.0.9"


async def test_a_version_that_is_too_old_is_listed_anew(api, connection):
    async with following(connection) as seen:
        await watched(api)
        api.put(pod("a"))
        await seen.until(lambda: "a" in seen.names)
        api.freeze()
        api.drop_watches()
        api.delete("Pod", "a")
        api.put(pod("b"))
        api.compact()
        api.thaw()
        await seen.until(lambda: seen.names == {"b"})
    assert (seen.lists, seen.removed) == (2, ["a"])


async def test_a_silent_watch_is_resumed_on_another_connection(api, connection):
    settings = msgspec.structs.replace(QUICK, idle_timeout=0.1)
    async with following(connection, settings=settings) as seen:
        await watched(api)
        before = len(api.requests)
        await watched(api, after=before)
        api.put(pod("a"))
        await seen.until(lambda: "a" in seen.names)
    assert seen.lists == 1


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_a_server_that_hangs_is_given_up(verb, api, connection):
    api.put(pod("a"))
    settings = msgspec.structs.replace(QUICK, request_timeout=0.1)
    api.fail(faults.hanging(), verb=verb, resource="pods", times=2)
    async with following(connection, settings=settings) as seen:
        await seen.until(lambda: "a" in seen.names)
        api.put(pod("b"))
        await seen.until(lambda: "b" in seen.names)


async def test_a_slow_stream_is_put_together(api, connection):
    api.put(pod("a"))
    api.drip(97, 0.0005)
    async with following(connection) as seen:
        await seen.until(lambda: "a" in seen.names)
        await watched(api)
        api.put(pod("b"))
        await seen.until(lambda: "b" in seen.names)


async def test_half_a_line_at_the_end_is_no_event(api, connection):
    async with following(connection) as seen:
        await watched(api)
        (stream,) = api.watches
        stream.say(b'{"type":"ADDED","object":{"metadata":{"name":"ghost"')
        before = len(api.requests)
        api.finish_watches()
        await watched(api, after=before)
        api.put(pod("a"))
        await seen.until(lambda: "a" in seen.names)
    assert (seen.lists, seen.names) == (1, {"a"})


async def test_an_ill_typed_object_is_skipped_and_logged_once(api, connection, logs):
    async with following(connection) as seen:
        await watched(api)
        (stream,) = api.watches
        for _ in range(2):
            stream.say(b'{"type":"ADDED","object":{"metadata":{"name":7}}}\n')
        api.put(pod("a"))
        await seen.until(lambda: "a" in seen.names)
    assert len(events(logs, "kube.object_left_out")) == 1


async def test_retry_after_is_kept_to(api, connection):
    api.fail(faults.too_many(retry_after=1), verb="list", resource="pods")
    began = time.monotonic()
    async with following(connection) as seen:
        await seen.until(lambda: seen.lists)
    assert time.monotonic() - began >= 1


async def test_a_restart_is_not_logged_an_outage_is_once(api, connection, logs):
    async with following(connection) as seen:
        await watched(api)
        before = len(api.requests)
        api.drop_watches()
        await watched(api, after=before)
        api.put(pod("a"))
        await seen.until(lambda: "a" in seen.names)
        assert logs == []
        api.fail(faults.dropped(), times=5)
        api.drop_watches()
        api.put(pod("b"))
        await seen.until(lambda: "b" in seen.names)
    assert [each["event"] for each in logs] == ["kube.unreachable", "kube.reachable"]
    assert logs[0]["api"] == api.url


RULE = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_a_missing_rule_is_named_and_heals(verb, api, tmp_path, logs):
    verbs = [each for each in RULE["verbs"] if each != verb]
    token = api.token("epp", [{**RULE, "verbs": verbs}], namespace="default")
    async with connected(api, tmp_path, token=token) as connection, following(connection) as seen:
        forbidden = await api.asked(lambda ask: ask.verb == verb)
        await api.asked(lambda ask: ask.verb == verb, after=api.requests.index(forbidden) + 1)
        api.token("epp", [RULE], namespace="default")
        api.put(pod("a"))
        await seen.until(lambda: "a" in seen.names)
    (said,) = events(logs, "kube.forbidden")
    assert {key: said[key] for key in ("verb", "resource", "group", "namespace")} == {
        "verb": verb,
        "resource": "pods",
        "group": "",
        "namespace": "default",
    }
    assert said["missing_rule"] == ('{apiGroups: [""], resources: [pods], verbs: [list, watch]}')
    assert f'User "epp" cannot {verb} resource "pods"' in said["error"]


async def test_a_token_that_is_not_accepted_any_more_is_read_again(api, tmp_path, logs):
    token = api.token("epp", [RULE])
    async with connected(api, tmp_path, token=token) as connection, following(connection) as seen:
        await watched(api)
        api.revoke(token)
        api.kubeconfig(tmp_path / "kubeconfig", user={"token": api.token("epp", [RULE])})
        api.drop_watches()
        api.put(pod("a"))
        await seen.until(lambda: "a" in seen.names)
    assert len(events(logs, "kube.credentials_renewed")) == 1
    assert seen.lists == 1


async def test_many_refusals_renew_credentials_once(api, tmp_path, logs):
    rule = {**RULE, "apiGroups": ["*"], "resources": ["*"]}
    token = api.token("epp", [rule])
    async with connected(api, tmp_path, token=token) as connection:
        api.revoke(token)
        api.kubeconfig(tmp_path / "kubeconfig", user={"token": api.token("epp", [rule])})
        async with (
            following(connection) as one,
            following(connection, pools("default")) as two,
            following(connection, pods("kube-system")) as three,
        ):
            for seen in (one, two, three):
                await seen.until(lambda seen=seen: seen.lists)
    assert len(events(logs, "kube.credentials_renewed")) == 1


def test_delays_double_up_to_their_bound_and_start_over():
    backoff = Backoff(1.0, 5.0, chance=lambda: 0.0)
    assert [backoff.next() for _ in range(5)] == [1, 2, 4, 5, 5]
    backoff.reset()
    assert backoff.next() == 1
    assert Backoff(1.0, 5.0, chance=lambda: 1.0).next() == 0.5


PODS = GroupResource("", "pods")


def delete(api, name, _):
    if api.store.get(PODS, ("default", name)) is not None:
        api.delete("Pod", name)


def versions(seen):
    return {name: each.metadata.resource_version for name, each in seen.objects.items()}


STORM = [
    delete,
    lambda api, name, chance: api.put(pod(name, f"10.0.0.{chance.randrange(9)}")),
    lambda api, *_: api.compact(),
    lambda api, *_: api.drop_watches(),
    lambda api, *_: api.finish_watches(),
    lambda api, *_: api.bookmark(),
    lambda api, *_: api.fail(faults.internal()),
    lambda api, *_: api.fail(faults.dropped(), times=2),
]


@pytest.mark.parametrize("seed", range(6))
async def test_after_any_faults_the_sink_has_the_servers_objects(seed, api, connection):
    chance = random.Random(seed)  # noqa: S311 (weather, not secrets)
    async with following(connection) as seen:
        for step in range(60):
            chance.choice(STORM)(api, f"p{chance.randrange(6)}", chance)
            if step % 20 == 19:
                await api.restart(keep_history=chance.random() < 0.5)
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
        api.mend()
        api.put(pod("last"))
        there = {
            name: value["metadata"]["resourceVersion"]
            for (_, name), value in api.store.everything(PODS).items()
        }
        await seen.until(lambda: versions(seen) == there)
