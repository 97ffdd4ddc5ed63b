"""Fixtures of the tests of the ext_proc transport."""

import pytest

from tests.adapters.ext_proc_peer import Director, serving


@pytest.fixture
def director():
    return Director()


@pytest.fixture
async def served(director):
    async with serving(director) as made:
        yield made


@pytest.fixture
def server(served):
    return served[0]


@pytest.fixture
def channel(served):
    return served[1]
