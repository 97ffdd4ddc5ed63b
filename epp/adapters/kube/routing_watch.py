"""Follows the InferenceObjectives and InferenceModelRewrites of a namespace, in all versions."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from epp.adapters.kube.api_connection import ApiConnection
from epp.adapters.kube.kube_settings import ReflectorSettings
from epp.adapters.kube.reflector import Reflector, Sink
from epp.protocol.kube import resources
from epp.protocol.kube.resources import (
    OBJECTIVE_VERSIONS,
    REWRITE_VERSIONS,
    Resource,
    Selection,
)
from epp.protocol.kube.routing_state import PoolObjects, RoutingState


class RoutingWatch:
    """Updates `state` from the API; calls `wake` after every update.

    `complete` is set once the API has listed every kind, or there is no more waiting for it
    (`Reflector.answered`).
    """

    def __init__(
        self,
        connection: ApiConnection,
        namespace: str,
        state: RoutingState,
        wake: Callable[[], None],
        settings: ReflectorSettings,
    ) -> None:
        self.complete = False
        self._connection = connection
        self._wake = wake
        self._settings = settings
        self._reflectors = [
            self._reflector(resources.objectives(namespace, version), state.objectives)
            for version in OBJECTIVE_VERSIONS
        ] + [
            self._reflector(resources.rewrites(namespace, version), state.rewrites)
            for version in REWRITE_VERSIONS
        ]

    async def run(self) -> NoReturn:
        """Follow all kinds until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run())
            for reflector in self._reflectors:
                await reflector.answered.wait()
            self.complete = True
            self._wake()
        raise RuntimeError("following a resource never ends")

    def _reflector(self, resource: Resource[Any], objects: PoolObjects[Any]) -> Reflector[Any]:
        version = resource.api_version
        sink = Sink[Any](
            upsert=partial(self._update, version, objects.upsert),
            remove=partial(self._update, version, objects.remove),
            retain=partial(self._update, version, objects.retain),
        )
        return Reflector(self._connection, resource, Selection(), sink, self._settings)

    def _update(self, version: str, update: Callable[[str, Any], None], objects: object) -> None:
        update(version, objects)
        self._wake()
