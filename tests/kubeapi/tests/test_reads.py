"""What a real API server does when it is asked for one object or for many."""

import pytest

from tests.kubeapi.tests.cluster import POOLS, Cluster, config_map, pod, pool


async def test_missing_object_is_told_by_resource_and_name(cluster: Cluster):
    reply = await cluster.get("configmaps", "none")
    assert reply.code == 404
    assert reply.json == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'configmaps "none" not found',
        "reason": "NotFound",
        "details": {"name": "none", "kind": "configmaps"},
        "code": 404,
    }


async def test_missing_object_of_a_group_names_the_group(cluster: Cluster):
    reply = await cluster.get("leases", "none")
    assert reply.message == 'leases.coordination.k8s.io "none" not found'
    assert reply.json["details"] == {
        "name": "none",
        "group": "coordination.k8s.io",
        "kind": "leases",
    }


async def test_unknown_resource_of_a_known_group_is_a_status(cluster: Cluster):
    reply = await cluster.call("GET", "/api/v1/things")
    assert (reply.code, reply.reason) == (404, "NotFound")
    assert reply.message == "the server could not find the requested resource"


UNKNOWN = ("/nothing", "/apis/nothing.example/v1/things", f"/{POOLS}/things")


@pytest.mark.parametrize("path", UNKNOWN)
async def test_an_unknown_path_is_404_with_a_status_or_with_a_text(cluster: Cluster, path):
    reply = await cluster.call("GET", path)
    assert reply.code == 404
    assert reply.reason == "NotFound" or reply.text == "404 page not found\n"


async def test_objects_hold_what_the_server_adds(cluster: Cluster):
    made = await cluster.made("configmaps", config_map(key="1"))
    meta = made["metadata"]
    assert (meta["name"], meta["namespace"]) == ("a", cluster.namespace)
    assert int(meta["resourceVersion"]) > 0
    assert len(meta["uid"]) == 36
    assert meta["creationTimestamp"].endswith("Z")
    assert "generation" not in meta
    assert (await cluster.get("configmaps", "a")).json == made


async def test_a_list_has_a_version_at_which_a_watch_goes_on(cluster: Cluster):
    made = await cluster.made("configmaps", config_map("zz"))
    found = (await cluster.get("configmaps")).json
    assert (found["kind"], found["apiVersion"]) == ("ConfigMapList", "v1")
    assert int(found["metadata"]["resourceVersion"]) >= int(made["metadata"]["resourceVersion"])


async def test_items_of_built_in_kinds_leave_out_their_kind(cluster: Cluster):
    await cluster.made("configmaps", config_map())
    found = (await cluster.get("configmaps")).json
    assert [each.keys() & {"kind", "apiVersion"} for each in found["items"]] == [
        set() for _ in found["items"]
    ]


async def test_items_of_custom_kinds_keep_their_kind(cluster: Cluster):
    await cluster.made("inferencepools", pool())
    (item,) = (await cluster.get("inferencepools")).json["items"]
    assert (item["kind"], item["apiVersion"]) == (
        "InferencePool",
        "inference.networking.k8s.io/v1",
    )


async def test_a_list_of_a_namespace_that_is_not_is_empty(cluster: Cluster):
    reply = await cluster.call("GET", "/api/v1/namespaces/never-was/pods")
    assert (reply.code, reply.json["items"]) == (200, [])


async def test_a_list_is_ordered_by_namespace_and_name(cluster: Cluster):
    for name in ("c", "a", "b"):
        await cluster.made("inferencepools", pool(name))
    items = (await cluster.get("inferencepools")).json["items"]
    assert [each["metadata"]["name"] for each in items] == ["a", "b", "c"]


SELECTED = {
    # selector -> which of: front (app=web, tier=front), back (app=web, tier=back), bare (no label)
    "app=web": "front back",
    "app==web,tier=back": "back",
    "app!=web": "bare",
    "tier in (front, back)": "front back",
    "tier in (front),app": "front",
    "tier notin (front)": "back bare",
    "!tier": "bare",
    "tier": "front back",
}


@pytest.mark.parametrize(("selector", "wanted"), SELECTED.items())
async def test_label_selectors(cluster: Cluster, selector, wanted):
    await cluster.made("inferencepools", pool("bare"))
    for tier in ("front", "back"):
        body = pool(tier)
        body["metadata"]["labels"] = {"app": "web", "tier": tier}
        await cluster.made("inferencepools", body)
    items = (await cluster.get("inferencepools", labelSelector=selector)).json["items"]
    assert {each["metadata"]["name"] for each in items} == set(wanted.split())


async def test_a_selector_that_cannot_be_read(cluster: Cluster):
    reply = await cluster.get("pods", labelSelector="a in (b")
    assert (reply.code, reply.reason) == (400, "BadRequest")


