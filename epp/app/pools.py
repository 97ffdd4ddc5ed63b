"""Runs a picker for each pool, in one process and one event loop."""

import asyncio
from collections.abc import Sequence

import structlog
from msgspec.structs import replace

from epp.app.jobs import first_error
from epp.app.options import ServeOptions
from epp.app.picker import EndpointPicker
from epp.app.process import (
    collect_garbage,
    give_back_freed_memory,
    short_switch_interval,
    stop_signals,
)
from epp.errors import ConfigError
from epp.system.logs import Log
from epp.system.memory import keep_freed_memory

_log = Log(__name__)


async def serve(pools: Sequence[ServeOptions]) -> None:
    """Run a picker for each pool until SIGTERM, SIGINT or SIGHUP. Raises `ConfigError`."""
    keep_freed_memory()
    stop = asyncio.Event()
    with stop_signals(stop), short_switch_interval():
        try:
            async with asyncio.TaskGroup() as tasks:
                kept_small = [
                    tasks.create_task(each(), name=each.__name__)
                    for each in (collect_garbage, give_back_freed_memory)
                ]
                pickers = [
                    tasks.create_task(_serve(options, stop, named=len(pools) > 1))
                    for options in sharing(pools)
                ]
                await asyncio.gather(*pickers)
                for each in kept_small:
                    each.cancel()
        except* ConfigError as group:
            raise first_error(group) from None


def sharing(pools: Sequence[ServeOptions]) -> list[ServeOptions]:
    """Return the options of pools that share the memory of one process."""
    return [replace(each, sharers=each.sharers * len(pools)) for each in pools]


async def _serve(options: ServeOptions, stop: asyncio.Event, *, named: bool) -> None:
    if named:
        structlog.contextvars.bind_contextvars(pool=options.pool_name)
    for warning in options.settings.warnings if options.worker is None else ():
        _log.warning("config.warning", warning=warning)
    await EndpointPicker(options).run(stop)
