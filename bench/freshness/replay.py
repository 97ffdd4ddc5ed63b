"""The trace in virtual time: the product's fleet and a policy in front of simulated servers."""

import random
from array import array
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from statistics import mean

import msgspec
from model_server.simulator.scheduler import Request, Sampled, Token
from model_server.simulator.settings import Limits

from bench.accuracy.trace import Trace
from bench.accuracy.virtual import Clock
from bench.freshness.servers import Server
from epp.model.endpoint import Endpoint, EndpointId, Load
from epp.model.events import (
    EndpointUpserted,
    Event,
    Finished,
    FirstToken,
    Generated,
    Listed,
    LoadReported,
)
from epp.model.fleet import Fleet
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.request import Api, InferenceRequest, Prompt, RequestId, Usage
from epp.policy.profile import Scheduling
from epp.policy.scheduler import Scheduler

PODS = 8
LIMITS = Limits(block_size=64, num_gpu_blocks=25_000)
"""1.6 million tokens. Blocks of 64 in place of 16 change little, and take a quarter of the time."""
WARM_UP_SECONDS = 120.0
_CHUNKS_APART = 32
"""Tokens after which the picker looks at a stream again."""


class _Visit(msgspec.Struct):
    """A request under way; `generated` tokens were heard of."""

    number: int
    id: RequestId
    sent_at: float
    generated: int = 0


class TimedReplay:
    """Plays a trace once, with reports every `interval` seconds; `ttft` is in seconds.

    A report is what the server has published when it is asked.
    """

    def __init__(
        self,
        trace: Trace,
        scheduling: Scheduling,
        interval: float,
        seed: int,
        pods: int = PODS,
    ) -> None:
        self.ttft: list[float] = []
        self.clock = Clock()
        self.fleet = Fleet(BlockHasher(b"bench"))
        self._trace = trace
        self._interval = interval
        self._warm_up = 0.0
        self._router = Scheduler(self.fleet, scheduling, random.Random(seed).randrange)
        self._endpoints = [
            Endpoint("bench", f"pod-{number}", f"10.0.0.{number}", 8000)
            for number in range(1, pods + 1)
        ]
        self.servers = {
            endpoint.id: Server(LIMITS, self.clock, self._sampled) for endpoint in self._endpoints
        }
        self._visits: dict[Request, _Visit] = {}
        self._left = len(trace.calls)
        self._followers: defaultdict[int, list[int]] = defaultdict(list)

    def run(self, warm_up: float = WARM_UP_SECONDS) -> float:
        """Play it to the end; return the mean TTFT of all that came after `warm_up` seconds."""
        self._warm_up = warm_up
        apart = self._interval / len(self._endpoints)
        for place, endpoint in enumerate(self._endpoints):
            self._hear(EndpointUpserted(endpoint))
            self.clock.at(apart * place, partial(self._report, endpoint.id))
        self._hear(Listed())
        for number, call in enumerate(self._trace.calls):
            if call.after is None:
                self.clock.at(call.at, partial(self._arrive, number))
            else:
                self._followers[call.after].append(number)
        self.clock.run(lambda: not self._left)
        return mean(self.ttft)

    def _hear(self, event: Event) -> None:
        self.fleet.apply(event, self.clock.now)

    def _report(self, endpoint_id: EndpointId) -> None:
        now, published = self.clock.now, self.servers[endpoint_id].published
        load = Load(
            waiting=published.waiting,
            running=published.running,
            kv_usage=published.usage,
            block_size=LIMITS.block_size,
            num_blocks=LIMITS.num_gpu_blocks,
            started_at=1.0,
            at=now,
        )
        self._hear(LoadReported(endpoint_id, load))
        self.clock.at(now + self._interval, partial(self._report, endpoint_id))

    def _arrive(self, number: int) -> None:
        content, now = self._trace.calls[number].content(), self.clock.now
        request = InferenceRequest(
            id=RequestId(str(number)),
            api=Api.COMPLETIONS,
            model="m",
            target_model="m",
            prompts=(Prompt(content.ids.tobytes(), exact=True, marks=content.marks),),
            stream=True,
        )
        decision = self._router.route(request, now)
        # The engine appends what it generates to the prompt: it is given its own.
        asked = Request(array("I", content.ids), len(content.answer), _tokens(content.answer))
        self._visits[asked] = _Visit(number, request.id, now)
        self.servers[decision.endpoint.id].submit(asked)

    def _sampled(self, sampled: Sampled) -> None:
        request = sampled.request
        visit = self._visits[request]
        if sampled.first:
            self._hear(FirstToken(visit.id))
            if visit.sent_at >= self._warm_up:
                self.ttft.append(self.clock.now - visit.sent_at)
        if sampled.finish is not None:
            self._finish(request, self._visits.pop(request))
        elif request.generated - visit.generated >= _CHUNKS_APART:
            visit.generated = request.generated
            self._hear(Generated(visit.id, request.generated))

    def _finish(self, request: Request, visit: _Visit) -> None:
        usage = Usage(request.prompt_len, request.generated, request.cached_tokens or 0)
        self._hear(Finished(visit.id, usage))
        self._left -= 1
        for number in self._followers.pop(visit.number, ()):
            call = self._trace.calls[number]
            self.clock.at(max(call.at, self.clock.now + call.think), partial(self._arrive, number))


def _tokens(ids: "array[int]") -> Iterator[Token]:
    for token in ids:
        yield Token(token, "")
