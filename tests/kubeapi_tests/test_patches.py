"""What a real API server does with each kind of PATCH."""

import pytest

from tests.kubeapi_tests.cluster import Cluster, config_map, lease, pod, pool

SVC = {
    "metadata": {"name": "a"},
    "spec": {"ports": [{"name": "x", "port": 1}, {"name": "y", "port": 2}]},
}


async def test_merge_replaces_lists_and_removes_nulls(cluster: Cluster):
    await cluster.made("inferencepools", pool(targetPorts=[{"number": 1}, {"number": 2}]))
    patch = {"spec": {"targetPorts": [{"number": 3}], "endpointPickerRef": None}}
    reply = await cluster.patch("inferencepools", "a", patch)
    assert reply.code == 200
    assert reply.json["spec"]["targetPorts"] == [{"number": 3}]
    assert "endpointPickerRef" not in reply.json["spec"]


JSON_PATCHES = {
    "add": ([{"op": "add", "path": "/data/y", "value": "2"}], {"x": "1", "y": "2"}),
    "remove": ([{"op": "remove", "path": "/data/x"}], None),
    "replace": ([{"op": "replace", "path": "/data/x", "value": "3"}], {"x": "3"}),
    "move": ([{"op": "move", "from": "/data/x", "path": "/data/z"}], {"z": "1"}),
    "copy": ([{"op": "copy", "from": "/data/x", "path": "/data/z"}], {"x": "1", "z": "1"}),
    "test that holds": (
        [
            {"op": "test", "path": "/data/x", "value": "1"},
            {"op": "replace", "path": "/data/x", "value": "4"},
        ],
        {"x": "4"},
    ),
    "a key with a slash": (
        [
            {"op": "add", "path": "/metadata/annotations", "value": {"a/b": "c"}},
            {"op": "remove", "path": "/metadata/annotations/a~1b"},
        ],
        {"x": "1"},
    ),
}


@pytest.mark.parametrize(("patch", "data"), JSON_PATCHES.values(), ids=JSON_PATCHES)
async def test_json_patch(cluster: Cluster, patch, data):
    await cluster.made("configmaps", config_map(x="1"))
    reply = await cluster.patch("configmaps", "a", patch, kind="json")
    assert reply.code == 200
    assert reply.json.get("data") == data or (data is None and not reply.json.get("data"))


MISFITS = {
    "a test that fails": [{"op": "test", "path": "/data/x", "value": "no"}],
    "nothing to remove": [{"op": "remove", "path": "/data/none"}],
    "nothing to replace": [{"op": "replace", "path": "/none/none", "value": "1"}],
}


@pytest.mark.parametrize("patch", MISFITS.values(), ids=MISFITS)
async def test_json_patch_that_does_not_fit(cluster: Cluster, patch):
    await cluster.made("configmaps", config_map(x="1"))
    reply = await cluster.patch("configmaps", "a", patch, kind="json")
    assert (reply.code, reply.reason) == (422, "Invalid")
    assert (await cluster.get("configmaps", "a")).json["data"] == {"x": "1"}


async def test_a_patch_of_nothing(cluster: Cluster):
    reply = await cluster.patch("configmaps", "none", {"data": {}})
    assert (reply.code, reply.reason) == (404, "NotFound")


async def test_a_patch_may_name_the_version_that_it_is_for(cluster: Cluster):
    made = await cluster.made("leases", lease())
    version = made["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": "x"}}
    assert (await cluster.patch("leases", "a", patch)).code == 200
    reply = await cluster.patch("leases", "a", patch | {"spec": {"holderIdentity": "y"}})
    assert (reply.code, reply.reason) == (409, "Conflict")


async def test_a_patch_whose_result_does_not_fit(cluster: Cluster):
    await cluster.made("leases", lease())
    patch = {"spec": {"renewTime": "2026-01-02T03:04:05Z"}}
    reply = await cluster.patch("leases", "a", patch)
    assert (reply.code, reply.reason, reply.fields) == (422, "Invalid", ["patch"])


async def test_strategic_merge_knows_the_keys_of_lists(cluster: Cluster):
    await cluster.made("pods", pod())
    condition = {"type": "Ready", "status": "False"}
    for status in ("False", "True"):
        patch = {"status": {"conditions": [condition | {"status": status}]}}
        await cluster.patch("pods", "a", patch, kind="strategic", sub="status")
    other = {"status": {"conditions": [{"type": "Other", "status": "True"}]}}
    reply = await cluster.patch("pods", "a", other, kind="strategic", sub="status")
    found = {each["type"]: each["status"] for each in reply.json["status"]["conditions"]}
    assert found == {"Ready": "True", "Other": "True"}


