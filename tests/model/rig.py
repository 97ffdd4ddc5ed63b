"""A fleet with a clock, for tests of what happens to it."""

from itertools import count

from epp.model.endpoint import EndpointId, Load
from epp.model.events import EndpointUpserted, LoadReported
from epp.model.fleet import Fleet
from epp.model.pods.outlier_settings import OUTLIERS
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.prompts.hashing import block_ends
from epp.model.request import RequestId
from epp.model.request_events import Admitted, Finished
from tests.strategies import SECRET, endpoint, request, text

LONG = text(1000)


def predicted(tokens, block=16):
    """Say how much of a repeated prompt hits: whole blocks, ours and the engine's, not all."""
    ends = list(block_ends(tokens * 4, ()))
    return min(ends[-1] // 4, tokens - 1) // block * block if ends else 0


class Rig:
    """`pods` endpoints called pod-0, pod-1, ... at 10.0.0.1:8000, 10.0.0.2:8000, ..."""

    def __init__(self, pods=2, outliers=OUTLIERS, token_block=None, **more):
        self.now = 1000.0
        self.numbers = count()
        self.fleet = Fleet(BlockHasher(SECRET, token_block), outliers=outliers, **more)
        for number in range(pods):
            self.add(f"pod-{number}", f"10.0.0.{number + 1}")

    def add(self, name, address, **more):
        self.apply(EndpointUpserted(endpoint(name, address, **more)))

    def apply(self, event):
        self.fleet.apply(event, self.now)

    def report(self, name, **load):
        load.setdefault("counted", True)
        self.apply(LoadReported(EndpointId(f"default/{name}"), Load(**load)))

    def send(self, name, identity, *texts, **more):
        """Ask, then send the request to a pod."""
        quote = self.quote(identity, *texts, **more)
        self.fleet.candidates(quote, self.now)
        self.apply(Admitted(quote, EndpointId(f"default/{name}")))

    def quote(self, identity, *texts, **more):
        return self.fleet.quote(request(identity, *texts, **more), self.now)

    def serve(self, name, identity, *texts, **more):
        self.send(name, identity, *texts, **more)
        self.apply(Finished(RequestId(identity)))

    def ask(self, *texts, **more):
        """Return the candidates by name."""
        quote = self.quote(f"asking {next(self.numbers)}", *texts, **more)
        found = self.fleet.candidates(quote, self.now)
        return {each.endpoint.name: each for each in found}

    def cached(self, *texts, **more):
        return {name: each.cached_tokens for name, each in self.ask(*texts, **more).items()}

    def queued_seconds(self):
        return {name: each.queued_prefill_seconds for name, each in self.ask().items()}

    def pod(self, name):
        return self.fleet.pods[EndpointId(f"default/{name}")]

    def in_flight(self, identity):
        return self.fleet.in_flight[RequestId(identity)]
