"""Headroom: how many requests could start now at all endpoints, for dispatchers outside the picker.

It counts requests of the mean size of those in flight, with nothing of their prompts cached. It is
0 at endpoints whose room is not known, and everywhere while the gate finds the pool saturated.
"""

from itertools import islice
from typing import NamedTuple

from epp.model.fleet import Fleet
from epp.model.pods.pod import Pod
from epp.policy.flow.flow_control import FlowControl
from epp.policy.flow.gate import EFFECTIVE
from epp.policy.flow.rooms import Rooms

_MAX_ASKED = 1000
"""Requests in flight that the mean is taken over, at most."""
_USUAL_PROMPT = 1000
"""Tokens of a prompt while no request is in flight."""


class Headroom(NamedTuple):
    """Requests that could start now, and the free tokens of the endpoints where they could."""

    requests: int
    tokens: float


class _Usual(NamedTuple):
    """The mean request: tokens of its prompt, and those with its response."""

    prompt: int
    tokens: float


def headroom(flow: FlowControl, fleet: Fleet, now: float, *, batch: bool) -> Headroom:
    """Return the headroom for requests of negative priority (`batch`), or for all others."""
    if flow.gate is not None and flow.gate.measure(now)[EFFECTIVE] >= 1:
        return Headroom(0, 0.0)
    usual, rooms = _usual(fleet), flow.placement.rooms_for(batch=batch)
    pods = fleet.pods.values()
    whole = [pod for pod in pods if not pod.partial] or pods
    found = [
        (requests, rooms.free_tokens(pod))
        for pod in whole
        if pod.may_be_picked and (requests := _requests(pod, rooms, usual, now))
    ]
    return Headroom(sum(each for each, _ in found), sum(free for _, free in found))


def _requests(pod: Pod, rooms: Rooms, usual: _Usual, now: float) -> int:
    seconds = pod.speed.prefill.seconds(usual.prompt, 0) * pod.pace.prefill_slowness.value
    return rooms.requests_that_fit(pod, seconds, usual.tokens, now)


def _usual(fleet: Fleet) -> _Usual:
    asked = islice(fleet.in_flight.values(), _MAX_ASKED)
    quotes = [each.quote for each in asked if each.quote.chains]
    if not quotes:
        return _Usual(_USUAL_PROMPT, _USUAL_PROMPT + fleet.output_lengths.length(("", True)))
    prompt = sum(quote.tokens for quote in quotes) / len(quotes)
    responses = [
        fleet.output_lengths.length(quote.response_kind, quote.output_limit) * quote.answers
        for quote in quotes
    ]
    return _Usual(max(1, round(prompt)), prompt + sum(responses) / len(quotes))
