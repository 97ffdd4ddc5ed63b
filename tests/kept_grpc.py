"""Keeps grpc.aio running as long as tests do.

Its thread ends with its last object. Where a child that was just forked collects that as garbage,
it joins a thread that the child does not have, for ever, and so waits who started it.
"""

import asyncio
from collections.abc import Iterator
from contextlib import closing

import grpc.aio
import pytest


@pytest.fixture(scope="session", autouse=True)
def kept_grpc() -> Iterator[None]:
    """Start it, and end it after the last test."""
    # In a loop of its own: the thread has none after an earlier test called `asyncio.run`.
    with closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(_start())
        yield
        grpc.aio.shutdown_grpc_aio()


async def _start() -> None:
    grpc.aio.init_grpc_aio()
