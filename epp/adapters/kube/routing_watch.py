"""Follows the objectives and rewrites of a namespace, in both groups, where they are installed."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from epp.adapters.kube.api_connection import ApiConnection
from epp.adapters.kube.kube_settings import ReflectorSettings
from epp.adapters.kube.reflector import Reflector, Sink
from epp.protocol.kube import resources
from epp.protocol.kube.resources import OBJECT_GROUPS, Resource, Selection
from epp.protocol.kube.routing_state import PoolObjects, RoutingState


class RoutingWatch:
    """Feeds `state`, and calls `wake` whenever it may have changed.

    `complete` once the API has listed every kind or said why it does not.
    """

    def __init__(
        self,
        connection: ApiConnection,
        namespace: str,
        state: RoutingState,
        wake: Callable[[], None],
        pace: ReflectorSettings,
    ) -> None:
        self.complete = False
        self._connection = connection
        self._state = state
        self._wake = wake
        self._pace = pace
        self._reflectors = [
            reflector
            for group in OBJECT_GROUPS
            for reflector in (
                self._reflector(resources.objectives(namespace, group), state.objectives),
                self._reflector(resources.rewrites(namespace, group), state.rewrites),
            )
        ]

    async def run(self) -> NoReturn:
        """Keep up with all of them."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run())
            for reflector in self._reflectors:
                await reflector.answered.wait()
            self.complete = True
            self._wake()
        raise RuntimeError("following a resource never ends")

    def _reflector(self, resource: Resource[Any], kept: PoolObjects[Any]) -> Reflector[Any]:
        sink = Sink[Any](
            put=partial(self._told, resource.group, kept.put),
            gone=partial(self._told, resource.group, kept.gone),
            listed=partial(self._told, resource.group, kept.listed),
        )
        return Reflector(self._connection, resource, Selection(), sink, self._pace)

    def _told(self, group: str, take: Callable[[str, Any], None], what: object) -> None:
        take(group, what)
        self._wake()
