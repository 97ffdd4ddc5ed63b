"""A fleet over simulated engines on one clock: it decides, they serve, publish and report.

The engines are the simulator's own scheduler and block pool; its KV events take the way of the
wire, from their encoding to the fleet. Prompts go to the fleet as token ids or as text.
"""

import random
from array import array
from dataclasses import dataclass
from itertools import chain, repeat
from string import ascii_letters

import msgspec
from model_server.simulator.kv_events import Batch, EventLog
from model_server.simulator.scheduler import Request, Scheduler, Token
from model_server.simulator.settings import Limits

from epp.model.endpoint import EndpointId, Load
from epp.model.events import EndpointUpserted, LoadReported
from epp.model.fleet import Fleet
from epp.model.kv_changes import CacheChanged, CacheFeedUp
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.request import RequestId, Usage
from epp.model.request_events import Admitted, Finished, FirstToken
from tests.kvpublisher import WholeBatch, read_batch
from tests.strategies import SECRET, endpoint, request

BLOCK = 16
STEP = 0.02
TOKENS = 52**2
_WORDS = [f"{first}{second}o " for second in ascii_letters for first in ascii_letters]


def written(tokens):
    """The text of token ids: four bytes each."""
    return "".join([_WORDS[token] for token in tokens])


class SimulatedPod:
    """One engine of `blocks` blocks; `events` is whether it publishes them."""

    def __init__(self, name, address, blocks, *, events):
        self.endpoint = endpoint(name, address)
        self.log = EventLog(BLOCK) if events else None
        self.engine = Scheduler(Limits(num_gpu_blocks=blocks), self.log)
        self.sent = {}

    def send(self, identity, tokens, answer):
        source = chain(map(Token, answer, repeat("")))
        made = Request(array("I", tokens), len(answer), source)
        self.sent[id(made)] = (identity, made)
        self.engine.add(made)

    def step(self):
        """Compute a step: what was sampled by request, and the changes of the cache."""
        sampled = self.engine.complete(self.engine.schedule())
        return [(self.sent[id(each.request)][0], each) for each in sampled], self.changes()

    def changes(self):
        """Publish what changed in the cache, and read it."""
        if self.log is None:
            return ()
        batch = read_batch(msgspec.msgpack.encode(Batch(0.0, self.log.take())), "m")
        assert isinstance(batch, WholeBatch)
        return batch.changes


@dataclass
class Measured:
    """Tokens of prompts, of these cached, and by how many the predictions were off."""

    prompts: int = 0
    cached: int = 0
    errors: int = 0

    @property
    def share(self):
        return self.cached / self.prompts

    @property
    def error(self):
        return self.errors / self.prompts


class Conversations:
    """Conversations that share system prompts and go on at random, each message after its answer.

    `alive` of them go on at a time.
    """

    def __init__(self, seed, alive):
        self.random = random.Random(seed)  # noqa: S311 (traffic)
        self.systems = [self.fresh(300, 600) for _ in range(6)]
        self.waiting = [self.begin() for _ in range(alive)]

    def fresh(self, least, most):
        return [self.random.randrange(TOKENS) for _ in range(self.random.randrange(least, most))]

    def begin(self):
        return self.random.choice(self.systems)

    def next(self):
        """The next prompt and its answer, None where all wait for answers."""
        if not self.waiting:
            return None
        before = self.waiting.pop(self.random.randrange(len(self.waiting)))
        return before + self.fresh(40, 200), self.fresh(20, 120)

    def answered(self, tokens):
        self.waiting.append(tokens if len(tokens) < 2500 else self.begin())


class SimulatedFleet:
    """`pods` engines of `blocks` blocks each, and the fleet that knows them."""

    def __init__(self, *, events, pods=3, blocks=1200, seed=1, alive=48):
        self.now, self.number = 1000.0, 0
        self.fleet = Fleet(BlockHasher(SECRET))
        self.traffic = Conversations(seed, alive)
        self.pods = {}
        self.open = {}
        for number in range(pods):
            pod = SimulatedPod(f"pod-{number}", f"10.0.0.{number + 1}", blocks, events=events)
            identity = pod.endpoint.id
            self.pods[identity] = pod
            self.apply(EndpointUpserted(pod.endpoint))
            load = Load(block_size=BLOCK, num_blocks=blocks, started_at=1.0)
            self.apply(LoadReported(identity, load))
            if events:
                self.apply(CacheFeedUp(identity, complete=True))

    def apply(self, event):
        self.fleet.apply(event, self.now)

    def pod(self, number=0):
        return self.fleet.pods[EndpointId(f"default/pod-{number}")]

    def play(self, requests, *, exact):
        """Send so many requests, as token ids or as text, to their end; measure them."""
        measured, left = Measured(), requests
        while left or self.open:
            if left and self.traffic.random.random() < 0.3 and self.send(exact=exact):
                left -= 1
            self.now += STEP
            for identity, pod in self.pods.items():
                self.advance(identity, pod, measured)
        return measured

    def send(self, *, exact):
        drawn = self.traffic.next()
        if drawn is None:
            return False
        tokens, answer = drawn
        self.number += 1
        identity = RequestId(str(self.number))
        words = tokens if exact else written(tokens)
        quote = self.fleet.quote(request(identity, words), self.now)
        found = self.fleet.candidates(quote, self.now)
        best = min(found, key=lambda each: (-each.cached_tokens, each.requests))
        self.apply(Admitted(quote, best.endpoint.id))
        self.open[identity] = (self.fleet.in_flight[identity].cached, tokens, answer)
        self.pods[best.endpoint.id].send(identity, tokens, answer)
        return True

    def advance(self, endpoint_id, pod, measured):
        sampled, changes = pod.step()
        if changes:
            self.apply(CacheChanged(endpoint_id, changes))
        for identity, output in sampled:
            if output.first:
                self.apply(FirstToken(identity))
            if output.finish is not None:
                predicted, tokens, answer = self.open.pop(identity)
                cached = output.request.cached_tokens
                measured.prompts += len(tokens)
                measured.cached += cached
                measured.errors += abs(predicted - cached)
                self.apply(Finished(identity, Usage(len(tokens), len(answer), cached)))
                self.traffic.answered(tokens + answer)
