"""A handler of hang-ups below those that are tested: without one they end the tests."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def hangups() -> Iterator[list[int]]:
    """Those that nobody takes."""
    unheard: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _: unheard.append(number))
    yield unheard
    signal.signal(signal.SIGHUP, before)
