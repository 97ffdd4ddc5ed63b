"""`program-aware-fairness`: shares a band between programs, such as agents, of many requests each.

Strategy `las` prefers the program that got the least service so far, in tokens, which fades with
time. Strategy `turn-priority` prefers the program with the most turns, so that programs finish; a
program is one session there. Both also count how long a program's next request has waited.
"""

from collections.abc import Sequence
from math import inf
from typing import Annotated, Literal

import msgspec

from epp.model.decision import Decision
from epp.model.events import Event
from epp.model.learning.bounded import make_room
from epp.model.request import DEFAULT_FAIRNESS_ID, InferenceRequest, RequestId
from epp.model.request_events import Aborted, Finished
from epp.policy.bounds import Bound, BoundedParameters, above_zero, at_least
from epp.policy.client_keys import ClientKey, client_key
from epp.policy.effects import mapped_to
from epp.policy.flow.fairness import flow_by_fairness_id
from epp.policy.flow.held import HeldRequest
from epp.policy.plugins import PluginContext

_OUTPUT_WEIGHT = 2
"""The weight of a generated token; that of a prompt's token is 1."""
_MAX_PROGRAMS = 10_000
_MIDDLE = 0.5
"""Where equal values are put on a scale from 0 to 1."""
_FACTOR = Bound(0, "a factor, such as 0.99997", above=True, most=1)
_BY_TIME = mapped_to("`lasHalfLifeSeconds`: service fades with time, however often one is picked")


class ProgramAwareFairness(BoundedParameters, frozen=True):
    """Shares a band between programs, by attained service (`las`) or by turns."""

    strategy: Literal["las", "turn-priority"] = "las"
    """How programs are compared."""
    eviction_ttl_seconds: Annotated[float, at_least(0, "seconds, or 0 for never")] = 3600.0
    """Seconds after which an idle program is forgotten; 0: never."""
    eviction_sweep_seconds: Annotated[float, above_zero("seconds, such as 300")] = 300.0
    """Seconds between checks for idle programs."""
    las_weight_service: Annotated[float, at_least(0, "a weight, such as 0.8")] = 0.8
    """The weight of little service."""
    las_weight_head_wait: Annotated[float, at_least(0, "a weight, such as 0.2")] = 0.2
    """The weight of a long wait."""
    las_half_life_seconds: Annotated[float, at_least(0, "seconds, or 0 for never")] = 60.0
    """Seconds after which service counts half; 0: it never fades."""
    las_decay_factor: Annotated[float, _FACTOR, _BY_TIME] = 0.99997
    """How service fades with each pick, in llm-d-router up to 0.10."""
    turn_priority_time_weight: Annotated[float, at_least(0, "a weight, such as 0.5")] = 0.5
    """The weight of a second of waiting, in turns."""
    turn_priority_inactivity_seconds: Annotated[
        float, at_least(0, "seconds, or 0 for no limit")
    ] = 120.0
    """How long a program is idle, at most, whose next request counts its turns; 0: no limit."""

    def start(self, context: PluginContext) -> "_Programs":
        """Return the started policy, which learns from the fleet's events."""
        programs = _Programs(self)
        context.subscribe((Finished, Aborted), programs.learn)
        return programs


class _Program(msgspec.Struct, eq=False):
    used_at: float
    service: float = 0.0  # tokens, as of `used_at`
    turns: int = 0
    in_flight: int = 0


class _Programs:
    """The service of each program; a program is a fairness id."""

    flow_of = staticmethod(flow_by_fairness_id)

    def __init__(self, parameters: ProgramAwareFairness) -> None:
        self._parameters = parameters
        self._programs: dict[ClientKey, _Program] = {}
        self._sent: dict[RequestId, tuple[ClientKey, int]] = {}
        self._swept_at = 0.0

    def cost(self, _held: HeldRequest) -> float:
        """Return nothing: programs are compared by their scores."""
        return 0.0

    def scores(self, heads: Sequence[HeldRequest], now: float) -> Sequence[float]:
        """Return one number for the next request of each program; the greatest goes next."""
        waits = [now - each.since for each in heads]
        found = [self._programs.get(client_key(each.request.fairness_id)) for each in heads]
        if self._parameters.strategy == "turn-priority":
            turns = [self._turns(*each) for each in zip(heads, found, strict=True)]
            weight = self._parameters.turn_priority_time_weight
            return [turn + 1 + weight * wait for turn, wait in zip(turns, waits, strict=True)]
        services = [0.0 if each is None else self._service(each, now) for each in found]
        return [
            self._parameters.las_weight_service * (1 - service)
            + self._parameters.las_weight_head_wait * wait
            for service, wait in zip(_scaled(services), _scaled(waits), strict=True)
        ]

    def _turns(self, held: HeldRequest, program: _Program | None) -> int:
        """Return the turns before a request; none if it names no program, or the idle time is over.

        A program is idle from the end of its last request in flight to the arrival of the next one.
        """
        if program is None or held.request.fairness_id == DEFAULT_FAIRNESS_ID:
            return 0
        longest = self._parameters.turn_priority_inactivity_seconds or inf
        idle = not program.in_flight and held.since - program.used_at > longest
        return 0 if idle else program.turns

    def _service(self, program: _Program, now: float) -> float:
        half_life = self._parameters.las_half_life_seconds
        if not half_life:
            return program.service
        faded: float = 0.5 ** (max(0.0, now - program.used_at) / half_life)
        return program.service * faded

    def committed(self, request: InferenceRequest, decision: Decision, now: float) -> None:
        """Count a turn of the request's program."""
        self._sweep(now)
        key = client_key(request.fairness_id)
        program = self._use(key, now)
        program.turns += 1
        program.in_flight += request.id not in self._sent
        self._sent[request.id] = key, decision.prompt_tokens

    def _use(self, key: ClientKey, now: float) -> _Program:
        program = self._programs.get(key)
        if program is None:
            make_room(self._programs, _MAX_PROGRAMS)
            program = self._programs[key] = _Program(now)
        program.service = self._service(program, now)
        program.used_at = max(now, program.used_at)
        return program

    def learn(self, event: Event, now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        """Add the service of a request that is over to its program's."""
        if isinstance(event, Finished | Aborted):
            key, prompt = self._sent.pop(event.request_id, (None, 0))
            if key is not None:
                generated = event.generated
                if isinstance(event, Finished) and event.usage is not None:
                    prompt, generated = event.usage.prompt_tokens, event.usage.completion_tokens
                program = self._use(key, now)
                program.service += prompt + _OUTPUT_WEIGHT * generated
                program.in_flight = max(0, program.in_flight - 1)

    def _sweep(self, now: float) -> None:
        """Forget programs that were idle for long."""
        if now - self._swept_at >= self._parameters.eviction_sweep_seconds:
            self._swept_at = now
            oldest = now - (self._parameters.eviction_ttl_seconds or inf)
            for key in [key for key, each in self._programs.items() if each.used_at < oldest]:
                del self._programs[key]


def _scaled(values: Sequence[float]) -> list[float]:
    """Return values on a scale from the least, 0, to the greatest, 1."""
    low, high = min(values), max(values)
    if high <= low:
        return [_MIDDLE] * len(values)
    return [(each - low) / (high - low) for each in values]
