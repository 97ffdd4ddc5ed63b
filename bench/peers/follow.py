"""A plug-in that follows a router: what it would have picked each time, of what the router knew."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from zlib import crc32

import msgspec

from bench.peers.traffic import BLOCK, Step
from epp.config.file import load
from epp.model.decision import Decision
from epp.model.endpoint import Endpoint, EndpointId
from epp.model.events import EndpointUpserted
from epp.model.fleet import Fleet
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.quote import Quote
from epp.model.request import TOKEN_BYTES, Api, InferenceRequest, Prompt, RequestId
from epp.model.request_events import Finished, FirstToken
from epp.policy.scheduler import Scheduler
from epp.protocol.bodies.body import Body
from epp.values import replaced

_SECRET = b"peers"
_CHUNK = 128
_SECONDS = 0.01
"""From one request to the next."""


_ORDER_TURNS = (50, 100, 200, 400)
"""So many turns tell which order fits; more, where several fit equally well."""
Prompts = Callable[[Step], tuple[Prompt, ...]]
"""How the plug-in sees the prompt of a step."""


class Difference(msgspec.Struct, frozen=True):
    """A step at which a router picked none of those that the plug-in could have picked.

    `loads` are the requests under way at each worker, `scores` the totals; both by worker.
    """

    step: int
    router: int
    plugin: frozenset[int]
    loads: dict[int, int]
    scores: dict[int, float]


class Agreement(msgspec.Struct, frozen=True):
    """How often a plug-in and a router picked alike.

    Of `requests` the router's worker was one that the plug-in could have picked, except
    `differences`; at `by_chance` steps the plug-in could have picked any of several.
    """

    requests: int
    by_chance: int
    differences: tuple[Difference, ...]

    @property
    def alike(self) -> int:
        """The number of steps at which both picked alike."""
        return self.requests - len(self.differences)


class Turn(msgspec.Struct, frozen=True):
    """A step, and what the router made of it.

    It picked the worker `picked`; `alone` is the one that it picks with nothing under way, where
    that was asked for.
    """

    step: Step
    picked: int
    alone: int | None = None


Hint = Callable[[EndpointId, EndpointId | None], None]
"""Told before each decision where the router sends the request, and where it does alone."""


def follow(
    config: str, turns: Sequence[Turn], workers: int, prompts: Prompts, hint: Hint | None = None
) -> Agreement:
    """Ask the plug-ins of a configuration at each turn, and send the request where the router did.

    A difference therefore counts once, and not again in what follows from it. The order in which
    the router keeps its workers is not seen: that one is taken which fits the first turns best.
    """
    orders = list(itertools.permutations(range(workers)))
    for count in _ORDER_TURNS:
        alike = {
            order: _Follower(config, order, as_chat, hint).play(turns[:count]).alike
            for order in orders
        }
        most = max(alike.values())
        orders = [order for order in orders if alike[order] == most]
        if len(orders) == 1 or count >= len(turns):
            break
    return _Follower(config, orders[0], prompts, hint).play(turns)


def as_chat(step: Step) -> tuple[Prompt, ...]:
    """Return the prompt as the picker reads it from the body of a request."""
    body = Body(Api.CHAT)
    body.feed(msgspec.json.encode({"model": "m", "messages": step.chat}))
    return tuple(body.parse().prompts)


def as_tokens(step: Step) -> tuple[Prompt, ...]:
    """Return the prompt as the token ids that the workers' tokenizer gives."""
    return (Prompt("".join(step.messages).encode(), exact=True),)


def in_characters(between: str) -> Prompts:
    """Return what makes a block of each character; it is put `between` messages."""
    return lambda step: _in_blocks(between.join(step.messages).encode())


def in_chunks(step: Step) -> tuple[Prompt, ...]:
    """Return the prompt so that 128 characters are a block, and what is left of it too."""
    text = "\n".join(step.messages).encode()
    return _in_blocks(crc32(text[at : at + _CHUNK]) for at in range(0, len(text), _CHUNK))


def in_single_tokens(step: Step) -> tuple[Prompt, ...]:
    """Return the prompt so that each of its tokens is a block."""
    return _in_blocks(step.tokens)


