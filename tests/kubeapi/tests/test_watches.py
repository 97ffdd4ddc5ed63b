"""What a real API server does on a watch."""

import asyncio

import pytest

from tests.kubeapi.tests.cluster import Cluster, config_map, pod, pool


async def version(cluster: Cluster, resource: str = "inferencepools") -> str:
    """The version of a list, from which a watch goes on."""
    return str((await cluster.get(resource)).json["metadata"]["resourceVersion"])


async def test_events_follow_a_version(cluster: Cluster):
    await cluster.made("inferencepools", pool("before"))
    at = await version(cluster)
    async with cluster.watch("inferencepools", resourceVersion=at) as events:
        await cluster.made("inferencepools", pool("a"))
        await cluster.patch("inferencepools", "a", {"metadata": {"labels": {"x": "y"}}})
        await cluster.delete("inferencepools", "a")
        assert await events.told(3) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_objects_in_events_hold_their_kind(cluster: Cluster):
    at = await version(cluster, "configmaps")
    async with cluster.watch("configmaps", resourceVersion=at) as events:
        await cluster.made("configmaps", config_map("a"))
        event = await events.next()
    assert event is not None
    assert (event["object"]["kind"], event["object"]["apiVersion"]) == ("ConfigMap", "v1")


async def test_what_was_missed_is_replayed_once_and_in_order(cluster: Cluster):
    at = await version(cluster)
    made = await cluster.made("inferencepools", pool("a"))
    await cluster.delete("inferencepools", "a")
    async with cluster.watch("inferencepools", resourceVersion=at) as events:
        assert await events.told(2) == [("ADDED", "a"), ("DELETED", "a")]
    between = made["metadata"]["resourceVersion"]
    async with cluster.watch("inferencepools", resourceVersion=between) as events:
        assert await events.told(1) == [("DELETED", "a")]


async def test_a_deleted_object_has_its_last_state_and_the_version_of_its_end(
    cluster: Cluster,
):
    made = await cluster.made("inferencepools", pool("a"))
    born = made["metadata"]["resourceVersion"]
    async with cluster.watch("inferencepools", resourceVersion=born) as events:
        await cluster.delete("inferencepools", "a")
        event = await events.next()
    assert event is not None
    assert event["object"]["spec"] == made["spec"]
    assert int(event["object"]["metadata"]["resourceVersion"]) > int(born)


@pytest.mark.parametrize("query", [{}, {"resourceVersion": "0"}, {"resourceVersion": ""}])
async def test_without_a_version_what_is_there_comes_first(cluster: Cluster, query):
    for name in "ab":
        await cluster.made("inferencepools", pool(name))
    async with cluster.watch("inferencepools", **query) as events:
        assert set(await events.told(2)) == {("ADDED", "a"), ("ADDED", "b")}
        await cluster.made("inferencepools", pool("c"))
        assert await events.told(1) == [("ADDED", "c")]


async def test_everything_but_0_and_false_is_a_watch(cluster: Cluster):
    query = {"timeoutSeconds": "1", "resourceVersion": await version(cluster)}
    yes = ("1", "true", "True", "")
    asked = [cluster.get("inferencepools", watch=each, **query) for each in yes]
    replies = await asyncio.gather(*asked)
    assert [(each.code, each.text) for each in replies] == [(200, "")] * len(yes)


@pytest.mark.parametrize("no", ["0", "false"])
async def test_0_and_false_are_a_list(cluster: Cluster, no):
    reply = await cluster.get("inferencepools", watch=no)
    assert reply.json["kind"] == "InferencePoolList"


async def test_labels_that_leave_a_selector_are_a_deletion(cluster: Cluster):
    at = await version(cluster)
    body = pool("a")
    async with cluster.watch(
        "inferencepools", resourceVersion=at, labelSelector="app=web"
    ) as events:
        await cluster.made("inferencepools", body)  # not selected: no event
        patches = [{"metadata": {"labels": {"app": each}}} for each in ("web", "web2", "web")]
        replies = [await cluster.patch("inferencepools", "a", patch) for patch in patches]
        added, deleted, again = [await events.next() for _ in range(3)]
    assert added is not None
    assert deleted is not None
    assert again is not None
    assert [each["type"] for each in (added, deleted, again)] == ["ADDED", "DELETED", "ADDED"]
    # The deletion tells the object as it was while it was selected, at the version of the change.
    assert deleted["object"]["metadata"]["labels"] == {"app": "web"}
    versions = [int(each["object"]["metadata"]["resourceVersion"]) for each in (added, deleted)]
    assert versions[0] < versions[1] < int(replies[-1].json["metadata"]["resourceVersion"])


