"""The filter that gives endpoints that join less than their share at first, as Envoy does.

Envoy: `slow_start_config` of its load balancing policies, with the aggression of 1.
"""

from collections.abc import Callable
from typing import Annotated, Final

from epp.model.endpoint import EndpointId, EngineId
from epp.model.events import EndpointRemoved, EndpointUpserted, Event, Listed
from epp.model.request import InferenceRequest
from epp.policy.bounds import BoundedParameters, above_zero, within
from epp.policy.plugins import Candidates, PluginContext, uniform

_PERCENT: Final = 100.0


class SlowStartFilter(BoundedParameters, frozen=True):
    """Offers an endpoint that has joined to a part of the requests, which grows with its age.

    All are offered it once it is `window_seconds` old, and `min_weight_percent` of them at least.
    Those that were there when the picker began have not joined.
    """

    window_seconds: Annotated[float, above_zero("seconds, such as 60")] = 60.0
    min_weight_percent: Annotated[float, within(0, _PERCENT, "percent, such as 10")] = 10.0

    def start(self, context: PluginContext) -> "_SlowStart":
        """Return the started plug-in."""
        started = _SlowStart(self, context.below)
        context.subscribe((EndpointUpserted, EndpointRemoved, Listed), started.learn)
        return started


class _SlowStart:
    def __init__(self, parameters: SlowStartFilter, below: Callable[[int], int]) -> None:
        self._window = parameters.window_seconds
        self._least = parameters.min_weight_percent / _PERCENT
        self._below = below
        self._listed = False
        self._engines: dict[EndpointId, EngineId] = {}
        self._joined: dict[EndpointId, float] = {}

    def learn(self, event: Event, now: float, guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        """Learn which endpoints there are, and when they joined."""
        match event:
            case Listed():
                self._listed = True
            case EndpointRemoved(endpoint_id=gone):
                self._engines.pop(gone, None)
                self._joined.pop(gone, None)
            case EndpointUpserted(endpoint=endpoint):
                same = self._engines.get(endpoint.id) == endpoint.engine
                self._engines[endpoint.id] = endpoint.engine
                if self._listed and not same:
                    self._joined[endpoint.id] = now
            case _:
                pass  # it subscribes to no others

    def filter(self, request: InferenceRequest, candidates: Candidates) -> Candidates:
        """Return those that are offered this request; all if there are no others."""
        if not self._joined or not candidates:
            return candidates
        now = candidates[0].now
        for old in [each for each, at in self._joined.items() if now - at >= self._window]:
            del self._joined[old]
        return [each for each in candidates if self._offers(each.endpoint.id, now)] or candidates

    def _offers(self, endpoint: EndpointId, now: float) -> bool:
        joined = self._joined.get(endpoint)
        if joined is None:
            return True
        return uniform(self._below) < max(self._least, (now - joined) / self._window)
