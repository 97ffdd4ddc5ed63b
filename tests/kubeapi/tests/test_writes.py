"""What a real API server does with creates, updates and deletions."""

import asyncio

import pytest

from tests.kubeapi.tests.cluster import Cluster, config_map, lease, objective, pod, pool


async def test_a_name_is_taken_once(cluster: Cluster):
    await cluster.made("leases", lease())
    reply = await cluster.create("leases", lease())
    assert (reply.code, reply.reason) == (409, "AlreadyExists")
    assert reply.message == 'leases.coordination.k8s.io "a" already exists'
    assert reply.json["details"] == {
        "name": "a",
        "group": "coordination.k8s.io",
        "kind": "leases",
    }


REFUSED_CREATES = {
    "no name": ("configmaps", {"metadata": {}}, 422, "metadata.name"),
    "a pod without containers": ("pods", pod(containers=[]), 422, "spec.containers"),
    "a lease of no seconds": (
        "leases",
        lease(leaseDurationSeconds=0),
        422,
        "spec.leaseDurationSeconds",
    ),
    "a lease time without six decimals": (
        "leases",
        lease(renewTime="2026-01-02T03:04:05Z"),
        400,
        "",
    ),
    "another kind": ("configmaps", pod(), 400, ""),
    "another version": (
        "leases",
        lease() | {"apiVersion": "coordination.k8s.io/v9"},
        400,
        "",
    ),
    "another namespace": (
        "configmaps",
        {"metadata": {"name": "a", "namespace": "elsewhere"}},
        400,
        "",
    ),
}


@pytest.mark.parametrize(
    ("resource", "body", "code", "field"), REFUSED_CREATES.values(), ids=REFUSED_CREATES
)
async def test_creates_that_are_refused(cluster: Cluster, resource, body, code, field):
    reply = await cluster.create(resource, body)
    assert (reply.code, reply.reason) == (code, {400: "BadRequest", 422: "Invalid"}[code])
    assert (field in reply.fields) == bool(field)


async def test_a_body_that_is_no_json(cluster: Cluster):
    reply = await cluster.call("POST", cluster.path("configmaps"), b"{")
    assert (reply.code, reply.reason) == (400, "BadRequest")


async def test_a_version_may_not_be_set_on_what_is_created(cluster: Cluster):
    body = config_map()
    body["metadata"]["resourceVersion"] = "1"
    reply = await cluster.create("configmaps", body)
    assert reply.code == 500
    assert reply.message == "resourceVersion should not be set on objects to be created"


async def test_nothing_is_created_in_a_namespace_that_is_not(cluster: Cluster):
    path = "/api/v1/namespaces/never-was/configmaps"
    reply = await cluster.call("POST", path, config_map())
    assert (reply.code, reply.reason) == (404, "NotFound")
    assert reply.message == 'namespaces "never-was" not found'


async def test_other_media_types_are_not(cluster: Cluster):
    path = cluster.path("configmaps")
    reply = await cluster.call("POST", path, b"x", media="text/plain")
    assert (reply.code, reply.reason) == (415, "UnsupportedMediaType")
    assert "application/json" in reply.message


@pytest.mark.parametrize(
    ("resource", "body"),
    [("configmaps", config_map()), ("leases", lease()), ("inferencepools", pool())],
)
async def test_a_stale_version_loses(cluster: Cluster, resource, body):
    first = await cluster.made(resource, body)
    await cluster.patch(resource, "a", {"metadata": {"labels": {"x": "y"}}})
    reply = await cluster.put(resource, first)
    assert (reply.code, reply.reason) == (409, "Conflict")
    assert reply.message.endswith(
        '"a": the object has been modified; please apply your changes to the latest version'
        " and try again"
    )


async def test_one_of_two_writers_wins_a_lease(cluster: Cluster):
    first = await cluster.made("leases", lease())
    bids = [first | {"spec": first["spec"] | {"holderIdentity": who}} for who in ("x", "y")]
    replies = await asyncio.gather(*(cluster.put("leases", bid) for bid in bids))
    assert sorted(each.code for each in replies) == [200, 409]
    held = (await cluster.get("leases", "a")).json["spec"]["holderIdentity"]
    (won,) = [each.json for each in replies if each.code == 200]
    assert won["spec"]["holderIdentity"] == held


async def test_the_times_of_a_lease_are_its_writers(cluster: Cluster):
    when = "1999-12-31T23:59:59.123456Z"
    made = await cluster.made("leases", lease(renewTime=when, acquireTime=when))
    assert made["spec"]["renewTime"] == when


