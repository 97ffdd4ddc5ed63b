"""A watch of a pool's pods that is cancelled while it ends for another reason."""

import asyncio

import pytest

from epp.adapters.kube.pool_watch import PoolWatch
from epp.protocol.kube.object_warnings import ObjectWarnings
from epp.protocol.kube.pool_state import PoolState
from tests.adapters.kube.rig import QUICK, pod
from tests.protocol.kube.objects import pool
from tests.tasks import Changed

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
