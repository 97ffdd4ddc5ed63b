"""A policy over a fleet in virtual time: requests that arrive by chance, and what answers them."""

import random
from functools import partial

from epp.config.file import POLICIES, load
from epp.model.endpoint import EndpointId
from epp.model.events import Ejected, EndpointUpserted
from epp.model.fleet import Fleet
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.request import RequestId
from epp.policy.scheduler import Scheduler
from epp.replay.simulation.clock import Clock
from tests.policy.routing import routed
from tests.strategies import SECRET, endpoint, request


class Traffic:
    """`pods` endpoints, and prompts of `tokens` that no two requests share."""

    def __init__(self, policy, *, pods=8, tokens=64, seed=0):
        self.chance = random.Random(seed)  # noqa: S311 (chance, not secrets)
        self.clock = Clock()
        self.fleet = Fleet(BlockHasher(SECRET))
        scheduling = load(POLICIES[policy]).scheduling
        self.scheduler = Scheduler(self.fleet, scheduling, self.chance.randrange)
        self.tokens = tokens
        self.sent = 0
        self.ejected: list[EndpointId] = []
        self.fleet.subscribe((Ejected,), lambda event, *_: self.ejected.append(event.endpoint_id))
        self.running = {}
        for number in range(pods):
            each = endpoint(f"pod-{number}", f"10.0.0.{number + 1}")
            self.apply(EndpointUpserted(each))
            self.running[each.id] = 0

    def apply(self, event):
        self.fleet.apply(event, self.clock.now)

    def after(self, seconds, do, *arguments):
        self.clock.at(self.clock.now + seconds, partial(do, *arguments))

    def about(self, seconds):
        return seconds * self.chance.uniform(0.7, 1.3)

    def arrive(self, rate, until, answer):
        """Have requests arrive; `answer(id, endpoint_id, stream)` has them answered."""
        if self.clock.now < until:
            self.send(answer)
            self.after(self.chance.expovariate(rate), self.arrive, rate, until, answer)

    def send(self, answer, *, stream=True):
        identity = RequestId(f"r{self.sent}")
        self.sent += 1
        ids = [self.chance.randrange(1 << 30) for _ in range(self.tokens)]
        asked = request(identity, ids, stream=stream)
        answer(identity, routed(self.scheduler, asked, self.clock.now).endpoint.id)

    def watch(self, until, look):
        """Return what `look()` gives every half second."""
        seen = []

        def sample():
            seen.append((self.clock.now, look()))
            self.after(0.5, sample)

        sample()
        self.clock.run(lambda: self.clock.now >= until)
        return seen
