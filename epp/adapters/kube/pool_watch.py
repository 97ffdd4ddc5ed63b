"""Follows one pool and the pods that it selects."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from epp.adapters.kube.api_connection import ApiConnection
from epp.adapters.kube.kube_settings import ReflectorSettings
from epp.adapters.kube.reflector import Reflector, Sink
from epp.protocol.kube import resources
from epp.protocol.kube.objects import InferencePool, KubePod
from epp.protocol.kube.pool_state import PoolState, Selector
from epp.protocol.kube.resources import Selection


class PoolWatch:
    """Feeds `state`, and calls `wake` whenever it may have changed."""

    def __init__(
        self,
        connection: ApiConnection,
        namespace: str,
        state: PoolState,
        wake: Callable[[], None],
        pace: ReflectorSettings,
    ) -> None:
        self._connection = connection
        self._namespace = namespace
        self._state = state
        self._wake = wake
        self._pace = pace
        self._selected = asyncio.Event()

    async def follow_pool(self, name: str) -> NoReturn:
        """Keep up with the pool of that name."""
        sink = Sink(put=self._pool_is, gone=self._pool_gone, listed=self._pool_listed)
        resource, selection = resources.pools(self._namespace), Selection(name=name)
        await Reflector(self._connection, resource, selection, sink, self._pace).run()

    def _pool_is(self, pools: Sequence[InferencePool]) -> None:
        for pool in pools:
            self._select(partial(self._state.pool_is, pool))

    def _pool_gone(self, _: Sequence[str]) -> None:
        self._select(self._state.pool_gone)

    def _pool_listed(self, names: Collection[str]) -> None:
        if not names:
            self._select(self._state.pool_gone)

    def _select(self, change: Callable[[], None]) -> None:
        before = self._state.selector
        change()
        if self._state.selector is not before:
            self._selected.set()
        self._wake()

    async def follow_pods(self) -> NoReturn:
        """Keep up with the pods that are selected, anew whenever others are."""
        while True:
            self._selected.clear()
            selector = self._state.selector
            if selector is None:
                await self._selected.wait()
                continue
            pods = asyncio.create_task(self._reflector(selector).run(), name="pods")
            reselect = asyncio.create_task(self._selected.wait(), name="selector")
            try:
                await asyncio.wait((pods, reselect), return_when=asyncio.FIRST_COMPLETED)
            finally:
                await _end(reselect)
                await _end(pods)

    def _reflector(self, selector: Selector) -> Reflector[KubePod]:
        state = self._state
        sink = Sink(
            put=partial(self._told, selector, state.pods_are),
            gone=partial(self._told, selector, state.pods_gone),
            listed=partial(self._told, selector, state.pods_listed),
        )
        resource, selection = resources.pods(self._namespace), Selection(labels=selector)
        return Reflector(self._connection, resource, selection, sink, self._pace)

    def _told(self, selector: Selector, take: Callable[[Any], None], what: object) -> None:
        """Take in what is said of pods, unless others are selected by now."""
        if selector is self._state.selector:
            take(what)
            self._wake()


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel a task; raise what it failed with."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