async def test_a_field_that_leaves_a_selector_is_a_deletion(cluster: Cluster):
    await cluster.made("pods", pod("a"))
    at = await version(cluster, "pods")
    async with cluster.watch(
        "pods", resourceVersion=at, fieldSelector="status.phase=Pending"
    ) as events:
        await cluster.patch("pods", "a", {"status": {"phase": "Failed"}}, sub="status")
        assert await events.told(1) == [("DELETED", "a")]


async def test_one_object_is_watched_by_its_name(cluster: Cluster):
    at = await version(cluster)
    async with cluster.watch(
        "inferencepools", resourceVersion=at, fieldSelector="metadata.name=b"
    ) as events:
        for name in "ab":
            await cluster.made("inferencepools", pool(name))
        assert await events.told(1) == [("ADDED", "b")]


async def test_the_stream_ends_in_good_order_at_its_time(cluster: Cluster):
    at = await version(cluster)
    async with cluster.watch("inferencepools", resourceVersion=at, timeoutSeconds="1") as events:
        assert await events.rest() == []


async def test_bookmarks_come_before_the_end_where_they_are_asked_for(cluster: Cluster):
    await cluster.made("inferencepools", pool("a"))
    query = {"resourceVersion": await version(cluster), "timeoutSeconds": "3"}
    async with (
        cluster.watch("inferencepools", allowWatchBookmarks="true", **query) as asked,
        cluster.watch("inferencepools", **query) as plain,
    ):
        marks = await asked.rest()
        assert await plain.rest() == []
    assert [each["type"] for each in marks] == ["BOOKMARK"]
    mark = marks[0]["object"]
    assert (mark["kind"], mark["apiVersion"]) == (
        "InferencePool",
        "inference.networking.k8s.io/v1",
    )
    assert int(mark["metadata"]["resourceVersion"]) >= int(query["resourceVersion"])
    assert "name" not in mark["metadata"]


async def test_a_version_that_is_no_number(cluster: Cluster):
    reply = await cluster.get("inferencepools", watch="1", resourceVersion="x")
    assert reply.code == 500


async def test_a_version_before_the_cache_is_told_in_the_stream(cluster: Cluster):
    await cluster.made("inferencepools", pool("a"))
    async with cluster.watch("inferencepools", resourceVersion="1") as events:
        assert events.response.status == 200
        (event,) = await events.rest()
    assert event["type"] == "ERROR"
    told = event["object"]
    assert (told["kind"], told["code"], told["reason"]) == ("Status", 410, "Expired")
    assert told["message"].startswith("too old resource version: 1 (")


async def test_compaction_expires_what_was_missed_and_spares_who_listens(cluster: Cluster, fake):
    at = await version(cluster)
    async with cluster.watch("inferencepools", resourceVersion=at) as events:
        await cluster.made("inferencepools", pool("a"))
        fake.compact()
        assert await events.told(1) == [("ADDED", "a")]
        async with cluster.watch("inferencepools", resourceVersion=at) as late:
            assert [each["type"] for each in await late.rest()] == ["ERROR"]
        await cluster.made("inferencepools", pool("b"))
        assert await events.told(1) == [("ADDED", "b")]


async def test_a_write_that_changes_nothing_is_no_event(cluster: Cluster):
    made = await cluster.made("inferencepools", pool("a"))
    born = made["metadata"]["resourceVersion"]
    async with cluster.watch("inferencepools", resourceVersion=born) as events:
        same = await cluster.put("inferencepools", made)
        assert same.json["metadata"]["resourceVersion"] == born
        await cluster.patch("inferencepools", "a", {"metadata": {"labels": {"x": "y"}}})
        event = await events.next()
    assert event is not None
    assert event["object"]["metadata"]["labels"] == {"x": "y"}


async def test_watches_of_all_namespaces_hear_this_one(cluster: Cluster):
    at = await version(cluster)
    path = "/apis/inference.networking.k8s.io/v1/inferencepools"
    async with cluster.watch(path, resourceVersion=at) as events:
        await cluster.made("inferencepools", pool("a"))
        assert await events.told(1) == [("ADDED", "a")]