FIELDS = {
    "metadata.name=a": "a",
    "metadata.name!=a": "b",
    "spec.restartPolicy=Never": "b",
    "status.phase=Pending": "a b",
    "status.phase=Running": "",
    "spec.restartPolicy=Never,metadata.name=b": "b",
}


@pytest.mark.parametrize(("selector", "wanted"), FIELDS.items())
async def test_field_selectors_of_pods(cluster: Cluster, selector, wanted):
    await cluster.made("pods", pod("a"))
    await cluster.made("pods", pod("b", restartPolicy="Never"))
    items = (await cluster.get("pods", fieldSelector=selector)).json["items"]
    assert {each["metadata"]["name"] for each in items} == set(wanted.split())


@pytest.mark.parametrize(
    ("resource", "message"),
    [
        ("pods", "field label not supported: spec.nothing"),
        ("inferencepools", "field label not supported: spec.nothing"),
        (
            "configmaps",
            (
                '"spec.nothing" is not a known field selector: only "metadata.name",'
                ' "metadata.namespace"'
            ),
        ),
    ],
)
async def test_fields_that_cannot_be_selected_by(cluster: Cluster, resource, message):
    reply = await cluster.get(resource, fieldSelector="spec.nothing=1")
    assert (reply.code, reply.reason, reply.message) == (400, "BadRequest", message)


async def test_pages_are_one_consistent_list(cluster: Cluster):
    for name in "abcde":
        await cluster.made("inferencepools", pool(name))
    first = (await cluster.get("inferencepools", limit="2")).json
    assert [each["metadata"]["name"] for each in first["items"]] == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 3
    await cluster.delete("inferencepools", "c")
    await cluster.made("inferencepools", pool("f"))
    token = first["metadata"]["continue"]
    second = (await cluster.get("inferencepools", limit="2", **{"continue": token})).json
    assert [each["metadata"]["name"] for each in second["items"]] == ["c", "d"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    token = second["metadata"]["continue"]
    last = (await cluster.get("inferencepools", limit="2", **{"continue": token})).json
    assert [each["metadata"]["name"] for each in last["items"]] == ["e"]
    assert not last["metadata"].get("continue")


async def test_a_page_with_a_selector_does_not_count_what_remains(cluster: Cluster):
    for name in "abc":
        await cluster.made("configmaps", config_map(name, labels={"x": "y"}))
    page = (await cluster.get("configmaps", limit="1", labelSelector="x=y")).json
    assert page["metadata"]["continue"]
    assert "remainingItemCount" not in page["metadata"]


async def test_version_0_knows_no_pages(cluster: Cluster):
    for name in "abc":
        await cluster.made("inferencepools", pool(name))
    found = (await cluster.get("inferencepools", limit="1", resourceVersion="0")).json
    assert not found["metadata"].get("continue")


async def test_a_token_past_compaction_is_expired_and_brings_another(cluster: Cluster, fake):
    for name in "abc":
        await cluster.made("inferencepools", pool(name))
    token = (await cluster.get("inferencepools", limit="1")).json["metadata"]["continue"]
    await cluster.delete("inferencepools", "b")
    fake.compact()
    reply = await cluster.get("inferencepools", limit="1", **{"continue": token})
    assert (reply.code, reply.reason) == (410, "Expired")
    assert reply.message.startswith("The provided continue parameter is too old")
    other = reply.json["metadata"]["continue"]
    rest = (await cluster.get("inferencepools", **{"continue": other})).json
    assert [each["metadata"]["name"] for each in rest["items"]] == ["c"]


async def test_a_token_that_is_none(cluster: Cluster):
    reply = await cluster.get("pods", limit="1", **{"continue": "nonsense"})
    assert (reply.code, reply.reason) == (400, "BadRequest")


async def test_a_version_may_not_be_given_beside_a_token(cluster: Cluster):
    for name in "ab":
        await cluster.made("inferencepools", pool(name))
    meta = (await cluster.get("inferencepools", limit="1")).json["metadata"]
    query = {"continue": meta["continue"], "resourceVersion": meta["resourceVersion"]}
    reply = await cluster.get("inferencepools", limit="1", **query)
    assert reply.code in (400, 422)


async def test_a_version_that_is_not_reached_yet(cluster: Cluster):
    now = int((await cluster.get("pods")).json["metadata"]["resourceVersion"])
    reply = await cluster.get("pods", resourceVersion=str(now + 10_000_000))
    assert (reply.code, reply.reason) == (504, "Timeout")
    assert "Too large resource version" in reply.message
    (cause,) = reply.json["details"]["causes"]
    assert cause["reason"] == "ResourceVersionTooLarge"
