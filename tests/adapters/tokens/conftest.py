"""What tests of tokenization share."""

import time

import pytest

from epp.adapters.tokens.render.render_server import RenderSettings
from epp.adapters.tokens.render.render_tokenizer import RenderTokenizer
from tests.adapters.tokens.rendering import serving


@pytest.fixture
async def server():
    async with serving() as made:
        yield made


@pytest.fixture
async def ask():
    """Make tokenizers that ask a server; they are closed in the end."""
    made = []

    def make(server, now=time.monotonic, **settings):
        made.append(RenderTokenizer(RenderSettings(url=server.url, **settings), now))
        return made[-1]

    yield make
    for each in made:
        await each.close()
