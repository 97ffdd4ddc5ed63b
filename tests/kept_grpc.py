"""Keeps grpc.aio running as long as tests do.

Its thread ends with its last object. Where a child that was just forked collects that as garbage,
it joins a thread that the child does not have, for ever, and so waits who started it.
"""

from collections.abc import Iterator

import grpc.aio
import pytest


@pytest.fixture(scope="session", autouse=True)
def kept_grpc() -> Iterator[None]:
    """Start it, and end it after the last test."""
    grpc.aio.init_grpc_aio()
    yield
    grpc.aio.shutdown_grpc_aio()