async def test_strategic_merge_deletes_by_directive(cluster: Cluster):
    await cluster.made("services", SVC)
    patch = {"spec": {"ports": [{"$patch": "delete", "port": 1}]}}
    reply = await cluster.patch("services", "a", patch, kind="strategic")
    assert reply.code == 200
    assert [each["port"] for each in reply.json["spec"]["ports"]] == [2]


async def test_strategic_merge_orders_by_directive(cluster: Cluster):
    await cluster.made("services", SVC)
    patch = {"spec": {"$setElementOrder/ports": [{"port": 2}, {"port": 1}]}}
    reply = await cluster.patch("services", "a", patch, kind="strategic")
    assert [each["port"] for each in reply.json["spec"]["ports"]] == [2, 1]


async def test_custom_kinds_know_no_strategic_merge(cluster: Cluster):
    await cluster.made("inferencepools", pool())
    reply = await cluster.patch("inferencepools", "a", {"spec": {}}, kind="strategic")
    assert (reply.code, reply.reason) == (415, "UnsupportedMediaType")
    assert "application/merge-patch+json" in reply.message


async def test_a_patch_needs_its_media_type(cluster: Cluster):
    await cluster.made("configmaps", config_map())
    reply = await cluster.call("PATCH", cluster.path("configmaps", "a"), {"data": {}})
    assert (reply.code, reply.reason) == (415, "UnsupportedMediaType")


async def test_apply_creates_and_then_changes_nothing(cluster: Cluster):
    made = await cluster.patch(
        "configmaps", "a", config_map(x="1"), kind="apply", fieldManager="one"
    )
    assert made.code == 201
    (entry,) = made.json["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("one", "Apply")
    assert entry["fieldsV1"] == {"f:data": {"f:x": {}}}
    again = await cluster.patch(
        "configmaps", "a", config_map(x="1"), kind="apply", fieldManager="one"
    )
    assert again.code == 200
    assert again.json["metadata"]["resourceVersion"] == made.json["metadata"]["resourceVersion"]


async def test_apply_removes_what_its_manager_no_longer_says(cluster: Cluster):
    both, one = config_map(x="1", y="2"), config_map(x="1")
    await cluster.patch("configmaps", "a", both, kind="apply", fieldManager="one")
    reply = await cluster.patch("configmaps", "a", one, kind="apply", fieldManager="one")
    assert reply.json["data"] == {"x": "1"}


async def test_apply_leaves_alone_what_others_own(cluster: Cluster):
    await cluster.made("configmaps", config_map(mine="1"))
    body = config_map(theirs="2")
    await cluster.patch("configmaps", "a", body, kind="apply", fieldManager="other")
    reply = await cluster.patch("configmaps", "a", config_map(), kind="apply", fieldManager="other")
    assert reply.json["data"] == {"mine": "1"}


async def test_apply_conflicts_unless_forced(cluster: Cluster):
    await cluster.made("configmaps", config_map(x="1"))
    body = config_map(x="2")
    reply = await cluster.patch("configmaps", "a", body, kind="apply", fieldManager="two")
    assert (reply.code, reply.reason) == (409, "Conflict")
    assert reply.message == 'Apply failed with 1 conflict: conflict with "items" using v1: .data.x'
    (cause,) = reply.json["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("FieldManagerConflict", ".data.x")
    forced = await cluster.patch(
        "configmaps", "a", body, kind="apply", fieldManager="two", force="true"
    )
    assert (forced.code, forced.json["data"]) == (200, {"x": "2"})


async def test_apply_needs_a_manager(cluster: Cluster):
    reply = await cluster.patch("configmaps", "a", config_map(), kind="apply")
    assert (reply.code, reply.reason) == (422, "Invalid")
    assert reply.fields == ["fieldManager"]


async def test_apply_to_a_custom_kind_gets_its_defaults(cluster: Cluster):
    reply = await cluster.patch("inferencepools", "a", pool(), kind="apply", fieldManager="x")
    assert reply.code == 201
    assert reply.json["spec"]["appProtocol"] == "http"
