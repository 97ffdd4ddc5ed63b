"""Watches of a pool: one that is cancelled while it ends, and one that sees other pools too."""

import asyncio

import pytest

from epp.adapters.kube.pool_watch import PoolWatch
from epp.model.events import EndpointUpserted
from epp.protocol.kube.object_warnings import ObjectWarnings
from epp.protocol.kube.pool_state import PoolState
from tests.adapters.kube.rig import QUICK, connected, pod, watched
from tests.kubeapi import faults
from tests.kubeapi.answers import Answer, of_json
from tests.protocol.kube.objects import LABELS, pool
from tests.tasks import Changed, running

TURNS = range(8)
"""Turns of the event loop between the two; ending takes some."""


@pytest.mark.parametrize("turns", TURNS)
async def test_a_watch_that_is_cancelled_as_its_pool_goes_ends(api, connection, turns):
    state, changed = PoolState(ObjectWarnings()), Changed()
    watch = PoolWatch(connection, "default", state, changed, QUICK)
    api.put(pool())
    api.put(pod("a"))
    group = "inference.networking.k8s.io"
    following = asyncio.create_task(watch.follow_pool("pool", group))
    pods = asyncio.create_task(watch.follow_pods())
    await changed.until(lambda: state.complete)
    api.delete("InferencePool", "pool", group=group)
    await changed.until(lambda: state.selector is None)
    for _ in range(turns):
        await asyncio.sleep(0)
    for task in (pods, following):
        task.cancel()
    ended, running = await asyncio.wait((pods, following), timeout=10)
    assert not running
    assert all(task.cancelled() for task in ended)


async def test_other_pools_of_a_server_that_ignores_field_selectors_do_not_count(api, connection):
    state, changed, selectors = PoolState(ObjectWarnings()), Changed(), []

    def wake():
        selectors.append(state.selector)
        changed()

    watch = PoolWatch(connection, "default", state, wake, QUICK)
    own, other = pool(), pool("other", labels={"app": "other"})
    listed = {"metadata": {"resourceVersion": "1"}, "items": [own, other]}
    events = [("ADDED", other), ("MODIFIED", other), ("DELETED", other), ("MODIFIED", own)]
    lines = b"".join(of_json({"type": kind, "object": each}).body for kind, each in events)
    for verb, body in (("list", of_json(listed).body), ("watch", lines)):
        api.fail(faults.answering(Answer(body=body)), verb=verb, resource="inferencepools")
    async with running(watch.follow_pool("pool", "inference.networking.k8s.io")):
        await changed.until(lambda: len(selectors) > 1)
    assert selectors[:2] == [LABELS, LABELS]


async def test_pods_that_the_pool_selects_no_longer_do_not_count(api, connection):
    state, changed = PoolState(ObjectWarnings()), Changed()
    upserted: list[str] = []

    def wake():
        events = state.drain_events()
        upserted.extend(each.endpoint.pod for each in events if isinstance(each, EndpointUpserted))
        if upserted:
            state.select({"app": "other"}, (8000,))
        changed()

    watch = PoolWatch(connection, "default", state, wake, QUICK)
    state.select(LABELS, (8000,))
    async with running(watch.follow_pods()):
        await watched(api)
        for name in "ab":  # in one chunk, which is passed on in one turn
            api.put(pod(name))
        await changed.until(lambda: upserted)
    assert upserted == ["a"]


async def test_what_a_watch_fails_with_is_raised(api, tmp_path):
    user = {"token": "two\nlines"}
    async with connected(api, tmp_path, **user) as connection:
        state = PoolState(ObjectWarnings())
        state.select(LABELS, (8000,))
        watch = PoolWatch(connection, "default", state, print, QUICK)
        with pytest.raises(ValueError, match="header injection"):
            await asyncio.wait_for(watch.follow_pods(), 10)