def _in_blocks(units: Iterable[int]) -> tuple[Prompt, ...]:
    blocks = (unit.to_bytes(TOKEN_BYTES, "little") * BLOCK for unit in units)
    return (Prompt(b"".join(blocks), exact=True),)


class _Follower:
    """`order` are the numbers of the workers in the order in which the fleet gets to know them."""

    def __init__(
        self, config: str, order: Sequence[int], prompts: Prompts, hint: Hint | None
    ) -> None:
        self._draws = _Draws()
        self._fleet = Fleet(BlockHasher(_SECRET))
        scheduling = load(config, below=self._draws).scheduling
        self._scheduler = Scheduler(self._fleet, scheduling, self._draws)
        self._prompts = prompts
        self._hint = hint
        self._now = 0.0
        self._endpoints = {
            number: Endpoint("default", f"pod-{number}", f"10.0.0.{number + 1}", 8000)
            for number in order
        }
        for endpoint in self._endpoints.values():
            self._fleet.apply(EndpointUpserted(endpoint), self._now)

    def play(self, turns: Sequence[Turn]) -> Agreement:
        differences, by_chance = [], 0
        for number, turn in enumerate(turns):
            self._now += _SECONDS
            self._end(turn.step)
            self._tell(turn)
            request = self._request(number, turn.step)
            quote = self._scheduler.quote(request, self._now)
            plugin = frozenset(self._possible(request, quote))
            by_chance += len(plugin) > 1
            decision = self._scheduler.decide(request, quote, self._now)
            if turn.picked not in plugin:
                differences.append(self._difference(number, turn.picked, plugin, decision))
            decision = replaced(decision, endpoints=(self._endpoints[turn.picked],))
            self._scheduler.commit(request, quote, decision, self._now)
        return Agreement(len(turns), by_chance, tuple(differences))

    def _tell(self, turn: Turn) -> None:
        if self._hint is not None:
            alone = None if turn.alone is None else self._endpoints[turn.alone].id
            self._hint(self._endpoints[turn.picked].id, alone)

    def _difference(
        self, number: int, router: int, plugin: frozenset[int], decision: Decision
    ) -> Difference:
        numbers = {each.id: number for number, each in self._endpoints.items()}
        places = [numbers[each.endpoint.id] for each in decision.candidates]
        loads = [each.requests for each in decision.candidates]
        return Difference(
            step=number,
            router=router,
            plugin=plugin,
            loads=dict(zip(places, loads, strict=True)),
            scores=dict(zip(places, decision.totals, strict=True)),
        )

    def _end(self, step: Step) -> None:
        for number in step.begun:
            self._fleet.apply(FirstToken(RequestId(str(number))), self._now)
        for number in step.ended:
            self._fleet.apply(Finished(RequestId(str(number))), self._now)

    def _request(self, number: int, step: Step) -> InferenceRequest:
        request = InferenceRequest(
            id=RequestId(str(number)),
            api=Api.CHAT,
            model="m",
            target_model="m",
            stream=True,
            headers={"x-session-id": step.session},
        )
        return replaced(request, prompts=self._prompts(step))

    def _possible(self, request: InferenceRequest, quote: Quote) -> Iterator[int]:
        """Return the worker of every outcome of chance."""
        numbers = {each.id: number for number, each in self._endpoints.items()}
        for _ in self._draws.all_outcomes():
            decision = self._scheduler.decide(request, quote, self._now)
            yield numbers[decision.endpoint.id]


class _Draws:
    """A source of chance of which every outcome can be had; one of them else."""

    def __init__(self) -> None:
        self._wanted: list[int] = []
        self._drawn: list[tuple[int, int]] = []

    def __call__(self, below: int) -> int:
        at = len(self._drawn)
        value = self._wanted[at] if at < len(self._wanted) else 0
        self._drawn.append((value, below))
        return value

    def all_outcomes(self) -> Iterator[None]:
        """Go on to the next outcome, until there is none; what is drawn between belongs to it."""
        self._wanted = []
        while True:
            self._drawn = []
            yield
            while self._drawn and self._drawn[-1][0] + 1 == self._drawn[-1][1]:
                self._drawn.pop()
            if not self._drawn:
                break
            value, _ = self._drawn.pop()
            self._wanted = [*(each for each, _ in self._drawn), value + 1]
        self._wanted, self._drawn = [], []
