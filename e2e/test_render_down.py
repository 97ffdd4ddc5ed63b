"""KV events of a simulator while the render endpoint is down: prompts come as text, and back."""

import contextlib
import random
import time

import pytest_asyncio

from e2e.kv_engine import BLOCK, BLOCKS, Followed, listening, running, simulator
from epp.adapters.tokens.fallback import FallbackCause
from epp.adapters.tokens.render.render_server import RenderSettings
from epp.adapters.tokens.render.render_tokenizer import RenderTokenizer
from epp.model.endpoint import Load
from epp.model.events import EndpointUpserted, LoadReported
from epp.model.fleet import Fleet
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.request import Usage
from epp.model.request_events import Admitted, Finished
from epp.values import replaced
from tests.adapters.tokens.bodies import completions
from tests.adapters.tokens.rendering import COMPLETIONS, serving
from tests.model.invariants import check_invariants
from tests.strategies import SECRET

CONVERSATIONS = 5
TURNS = 4
ANSWER = 20


def written(tokens):
    """Return the text of token ids of three digits: four bytes each."""
    return "".join(f"{token} " for token in tokens)


def read(text):
    return [int(word) for word in text.split()]


class Picker(Followed):
    """A fleet of one endpoint that KV events are taken in for."""

    def __init__(self, model):
        super().__init__(model)
        self.fleet = Fleet(BlockHasher(SECRET, BLOCK))
        self.tell(EndpointUpserted(self.endpoint))
        self.tell(LoadReported(self.endpoint.id, Load(block_size=BLOCK, num_blocks=BLOCKS)))

    def tell(self, event):
        self.fleet.apply(event, time.monotonic())

    def apply(self, event):
        super().apply(event)
        self.tell(event)


class Phase:
    """Some conversations to their end, each prompt sent when all before it is known."""

    def __init__(self, picker, engine, tokenizer, seed):
        self.picker, self.engine, self.tokenizer = picker, engine, tokenizer
        self.random = random.Random(seed)
        self.compared = []

    async def play(self, said):
        """Ask so many turns of conversations; return the predicted and the cached tokens of each.

        What is answered does not come back, as reasoning does not.
        """
        for _ in range(TURNS):
            for tokens in said:
                tokens += [self.random.randrange(100, 1000) for _ in range(70)]
                await self.ask(tokens)
        return self.compared

    async def ask(self, tokens):
        picker = self.picker
        asked = completions(written(tokens))
        prompts = self.tokenizer.ready(asked) or await self.tokenizer.tokenize(asked)
        asked = replaced(asked, prompts=prompts, model=picker.model, target_model=picker.model)
        await picker.synced()
        quote = picker.fleet.quote(asked, time.monotonic())
        (candidate,) = picker.fleet.candidates(quote, time.monotonic())
        picker.tell(Admitted(quote, picker.endpoint.id))
        usage = (await self.engine.ask(tokens, ANSWER))["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self.compared.append((candidate.cached_tokens, cached))
        picker.tell(Finished(asked.id, Usage(len(tokens), usage["completion_tokens"], cached)))


@contextlib.asynccontextmanager
async def rendering(*, up=True):
    """A tokenizer that asks a render endpoint, which is gone where it is not `up`."""
    async with serving() as server:
        server.answers[COMPLETIONS] = lambda body: (200, [{"token_ids": read(body["prompt"])}])
        tokenizer = RenderTokenizer(RenderSettings(url=server.url))
        if up:
            yield tokenizer
    if not up:
        yield tokenizer
    await tokenizer.close()


@pytest_asyncio.fixture(loop_scope="module")
async def picker():
    async with listening(Picker("sim-model")) as made:
        yield made


def begun(first):
    return [[first + number] * BLOCK for number in range(CONVERSATIONS)]


async def test_text_is_predicted_beside_events_and_tokens_exactly_afterwards(picker, tmp_path):
    said = begun(200)
    async with running(picker, simulator(picker.model, picker.ports), tmp_path) as engine:
        async with rendering() as tokenizer:
            await Phase(picker, engine, tokenizer, 1).play(begun(100))
        async with rendering(up=False) as tokenizer:
            text = await Phase(picker, engine, tokenizer, 2).play(said)
            assert tokenizer.counts == {FallbackCause.UNAVAILABLE: len(text)}
        async with rendering() as tokenizer:
            again = await Phase(picker, engine, tokenizer, 3).play(said)
        check_invariants(picker.fleet)
    # Text is cut at other places than blocks of token ids, by less than one of these.
    assert all(abs(predicted - cached) <= BLOCK for predicted, cached in text)
    assert sum(cached for _, cached in text) > 0
    # What the engine stored for text is found by its tokens at once, in each conversation.
    turn = again[:CONVERSATIONS]
    assert all(predicted == cached > 0 for predicted, cached in turn)
