"""What a real API server does about who asks: 401, 403, and reviews of both."""

import pytest

from tests.kubeapi.tests.cluster import Cluster, pool

POOL_READER = {
    "apiGroups": ["inference.networking.k8s.io"],
    "resources": ["inferencepools"],
    "verbs": ["get", "list", "watch"],
}
ONE_LEASE = {
    "apiGroups": ["coordination.k8s.io"],
    "resources": ["leases"],
    "verbs": ["get", "update"],
    "resourceNames": ["mine"],
}


async def test_a_token_that_is_not_known(cluster: Cluster):
    reply = await cluster.call(
        "GET", cluster.path("pods"), headers={"Authorization": "Bearer nonsense"}
    )
    assert reply.code == 401
    assert reply.json == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "Unauthorized",
        "reason": "Unauthorized",
        "code": 401,
    }


FORBIDDEN = {
    "list": (
        "GET",
        "pods",
        "",
        (
            'pods is forbidden: User "nobody" cannot list resource "pods" in API group ""'
            ' in the namespace "{}"'
        ),
    ),
    "get": (
        "GET",
        "pods",
        "a",
        (
            'pods "a" is forbidden: User "nobody" cannot get resource "pods" in API group ""'
            ' in the namespace "{}"'
        ),
    ),
    "list of a group": (
        "GET",
        "inferencepools",
        "",
        (
            'inferencepools.inference.networking.k8s.io is forbidden: User "nobody" cannot list'
            ' resource "inferencepools" in API group "inference.networking.k8s.io"'
            ' in the namespace "{}"'
        ),
    ),
    "everywhere": (
        "GET",
        "/api/v1/pods",
        "",
        (
            'pods is forbidden: User "nobody" cannot list resource "pods" in API group ""'
            " at the cluster scope"
        ),
    ),
    "a path": ("GET", "/metrics", "", 'forbidden: User "nobody" cannot get path "/metrics"'),
}


@pytest.mark.parametrize(("method", "resource", "name", "said"), FORBIDDEN.values(), ids=FORBIDDEN)
async def test_what_is_forbidden_names_the_rule_that_lacks(
    cluster: Cluster, method, resource, name, said
):
    reply = await cluster.call(
        method, cluster.path(resource, name), headers={"Impersonate-User": "nobody"}
    )
    assert (reply.code, reply.reason) == (403, "Forbidden")
    assert reply.message.startswith(said.format(cluster.namespace))


async def test_watch_and_subresource_are_named_too(cluster: Cluster):
    headers = {"Impersonate-User": "nobody"}
    path = cluster.path("pods")
    reply = await cluster.call("GET", path, headers=headers, query={"watch": "1"})
    assert 'cannot watch resource "pods"' in reply.message
    path = cluster.path("pods", "a", "status")
    reply = await cluster.call("GET", path, headers=headers)
    assert 'cannot get resource "pods/status"' in reply.message


async def asked_as(cluster, token, method, path, body=None, **options):
    headers = {"Authorization": f"Bearer {token}"}
    return await cluster.call(method, path, body, headers=headers, **options)


async def test_a_rule_covers_its_verbs_in_its_namespace(cluster: Cluster, fake):
    token = fake.token("reader", [POOL_READER], cluster.namespace)
    await cluster.made("inferencepools", pool())
    path = cluster.path("inferencepools")
    assert (await asked_as(cluster, token, "GET", path)).code == 200
    assert (await asked_as(cluster, token, "GET", f"{path}/a")).code == 200
    assert (await asked_as(cluster, token, "DELETE", f"{path}/a")).code == 403
    everywhere = "/apis/inference.networking.k8s.io/v1/inferencepools"
    assert (await asked_as(cluster, token, "GET", everywhere)).code == 403
    assert (await asked_as(cluster, token, "GET", cluster.path("pods"))).code == 403


async def test_a_rule_may_name_its_objects(cluster: Cluster, fake):
    token = fake.token("holder", [ONE_LEASE], cluster.namespace)
    path = cluster.path("leases")
    assert (await asked_as(cluster, token, "GET", f"{path}/mine")).code == 404
    assert (await asked_as(cluster, token, "GET", f"{path}/other")).code == 403


async def test_a_list_of_one_name_is_covered_by_that_name(cluster: Cluster, fake):
    rule = ONE_LEASE | {"verbs": ["list", "watch"]}
    token = fake.token("holder", [rule], cluster.namespace)
    path = cluster.path("leases")
    assert (await asked_as(cluster, token, "GET", path)).code == 403
    query = {"fieldSelector": "metadata.name=mine"}
    assert (await asked_as(cluster, token, "GET", path, query=query)).code == 200


@pytest.mark.usefixtures("fake")
async def test_without_a_token_one_is_anonymous(cluster: Cluster):
    reply = await cluster.call("GET", cluster.path("pods"), headers={"Authorization": ""})
    assert reply.code == 403
    assert 'User "system:anonymous"' in reply.message


REVIEW = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


async def test_a_token_review_tells_whose_it_is(cluster: Cluster, fake):
    token = fake.token("system:serviceaccount:mon:prometheus", groups=("scrapers",))
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token},
    }
    reply = await cluster.call("POST", REVIEW, body)
    assert reply.code == 201
    assert reply.json["status"] == {
        "authenticated": True,
        "user": {
            "username": "system:serviceaccount:mon:prometheus",
            "groups": ["scrapers", "system:authenticated"],
        },
    }


async def test_a_token_review_of_nonsense(cluster: Cluster):
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": "nonsense"},
    }
    reply = await cluster.call("POST", REVIEW, body)
    assert reply.code == 201
    assert "authenticated" not in reply.json["status"]
    assert reply.json["status"]["error"]


async def review(cluster, user, **what):
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, **what},
    }
    reply = await cluster.call("POST", ACCESS, body)
    assert reply.code == 201
    return reply.json["status"]


async def test_an_access_review_of_a_path(cluster: Cluster, fake):
    fake.token("prometheus", [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}])
    what = {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}
    assert (await review(cluster, "prometheus", **what))["allowed"] is True
    assert (await review(cluster, "other", **what))["allowed"] is False


async def test_an_access_review_of_a_resource(cluster: Cluster, fake):
    fake.token("reader", [POOL_READER], cluster.namespace)
    what = {
        "verb": "list",
        "group": "inference.networking.k8s.io",
        "resource": "inferencepools",
        "namespace": cluster.namespace,
    }
    assert (await review(cluster, "reader", resourceAttributes=what))["allowed"] is True
    what["verb"] = "delete"
    assert (await review(cluster, "reader", resourceAttributes=what))["allowed"] is False


async def test_an_access_review_of_nobody(cluster: Cluster):
    what = {"verb": "list", "resource": "pods", "namespace": cluster.namespace}
    assert (await review(cluster, "nobody", resourceAttributes=what))["allowed"] is False


async def test_reviews_are_not_listed(cluster: Cluster):
    assert (await cluster.call("GET", REVIEW)).code == 405
