"""A reflector against an API server over HTTP, without faults."""

import msgspec
import pytest

from epp.protocol.kube.resources import Selection, pools
from tests.adapters.kube.rig import POOLS, QUICK, following, pod, watched
from tests.kubeapi import faults
from tests.kubeapi.answers import Answer
from tests.kubeapi.status import GroupResource, not_found
from tests.protocol.kube.objects import pool

LABELS = {"app": "vllm"}


def asks(api, verb, resource="pods"):
    return [ask for ask in api.requests if (ask.verb, ask.resource) == (verb, resource)]


async def test_everything_is_listed_page_by_page_and_then_watched(api, connection):
    for number in range(7):
        api.put(pod(f"p{number}"))
    async with following(connection) as seen:
        await seen.until(lambda: seen.lists)
        assert seen.names == {f"p{number}" for number in range(7)}
        assert [ask.query.get("limit") for ask in asks(api, "list")] == ["3", "3", "3"]
        watch = await watched(api)
        assert watch.query["allowWatchBookmarks"] == "true"
        assert 240 <= int(watch.query["timeoutSeconds"]) <= 480
        api.put(pod("new"))
        await seen.until(lambda: "new" in seen.names)
        api.delete("Pod", "p0")
        await seen.until(lambda: "p0" not in seen.names)
    assert (seen.lists, seen.removed) == (1, ["p0"])


async def test_only_selected_objects_are_passed_on(api, connection):
    api.put(pod("in"))
    api.put(pod("out", labels={"app": "other"}))
    async with following(connection, selection=Selection(labels=LABELS)) as seen:
        await seen.until(lambda: seen.lists)
        assert seen.names == {"in"}
        await watched(api)
        api.patch("Pod", "out", {"metadata": {"labels": LABELS}})
        await seen.until(lambda: seen.names == {"in", "out"})
        api.patch("Pod", "in", {"metadata": {"labels": {"app": "other"}}})
        await seen.until(lambda: seen.names == {"out"})


async def test_one_object_is_selected_by_its_name(api, connection):
    api.put(pool("other"))
    selection = Selection(name="pool")
    async with following(connection, pools("default"), selection) as seen:
        await seen.until(lambda: seen.lists)
        assert seen.names == set()
        api.put(pool("another"))
        api.put(pool())
        await seen.until(lambda: seen.names == {"pool"})
        assert seen.objects["pool"].spec.ports == (8000,)


async def test_a_watch_that_ends_resumes_at_its_version(api, connection):
    async with following(connection) as seen:
        first = await watched(api)
        api.put(pod("a"))
        await seen.until(lambda: "a" in seen.names)
        before = len(api.requests)
        api.finish_watches()
        again = await watched(api, after=before)
        assert int(again.query["resourceVersion"]) > int(first.query["resourceVersion"])
        api.put(pod("b"))
        await seen.until(lambda: "b" in seen.names)
    assert seen.lists == 1


async def test_bookmarks_move_the_version_on(api, connection):
    async with following(connection) as seen:
        first = await watched(api)
        api.put(pod("elsewhere") | {"kind": "ConfigMap"})
        before = len(api.requests)
        api.bookmark()
        api.finish_watches()
        again = await watched(api, after=before)
        assert int(again.query["resourceVersion"]) > int(first.query["resourceVersion"])
    assert (seen.lists, seen.names) == (1, set())


async def test_a_list_whose_continuation_expires_is_listed_in_one(api, connection):
    for number in range(7):
        api.put(pod(f"p{number}"))
    second = []

    async def expire(ask):
        if ask.query.get("continue"):
            second.append(ask)
            api.put(pod("later"))
            api.compact()

    api.fail(expire, verb="list", resource="pods", times=3)
    async with following(connection) as seen:
        await seen.until(lambda: seen.lists)
    assert len(second) == 1
    assert [ask.query.get("limit") for ask in asks(api, "list")] == ["3", "3", None]
    assert seen.names == {"later", *(f"p{number}" for number in range(7))}


async def test_many_events_in_one_chunk_are_passed_on_in_order(api, connection):
    async with following(connection) as seen:
        await watched(api)
        for number in range(400):
            api.put(pod(f"p{number % 10}", f"10.0.0.{number % 250}"))
        api.delete("Pod", "p9")
        await seen.until(lambda: seen.removed == ["p9"])
    assert {each.status.pod_ip for each in seen.objects.values()} == {
        f"10.0.0.{number % 250}" for number in range(390, 399)
    }


async def test_a_kind_that_is_installed_later_is_asked_for_until_then(api, connection):
    api.uninstall("inferencepools.inference.networking.k8s.io")
    async with following(connection, pools("default")) as seen:
        await seen.until(lambda: seen.lists)
        assert len(asks(api, "list", "inferencepools")) >= 2
        for path in POOLS:
            api.install(path)
        api.put(pool())
        await seen.until(lambda: "pool" in seen.names)


async def test_a_kind_that_is_uninstalled_has_no_objects(api, connection):
    api.put(pool())
    async with following(connection, pools("default")) as seen:
        await seen.until(lambda: "pool" in seen.names)
        api.uninstall("inferencepools.inference.networking.k8s.io")
        await seen.until(lambda: not seen.names)


@pytest.mark.parametrize(
    "between", [faults.unavailable(), faults.answering(Answer(body=b"[]"))], ids=["503", "no list"]
)
async def test_a_single_404_removes_nothing(between, api, connection):
    """Nor do two of them, if the API server that starts fails in another way in between."""
    api.put(pool())
    async with following(connection, pools("default")) as seen:
        await watched(api, "inferencepools")
        missing = faults.failing(not_found(GroupResource("", "inferencepools"), ""))
        before = len(api.requests)
        for fault in (missing, between, missing):
            api.fail(fault, resource="inferencepools")
        api.drop_watches()
        await watched(api, "inferencepools", after=before + 4)
        assert (seen.names, seen.removed) == ({"pool"}, [])


@pytest.mark.parametrize("number", [1, 7])
async def test_the_size_of_a_page_changes_nothing(number, api, connection):
    for each in range(7):
        api.put(pod(f"p{each}"))
    settings = msgspec.structs.replace(QUICK, page_size=number)
    async with following(connection, settings=settings) as seen:
        await seen.until(lambda: seen.lists)
    assert len(seen.names) == 7
