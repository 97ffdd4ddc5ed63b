"""A scheduler over a fleet that decides by one plug-in, as a file would have it."""

from typing import Any

import msgspec

from epp.config.file import load
from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved
from epp.model.request import RequestId
from epp.model.request_events import Finished, FirstToken
from epp.policy.scheduler import Scheduler
from tests.model.rig import Rig
from tests.policy.routing import routed
from tests.strategies import request

BLOCK = 16
"""Tokens of a block of token ids."""


def known_nodes(tree):
    """Return how many nodes of a tree any endpoint has, without its root."""
    waiting, count = [*tree._root.children.values()], 0
    while waiting:
        node = waiting.pop()
        waiting += node.children.values()
        count += bool(node.endpoints)
    return count


class Desk:
    """Pods pod-0, pod-1, ... and a plug-in of a type with its parameters; the first of ties wins.

    `picker` is a type beside a scorer's. Requests go on until `end`.
    """

    def __init__(self, kind, pods=3, picker="max-score-picker", below=None, **parameters):
        self.rig = Rig(0)
        plugins = [{"type": kind, "parameters": parameters}]
        if picker:
            plugins.append({"type": picker})
        config = msgspec.json.encode({"plugins": plugins}).decode()
        below = below or (lambda _: 0)
        settings = load(config, below=below)
        self.scorer: Any = None
        if settings.scheduling.profile.scorers:
            self.scorer = settings.scheduling.profile.scorers[0].scorer
        self.scheduler = Scheduler(self.rig.fleet, settings.scheduling, below)
        self.numbers = iter(range(10**6))
        for number in range(pods):
            self.rig.add(f"pod-{number}", f"10.0.0.{number + 1}")

    def decide(self, *prompts, **more):
        """Decide on a request that is not sent."""
        asked = request("asked", *prompts, **more)
        quote = self.scheduler.quote(asked, self.rig.now)
        return self.scheduler.decide(asked, quote, self.rig.now)

    def scores(self, *prompts, **more):
        """Return the plug-in's scores by pod."""
        decision = self.decide(*prompts, **more)
        (scores,) = decision.scores
        names = [each.endpoint.name for each in decision.candidates]
        return dict(zip(names, scores.values, strict=True))

    def best(self, *prompts, **more):
        """Return the numbers of the pods that score the most."""
        scores = self.scores(*prompts, **more)
        top = max(scores.values())
        return [int(name.removeprefix("pod-")) for name, score in scores.items() if score == top]

    def hold(self, prompt, *blocks):
        """Have each pod serve so many of a prompt's first blocks, of token ids."""
        for pod, count in enumerate(blocks):
            only = (f"10.0.0.{pod + 1}:8000",)
            assert not count or self.routed(prompt[: count * BLOCK], subset=only) == pod

    def route(self, *prompts, **more):
        """Send a request; return the number of its pod."""
        asked = request(f"r{next(self.numbers)}", *prompts, **more)
        decision = routed(self.scheduler, asked, self.rig.now)
        return int(decision.endpoint.name.removeprefix("pod-"))

    def routed(self, *prompts, **more):
        """Send a request and end it; return the number of its pod."""
        pod = self.route(*prompts, **more)
        self.end()
        return pod

    def begin(self, number):
        """Let the first token of a request come."""
        self.rig.apply(FirstToken(RequestId(f"r{number}")))

    def end(self, *numbers):
        """End requests by their number, or all."""
        wanted = [f"r{each}" for each in numbers] or list(self.rig.fleet.in_flight)
        for each in wanted:
            self.rig.apply(Finished(RequestId(each)))

    def load(self, *requests):
        """Give each pod so many requests without prompts."""
        for pod, count in enumerate(requests):
            for _ in range(count):
                self.rig.send(f"pod-{pod}", f"load{next(self.numbers)}")

    def remove(self, pod):
        self.rig.apply(EndpointRemoved(EndpointId(f"default/pod-{pod}")))


def holding(kind, prompt, *blocks, **parameters):
    """A desk whose pods have each been sent so many of a prompt's first blocks."""
    at = Desk(kind, len(blocks), **parameters)
    at.hold(prompt, *blocks)
    return at


def tokens(blocks, start=0):
    """A prompt of so many full blocks, and one more token; other starts share nothing."""
    return list(range(start, start + blocks * BLOCK + 1))
