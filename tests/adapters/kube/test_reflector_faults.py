"""A reflector's objects are those of the API server, whatever faults that has."""

import asyncio
import itertools
import random
import time

import msgspec
import pytest

from epp.adapters.kube import api_connection
from epp.adapters.kube import reflector as reflector_module
from epp.adapters.kube.reflector import Backoff, Reflector, Sink
from epp.protocol.kube.resources import Selection, pods, pools
from epp.protocol.kube.watch import ApiRefused, read_status
from tests.adapters.kube.rig import QUICK, Seen, connected, following, pod, watched
from tests.kubeapi import faults
from tests.kubeapi.answers import Answer
from tests.kubeapi.status import GroupResource, PlainTextError
from tests.tasks import running


def events(logs, *names):
    return [each for each in logs if each["event"] in names]


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


async def test_a_version_that_is_too_old_is_listed_anew(api, connection, logs):
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
    assert not events(logs, "kube.refused")  # it is no failure


async def test_a_list_whose_continuation_is_refused_is_begun_anew(api, connection):
    for number in range(7):
        api.put(pod(f"p{number}"))
    continued = []

    async def refuse_the_first(ask):
        continued.append("continue" in ask.query)
        if continued == [False, True]:
            raise PlainTextError(400, "the continue parameter is not valid")

    api.fail(refuse_the_first, verb="list", resource="pods", times=None)
    async with following(connection) as seen:
        await seen.until(lambda: seen.lists)
    assert continued == [False, True, False, True, True]


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
    (line,) = events(logs, "kube.object_left_out")[:1]
    assert line["why"] == "Expected `str`, got `int` - at `$.object.metadata.name`"


async def test_objects_that_cannot_be_read_are_named_now_and_then_and_counted(
    api, connection, logs
):
    async with following(connection) as seen:
        await watched(api)
        (stream,) = api.watches
        for number in range(9):
            named = b'{"name":"bad%d","labels":7}' % number
            stream.say(b'{"type":"ADDED","object":{"metadata":%s}}\n' % named)
        api.put(pod("a"))
        await seen.until(lambda: "a" in seen.names)
    said = [(line["object"], line["count"]) for line in events(logs, "kube.object_left_out")]
    assert said == [("bad0", 1), ("bad1", 2), ("bad3", 4), ("bad7", 8)]


async def test_an_object_that_becomes_unreadable_is_dropped(api, connection):
    api.put(pod("a"))
    async with following(connection) as seen:
        await seen.until(lambda: "a" in seen.names)
        await watched(api)
        (stream,) = api.watches
        stream.say(b'{"type":"MODIFIED","object":{"metadata":{"name":"a","labels":7}}}\n')
        await seen.until(lambda: not seen.names)


async def test_an_object_that_the_sink_cannot_take_costs_itself_alone(api, connection, logs):
    for name in "abc":
        api.put(pod(name))

    def upsert(objects):
        if any(each.metadata.name == "b" for each in objects):
            raise KeyError("b")
        seen.sink.upsert(objects)

    seen = Seen()
    sink = Sink(upsert=upsert, remove=seen.sink.remove, retain=seen.sink.retain)
    reflector = Reflector(connection, pods("default"), Selection(), sink, QUICK)
    async with running(reflector.run()):
        await seen.until(lambda: seen.lists)
        await watched(api)
        api.put(pod("d"))
        await seen.until(lambda: "d" in seen.names)
    assert seen.names == set("acd")
    (line,) = events(logs, "kube.object_left_out")
    assert (line["object"], line["why"]) == ("b", "KeyError('b')")


async def test_watches_that_end_as_soon_as_they_begin_are_a_failure(api, connection, logs):
    api.fail(faults.answering(Answer()), verb="watch", resource="pods", times=3)
    async with following(connection) as seen:
        await seen.until(lambda: seen.lists)
        api.put(pod("a"))
        await seen.until(lambda: "a" in seen.names)
    (said,) = events(logs, "kube.disconnected")
    assert "the watch ended as soon as it began" in said["error"]


