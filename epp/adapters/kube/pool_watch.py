"""Follows one InferencePool and the pods that it selects."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NoReturn

from epp.adapters.kube.api_connection import ApiConnection
from epp.adapters.kube.kube_settings import ReflectorSettings
from epp.adapters.kube.reflector import Reflector, Sink
from epp.protocol.kube import resources
from epp.protocol.kube.objects import AnyPool, KubePod
from epp.protocol.kube.pool_state import PoolState, Selector
from epp.protocol.kube.resources import Selection


class PoolWatch:
    """Updates `state` from the API; calls `wake` after every update."""

    def __init__(
        self,
        connection: ApiConnection,
        namespace: str,
        state: PoolState,
        wake: Callable[[], None],
        settings: ReflectorSettings,
    ) -> None:
        self._connection = connection
        self._namespace = namespace
        self._state = state
        self._wake = wake
        self._settings = settings
        self._selector_changed = asyncio.Event()

    async def follow_pool(self, name: str, group: str) -> NoReturn:
        """Follow the pool of that name and API group until cancelled."""
        sink = Sink(
            upsert=partial(self._set_pool, name),
            remove=partial(self._remove_pool, name),
            retain=partial(self._retain_pool, name),
        )
        resource, selection = resources.pools(self._namespace, group), Selection(name=name)
        await Reflector(self._connection, resource, selection, sink, self._settings).run()

    def _set_pool(self, name: str, pools: Sequence[AnyPool]) -> None:
        for pool in pools:
            if pool.metadata.name == name:
                self._change(partial(self._state.set_pool, pool))

    def _remove_pool(self, name: str, names: Sequence[str]) -> None:
        if name in names:
            self._change(self._state.remove_pool)

    def _retain_pool(self, name: str, names: Collection[str]) -> None:
        if name not in names:
            self._change(self._state.remove_pool)

    def _change(self, change: Callable[[], None]) -> None:
        before = self._state.selector
        change()
        if self._state.selector is not before:
            self._selector_changed.set()
        self._wake()

    async def follow_pods(self) -> NoReturn:
        """Follow the selected pods until cancelled; list them again when the selector changes."""
        while True:
            self._selector_changed.clear()
            selector = self._state.selector
            if selector is None:
                await self._selector_changed.wait()
                continue
            pods = asyncio.create_task(self._reflector(selector).run(), name="pods")
            reselect = asyncio.create_task(self._selector_changed.wait(), name="selector")
            try:
                await asyncio.wait((pods, reselect), return_when=asyncio.FIRST_COMPLETED)
            finally:
                await _end(reselect, pods)

    def _reflector(self, selector: Selector) -> Reflector[KubePod]:
        state = self._state
        sink = Sink(
            upsert=partial(self._update, selector, state.upsert_pods),
            remove=partial(self._update, selector, state.remove_pods),
            retain=partial(self._update, selector, state.retain_pods),
        )
        resource, selection = resources.pods(self._namespace), Selection(labels=selector)
        return Reflector(self._connection, resource, selection, sink, self._settings)

    def _update(self, selector: Selector, update: Callable[[Any], None], pods: object) -> None:
        """Apply an update of pods, unless the pool selects others since."""
        if selector is self._state.selector:
            update(pods)
            self._wake()


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for them; raises what one failed with.

    If they were awaited directly, their cancellation would look like the caller's.
    """
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()