@pytest.mark.parametrize(("resource", "body"), [("leases", lease()), ("inferencepools", pool())])
async def test_updates_without_a_version_are_refused(cluster: Cluster, resource, body):
    await cluster.made(resource, body)
    reply = await cluster.put(resource, body)
    assert (reply.code, reply.reason) == (422, "Invalid")
    assert reply.fields == ["metadata.resourceVersion"]
    assert "must be specified for an update" in reply.message


async def test_updates_without_a_version_overwrite_a_config_map(cluster: Cluster):
    await cluster.made("configmaps", config_map(key="1"))
    reply = await cluster.put("configmaps", config_map(key="2"))
    assert (reply.code, reply.json["data"]) == (200, {"key": "2"})


async def test_an_update_creates_a_lease_and_no_config_map(cluster: Cluster):
    assert (await cluster.put("leases", lease())).code == 201
    assert (await cluster.put("configmaps", config_map())).code == 404


async def test_an_update_of_an_object_that_was_made_again_conflicts(cluster: Cluster):
    made = await cluster.made("configmaps", config_map())
    meta = made["metadata"] | {"uid": "00000000-0000-0000-0000-000000000000"}
    reply = await cluster.put("configmaps", made | {"metadata": meta})
    assert (reply.code, reply.reason) == (409, "Conflict")
    assert "Precondition failed: UID in precondition" in reply.message


async def test_a_patch_merges_objects_and_replaces_lists(cluster: Cluster):
    await cluster.made("inferencepools", pool(targetPorts=[{"number": 1}, {"number": 2}]))
    patch = {"metadata": {"labels": {"x": "y"}}, "spec": {"targetPorts": [{"number": 3}]}}
    reply = await cluster.patch("inferencepools", "a", patch)
    assert (reply.code, reply.json["metadata"]["labels"]) == (200, {"x": "y"})
    assert reply.json["spec"]["targetPorts"] == [{"number": 3}]
    assert reply.json["spec"]["selector"] == pool()["spec"]["selector"]


async def test_a_patch_may_name_the_version_that_it_is_for(cluster: Cluster):
    made = await cluster.made("leases", lease())
    version = made["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": "x"}}
    assert (await cluster.patch("leases", "a", patch)).code == 200
    reply = await cluster.patch("leases", "a", patch | {"spec": {"holderIdentity": "y"}})
    assert (reply.code, reply.reason) == (409, "Conflict")


CONDITION = {
    "type": "Accepted",
    "status": "True",
    "reason": "Tested",
    "message": "",
    "lastTransitionTime": "2026-01-02T03:04:05Z",
}


async def test_status_goes_through_its_subresource_only(cluster: Cluster):
    body = objective() | {"status": {"conditions": [CONDITION]}}
    made = await cluster.made("inferenceobjectives", body)
    assert CONDITION not in made.get("status", {}).get("conditions", [])
    patch = {
        "metadata": {"labels": {"x": "y"}},
        "spec": {"priority": 9},
        "status": {"conditions": [CONDITION]},
    }
    main = (await cluster.patch("inferenceobjectives", "a", patch)).json
    assert main["spec"]["priority"] == 9
    assert main.get("status") == made.get("status")
    patch["spec"] = {"priority": 10}
    patch["metadata"] = {"labels": {"x": "z"}}
    status = (await cluster.patch("inferenceobjectives", "a", patch, sub="status")).json
    assert status["status"]["conditions"] == [CONDITION]
    assert status["spec"]["priority"] == 9
    assert status["metadata"]["labels"] == {"x": "y"}


async def test_a_pod_begins_pending_whatever_it_says(cluster: Cluster):
    made = await cluster.made("pods", pod() | {"status": {"phase": "Running"}})
    assert made["status"]["phase"] == "Pending"
    reply = await cluster.patch("pods", "a", {"status": {"podIP": "10.1.2.3"}}, sub="status")
    assert reply.code == 200
    assert (await cluster.get("pods", "a")).json["status"]["podIP"] == "10.1.2.3"


async def test_what_a_deletion_answers(cluster: Cluster):
    made = await cluster.made("configmaps", config_map())
    reply = await cluster.delete("configmaps", "a")
    assert (reply.code, reply.json["status"]) == (200, "Success")
    assert reply.json["details"] == {
        "name": "a",
        "kind": "configmaps",
        "uid": made["metadata"]["uid"],
    }
    assert (await cluster.delete("configmaps", "a")).code == 404


async def test_a_pod_that_runs_nowhere_goes_at_once(cluster: Cluster):
    await cluster.made("pods", pod())
    reply = await cluster.delete("pods", "a")
    assert (reply.code, reply.json["kind"]) == (200, "Pod")
    assert (await cluster.get("pods", "a")).code == 404


async def test_methods_that_a_path_does_not_have(cluster: Cluster):
    reply = await cluster.call("PUT", cluster.path("configmaps"), config_map())
    assert (reply.code, reply.reason) == (405, "MethodNotAllowed")
