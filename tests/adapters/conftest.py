"""Fixtures of the tests of adapters; those of the ext_proc transports run on each of them."""

from functools import partial

import pytest

from epp.adapters.extproc.transports import server_class
from tests.adapters.ext_proc_peer import Director, serving
from tests.adapters.raw_peer import greeted
from tests.held_port import held_port
from tests.native.built import needs_native


@pytest.fixture(params=["grpcio", pytest.param("native", marks=needs_native)])
def transport(request):
    """The class of a server."""
    return server_class(request.param)


@pytest.fixture
def serve(transport):
    return partial(serving, transport)


@pytest.fixture
def port():
    with held_port() as free:
        yield free


@pytest.fixture
def director():
    return Director()


@pytest.fixture
async def served(serve, director):
    async with serve(director) as made:
        yield made


@pytest.fixture
def server(served):
    return served[0]


@pytest.fixture
def channel(served):
    return served[1]


@pytest.fixture
async def peer(server):
    """A peer that speaks HTTP/2 in frames, on the native transport."""
    async with greeted(server) as made:
        yield made
