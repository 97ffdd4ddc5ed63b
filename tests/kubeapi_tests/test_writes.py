"""What a real API server does with creates, updates and deletions."""

import asyncio

import pytest

from tests.kubeapi_tests.cluster import Cluster, config_map, lease, objective, pod, pool


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


async def test_names_can_be_generated(cluster: Cluster):
    body = config_map()
    body["metadata"] = {"generateName": "made-"}
    first, second = [await cluster.made("configmaps", body) for _ in range(2)]
    names = {first["metadata"]["name"], second["metadata"]["name"]}
    assert len(names) == 2
    assert all(name.startswith("made-") and len(name) == len("made-") + 5 for name in names)


REFUSED_CREATES = {
    "no name": ("configmaps", {"metadata": {}}, 422, "metadata.name"),
    "a name with capitals": ("configmaps", {"metadata": {"name": "Aa"}}, 422, "metadata.name"),
    "a label value with a blank": (
        "configmaps",
        {"metadata": {"name": "a", "labels": {"x": "a b"}}},
        422,
        "metadata.labels",
    ),
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
    "data that is no text": ("configmaps", config_map(key=1), 400, ""),
    "a secret that is not base64": (
        "secrets",
        {"metadata": {"name": "a"}, "data": {"x": "%"}},
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
    "an event about another namespace": (
        "events",
        {
            "metadata": {"name": "a"},
            "involvedObject": {"kind": "Pod", "name": "a", "namespace": "elsewhere"},
        },
        422,
        "involvedObject.namespace",
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


async def test_a_dry_run_answers_and_stores_nothing(cluster: Cluster):
    reply = await cluster.create("configmaps", config_map(), dryRun="All")
    assert reply.code == 201
    assert reply.json["metadata"]["uid"]
    assert (await cluster.get("configmaps", "a")).code == 404


async def test_yaml_is_taken(cluster: Cluster):
    text = b"metadata: {name: a}\ndata: {key: value}\n"
    path = cluster.path("configmaps")
    reply = await cluster.call("POST", path, text, media="application/yaml")
    assert (reply.code, reply.json["data"]) == (201, {"key": "value"})


async def test_other_media_types_are_not(cluster: Cluster):
    path = cluster.path("configmaps")
    reply = await cluster.call("POST", path, b"x", media="text/plain")
    assert (reply.code, reply.reason) == (415, "UnsupportedMediaType")
    assert "application/json, application/yaml" in reply.message


async def test_an_answer_in_a_form_that_it_does_not_have(cluster: Cluster):
    path = cluster.path("configmaps")
    reply = await cluster.call("GET", path, headers={"Accept": "text/html"})
    assert reply.code == 406


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


async def test_an_update_with_another_uid_conflicts(cluster: Cluster):
    made = await cluster.made("configmaps", config_map())
    meta = made["metadata"] | {"uid": "00000000-0000-0000-0000-000000000000"}
    reply = await cluster.put("configmaps", made | {"metadata": meta})
    assert (reply.code, reply.reason) == (409, "Conflict")
    assert "Precondition failed: UID in precondition" in reply.message


async def test_an_update_under_another_name(cluster: Cluster):
    await cluster.made("configmaps", config_map())
    path = cluster.path("configmaps", "a")
    reply = await cluster.call("PUT", path, config_map("b"))
    assert (reply.code, reply.reason) == (400, "BadRequest")


@pytest.mark.parametrize(
    ("resource", "body"), [("inferencepools", pool()), ("inferenceobjectives", objective())]
)
async def test_generation_counts_changes_of_the_spec(cluster: Cluster, resource, body):
    made = await cluster.made(resource, body)
    assert made["metadata"]["generation"] == 1
    steps = [
        ({"metadata": {"labels": {"x": "y"}}}, "", 1),
        ({"spec": {"poolRef": {"name": "q"}, "appProtocol": "kubernetes.io/h2c"}}, "", 2),
        ({"status": {"parents": [], "conditions": []}}, "status", 2),
    ]
    for patch, sub, wanted in steps:
        reply = await cluster.patch(resource, "a", patch, sub=sub)
        assert (reply.code, reply.json["metadata"]["generation"]) == (200, wanted)


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
    assert made["spec"]["terminationGracePeriodSeconds"] == 30
    reply = await cluster.patch("pods", "a", {"status": {"podIP": "10.1.2.3"}}, sub="status")
    assert reply.code == 200
    assert (await cluster.get("pods", "a")).json["status"]["podIP"] == "10.1.2.3"


async def test_a_kind_without_status_has_no_such_path(cluster: Cluster):
    await cluster.made("configmaps", config_map())
    reply = await cluster.patch("configmaps", "a", {"status": {}}, sub="status")
    assert reply.code == 404


async def test_the_spec_of_a_pod_stays(cluster: Cluster):
    await cluster.made("pods", pod())
    reply = await cluster.patch("pods", "a", {"spec": {"restartPolicy": "Never"}})
    assert (reply.code, reply.reason, reply.fields) == (422, "Invalid", ["spec"])


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


PRECONDITIONS = {
    "uid": ("uid", "00000000-0000-0000-0000-000000000000", "The object might have been deleted"),
    "version": ("resourceVersion", "1", "The object might have been modified"),
}


@pytest.mark.parametrize(("field", "value", "said"), PRECONDITIONS.values(), ids=PRECONDITIONS)
async def test_a_deletion_may_have_conditions(cluster: Cluster, field, value, said):
    made = await cluster.made("leases", lease())
    wrong = {"preconditions": {field: value}}
    reply = await cluster.delete("leases", "a", wrong)
    assert (reply.code, reply.reason) == (409, "Conflict")
    assert said in reply.message
    right = {"preconditions": {field: made["metadata"][field]}}
    assert (await cluster.delete("leases", "a", right)).code == 200


async def test_a_pod_that_runs_nowhere_goes_at_once(cluster: Cluster):
    await cluster.made("pods", pod())
    reply = await cluster.delete("pods", "a")
    assert (reply.code, reply.json["kind"]) == (200, "Pod")
    assert (await cluster.get("pods", "a")).code == 404


async def test_a_pod_on_a_node_terminates_first(cluster: Cluster):
    made = await cluster.made("pods", pod(nodeName="nowhere"))
    reply = await cluster.delete("pods", "a")
    meta = reply.json["metadata"]
    assert meta["deletionGracePeriodSeconds"] == 30
    assert meta["deletionTimestamp"] > made["metadata"]["creationTimestamp"]
    assert (await cluster.get("pods", "a")).code == 200
    await cluster.delete("pods", "a", gracePeriodSeconds="0")
    assert (await cluster.get("pods", "a")).code == 404


async def test_finalizers_hold_an_object(cluster: Cluster):
    body = config_map()
    body["metadata"]["finalizers"] = ["warmpick.example/hold"]
    await cluster.made("configmaps", body)
    await cluster.delete("configmaps", "a")
    held = (await cluster.get("configmaps", "a")).json
    assert held["metadata"]["deletionTimestamp"]
    await cluster.patch("configmaps", "a", {"metadata": {"finalizers": None}})
    assert (await cluster.get("configmaps", "a")).code == 404


async def test_a_collection_is_deleted_by_selector(cluster: Cluster):
    for name in "abc":
        await cluster.made("leases", lease(name))
    await cluster.patch("leases", "b", {"metadata": {"labels": {"keep": "no"}}})
    reply = await cluster.call("DELETE", cluster.path("leases"), query={"labelSelector": "keep=no"})
    assert reply.code == 200
    items = (await cluster.get("leases")).json["items"]
    assert [each["metadata"]["name"] for each in items] == ["a", "c"]


async def test_the_same_name_again_is_another_object(cluster: Cluster):
    first = await cluster.made("configmaps", config_map())
    await cluster.delete("configmaps", "a")
    second = await cluster.made("configmaps", config_map())
    assert first["metadata"]["uid"] != second["metadata"]["uid"]


async def test_methods_that_a_path_does_not_have(cluster: Cluster):
    reply = await cluster.call("PUT", cluster.path("configmaps"), config_map())
    assert (reply.code, reply.reason) == (405, "MethodNotAllowed")
