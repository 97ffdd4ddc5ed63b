"""The official Python client as a second reader, which knows nothing of this project."""

import asyncio
from typing import Any

import pytest
from kubernetes import aio

from tests.kubeapi.tests.cluster import lease, pod, pool

GROUP = "inference.networking.k8s.io"


@pytest.fixture
async def async_client(api, tmp_path):
    path = str(api.kubeconfig(tmp_path / "kubeconfig"))
    async with await aio.config.new_client_from_config(path) as client:
        yield client


async def test_lease_conflict(async_client):
    leases: Any = aio.client.CoordinationV1Api(async_client)
    made: Any = await leases.create_namespaced_lease("default", lease())
    made.spec.holder_identity = "first"
    await leases.replace_namespaced_lease("a", "default", made)
    made.spec.holder_identity = "second"
    with pytest.raises(aio.client.ApiException) as caught:
        await leases.replace_namespaced_lease("a", "default", made)
    assert caught.value.status == 409


async def test_custom_objects(async_client):
    custom: Any = aio.client.CustomObjectsApi(async_client)
    place = (GROUP, "v1", "default", "inferencepools")
    made = await custom.create_namespaced_custom_object(*place, pool())
    assert made["spec"]["appProtocol"] == "http"
    found = await custom.list_namespaced_custom_object(*place)
    assert [each["metadata"]["name"] for each in found["items"]] == ["a"]
    with pytest.raises(aio.client.ApiException) as caught:
        await custom.create_namespaced_custom_object(*place, pool("b", targetPorts=[]))
    assert caught.value.status == 422


async def test_watch(api, async_client):
    core: Any = aio.client.CoreV1Api(async_client)
    seen = []

    async def work():
        async with aio.watch.Watch() as watch:
            async for event in watch.stream(core.list_namespaced_pod, "default"):
                seen.append((event["type"], event["object"].metadata.name))
                if len(seen) == 2:
                    return

    waiting = asyncio.create_task(work())
    await api.asked(lambda ask: ask.verb == "watch")
    api.put(pod("a"))
    api.put(pod("b"))
    await asyncio.wait_for(waiting, 20)
    assert seen == [("ADDED", "a"), ("ADDED", "b")]


async def test_pages(api, async_client):
    core: Any = aio.client.CoreV1Api(async_client)
    for number in range(5):
        api.put(pod(f"p{number}"))
    first = await core.list_namespaced_pod("default", limit=3)
    assert (len(first.items), first.metadata.remaining_item_count) == (3, 2)
    token = first.metadata._continue
    second = await core.list_namespaced_pod("default", limit=3, _continue=token)
    assert [each.metadata.name for each in second.items] == ["p3", "p4"]


async def test_reviews(api, async_client):
    token = api.token("prometheus", [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}])
    review = aio.client.V1TokenReview(spec=aio.client.V1TokenReviewSpec(token=token))
    answer: Any = await aio.client.AuthenticationV1Api(async_client).create_token_review(review)
    assert (answer.status.authenticated, answer.status.user.username) == (True, "prometheus")
    spec = aio.client.V1SubjectAccessReviewSpec(
        user="prometheus",
        non_resource_attributes=aio.client.V1NonResourceAttributes(path="/metrics", verb="get"),
    )
    access = aio.client.V1SubjectAccessReview(spec=spec)
    allowed: Any = await aio.client.AuthorizationV1Api(async_client).create_subject_access_review(
        access
    )
    assert allowed.status.allowed is True