@pytest.mark.parametrize("weather", ["500", "502", "no JSON"])
async def test_a_watch_that_fails_after_every_list_is_logged_once(weather, api, connection, logs):
    api.fail(WEATHER[weather], verb="watch", resource="pods", times=5)
    async with following(connection) as seen:
        await seen.until(lambda: seen.lists == 6)
        api.put(pod("a"))
        await seen.until(lambda: "a" in seen.names)
    said, recovered = (each["event"] for each in logs)
    assert (said in {"kube.refused", "kube.disconnected"}, recovered) == (True, "kube.recovered")


async def test_versions_that_are_always_too_old_are_asked_for_ever_more_rarely(api, connection):
    api.fail(faults.gone(), verb="watch", resource="pods", times=None)
    settings = msgspec.structs.replace(QUICK, min_backoff=0.02, max_backoff=10.0)
    began = time.monotonic()
    async with following(connection, settings=settings) as seen:
        await seen.until(lambda: seen.lists == 8)
    assert time.monotonic() - began >= 0.02 * (2**7 - 1) / 2


async def test_a_list_without_end_is_broken_off(api, connection, logs, monkeypatch):
    monkeypatch.setattr(reflector_module, "_MAX_PAGES", 5)
    page = b'{"metadata":{"resourceVersion":"1","continue":"more"},"items":[]}'
    api.fail(faults.answering(Answer(body=page)), verb="list", resource="pods", times=5)
    api.put(pod("a"))
    async with following(connection) as seen:
        await seen.until(lambda: seen.lists)
    assert [line["error"] for line in events(logs, "kube.disconnected")] == [
        "a list of more than 5 pages"
    ]


@pytest.mark.parametrize("code", [200, 500])
async def test_a_response_without_end_is_broken_off(api, connection, logs, monkeypatch, code):
    for bound in ("_MAX_BYTES", "_MAX_STATUS_BYTES"):
        monkeypatch.setattr(api_connection, bound, 100_000)
    large = Answer(code=code, body=b" " * 200_000)
    api.fail(faults.answering(large), verb="list", resource="pods")
    async with following(connection) as seen:
        await seen.until(lambda: seen.lists)
    assert [line["error"] for line in events(logs, "kube.disconnected")] == [
        "a response of more than 100000 bytes"
    ]


def test_retry_after_is_bounded():
    assert ApiRefused(read_status(429, b"", "9" * 5000)).retry_after == 300
    assert ApiRefused(read_status(429, b'{"details":{"retryAfterSeconds":-5}}')).retry_after == 0


async def test_retry_after_is_kept_to(api, connection):
    api.fail(faults.too_many(retry_after=1), verb="list", resource="pods")
    began = time.monotonic()
    async with following(connection) as seen:
        await seen.until(lambda: seen.lists)
    assert time.monotonic() - began >= 1


@pytest.mark.parametrize("effect", [faults.too_many(retry_after=0), faults.dropped()])
async def test_a_list_goes_on_with_the_page_that_an_api_server_under_strain_refused(
    effect, api, connection
):
    names = {f"pod-{number:02}" for number in range(12)}
    for name in names:
        api.put(pod(name))
    asked = itertools.count(1)

    async def every_third(ask):
        return await effect(ask) if next(asked) % 3 == 0 else None

    api.fail(every_third, verb="list", resource="pods", times=None)
    async with following(connection) as seen:
        await seen.until(lambda: seen.lists == 1)
        assert seen.names == names
        await watched(api)
    listed = [each for each in api.requests if (each.verb, each.resource) == ("list", "pods")]
    assert len(listed) == 5


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


async def test_credentials_that_cannot_be_read_again_are_reported_once(api, tmp_path, logs):
    token = api.token("epp", [RULE])
    async with connected(api, tmp_path, token=token) as connection, following(connection) as seen:
        await watched(api)
        api.revoke(token)
        (tmp_path / "kubeconfig").write_text("[")
        before = len(api.requests)
        api.drop_watches()
        await watched(api, after=before + 10)
        api.kubeconfig(tmp_path / "kubeconfig", user={"token": api.token("epp", [RULE])})
        api.put(pod("a"))
        await seen.until(lambda: "a" in seen.names)
    about = ["kube.credentials_unreadable", "kube.credentials_renewed"]
    assert [each["event"] for each in events(logs, *about)] == about


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
