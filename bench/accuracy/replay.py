"""A trace in virtual time: the product's own fleet and policy in front of simulated engines."""

import random
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import msgspec
from model_server.simulator.scheduler import Request, Sampled, Token
from model_server.simulator.settings import Limits

from bench.accuracy.lru import Blocks, Predictor
from bench.accuracy.observation import Guess
from bench.accuracy.trace import Content, Trace
from bench.accuracy.virtual import Pods
from epp.config.file import POLICIES, load
from epp.model.endpoint import Endpoint, Load
from epp.model.events import EndpointUpserted, Event, Listed, LoadReported
from epp.model.fleet import Fleet
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.request import Api, InferenceRequest, Prompt, RequestId, Usage
from epp.model.request_events import Finished, FirstToken, Generated, Unobserved
from epp.policy.scheduler import Scheduler
from epp.protocol.extproc.observation import Observation
from epp.replay.simulation.clock import Clock

BLOCK = 16
PORT = 8000
MODEL = "m"
SCRAPE_SECONDS = 1.0
Known = Literal["text", "tokens"]
OBSERVE_ALL = Observation()
Predictors = Mapping[str, Callable[[str], Predictor]]
NOBODY: Predictors = {}


class _Visit(msgspec.Struct, frozen=True):
    """A request under way: its place in the trace, and what everybody predicted for it.

    `left`: the fleet sees no more of its response than the first token, unless it asks for more.
    """

    number: int
    id: RequestId
    predicted: dict[str, int]
    left: bool


class Replay:
    """Plays one trace, once. `guesses` are, by predictor, those of all calls that are over.

    Responses are observed to their end as `observation` says. The predictors `beside` are asked
    the same.
    """

    def __init__(
        self,
        trace: Trace,
        known: Known,
        *,
        observation: Observation = OBSERVE_ALL,
        beside: Predictors = NOBODY,
    ) -> None:
        self.guesses: defaultdict[str, list[Guess]] = defaultdict(list)
        self._trace = trace
        self._known: Known = known
        self._clock = Clock()
        self._endpoints = [
            Endpoint("bench", f"pod-{number}", f"10.0.0.{number}", PORT)
            for number in range(1, trace.pods + 1)
        ]
        limits = Limits(block_size=BLOCK, num_gpu_blocks=trace.blocks)
        targets = [endpoint.target for endpoint in self._endpoints]
        self._pods = Pods(targets, limits, self._clock, self._sampled)
        self._visits: dict[Request, _Visit] = {}
        self._left = len(trace.calls)
        self._followers: defaultdict[int, list[int]] = defaultdict(list)
        self._beside = beside
        self._observation = observation
        self._draw = random.Random(1).randrange
        scheduling = load(POLICIES["least-ttft"]).scheduling
        self._fleet = Fleet(BlockHasher(b"bench"))
        self._router = Scheduler(self._fleet, scheduling, random.Random(0).randrange)

    def run(self) -> None:
        """Play it to the end."""
        for endpoint in self._endpoints:
            self._apply(EndpointUpserted(endpoint))
        self._apply(Listed())
        self._scrape()
        for number, call in enumerate(self._trace.calls):
            if call.after is None:
                self._plan(number, call.at)
            else:
                self._followers[call.after].append(number)
        self._clock.run(lambda: not self._left)

    def _apply(self, event: Event) -> None:
        self._fleet.apply(event, self._clock.now)

    def _plan(self, number: int, when: float) -> None:
        self._clock.at(when, lambda: self._arrive(number))

    def _scrape(self) -> None:
        now = self._clock.now
        for endpoint in self._endpoints:
            waiting, running = self._pods.queues(endpoint.target)
            load = Load(
                waiting=waiting,
                running=running,
                block_size=BLOCK,
                num_blocks=self._trace.blocks,
                started_at=1.0,
                at=now,
            )
            self._apply(LoadReported(endpoint.id, load))
        self._clock.at(now + SCRAPE_SECONDS, self._scrape)

    def _arrive(self, number: int) -> None:
        content = self._trace.calls[number].content()
        request = self._request(number, content)
        quote = self._router.quote(request, self._clock.now)
        decision = self._router.propose(request, quote, self._clock.now)
        self._router.commit(request, quote, decision, self._clock.now)
        target, blocks = decision.endpoint.target, Blocks(content.ids)
        predicted: dict[str, int] = {self._known: decision.predicted_cached_tokens}
        for name, of in self._beside.items():
            predictor = of(target)
            predicted[name] = predictor.predict(blocks)
            predictor.sent(blocks)
        # The engine appends what it generates to the prompt: it is given its own.
        asked = Request(array("I", content.ids), len(content.answer), _tokens(content.answer))
        left = self._observation.ends_early(self._draw) and len(content.answer) > 1
        self._visits[asked] = _Visit(number, request.id, predicted, left)
        self._pods.submit(target, asked)

    def _request(self, number: int, content: Content) -> InferenceRequest:
        if self._known == "tokens":
            prompt = Prompt(content.ids.tobytes(), exact=True, marks=content.marks)
        else:
            prompt = Prompt(content.text, marks=content.text_marks)
        return InferenceRequest(
            id=RequestId(str(number)),
            api=Api.COMPLETIONS,
            model=MODEL,
            target_model=MODEL,
            prompts=(prompt,),
            stream=True,
        )

    def _sampled(self, sampled: Sampled) -> None:
        request = sampled.request
        visit = self._visits[request]
        if sampled.first:
            self._apply(FirstToken(visit.id))
            if (
                visit.left
                and self._observation.auto
                and self._fleet.needs_end(visit.id, self._clock.now)
            ):
                self._visits[request] = visit = msgspec.structs.replace(visit, left=False)
            if visit.left:
                self._apply(Unobserved(visit.id))
        if not visit.left:
            self._apply(Generated(visit.id, request.generated))
        if sampled.finish is not None:
            self._finish(request, self._visits.pop(request))

    def _finish(self, request: Request, visit: _Visit) -> None:
        cached = request.cached_tokens or 0
        usage = Usage(request.prompt_len, request.generated, cached)
        if not visit.left:
            self._apply(Finished(visit.id, usage))
        for name, predicted in visit.predicted.items():
            self.guesses[name].append(Guess(request.prompt_len, predicted, cached))
        self._left -= 1
        for number in self._followers.pop(visit.number, ()):
            call = self._trace.calls[number]
            self._plan(number, max(call.at, self._clock.now + call.think))


def _tokens(ids: "array[int]") -> Iterator[Token]:
    for token in ids:
        yield Token(token, "")
