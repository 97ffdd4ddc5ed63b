"""Feeds an index of prompts with the fleet's events."""

from collections.abc import Callable, Iterator

from epp.model.endpoint import Endpoint, EndpointId
from epp.model.events import EndpointRemoved, EndpointUpserted, Event
from epp.model.prompts.chain import Chain
from epp.model.request_events import Admitted
from epp.policy.plugins import PluginContext

Insert = Callable[[Chain, EndpointId, float], None]
"""Called with a prompt, the endpoint that it is sent to, and the time in seconds."""
Forget = Callable[[EndpointId], None]
"""Called with an endpoint that has nothing any more."""


class AdmittedPrompts:
    """Reports the first prompt of each request, for every endpoint that computes or decodes it.

    An endpoint must be forgotten when it is removed, or replaced by another engine of its name.
    """

    def __init__(self, context: PluginContext, insert: Insert, forget: Forget) -> None:
        self._insert = insert
        self._forget = forget
        self._engines: dict[EndpointId, object] = {}
        context.subscribe((Admitted, EndpointUpserted, EndpointRemoved), self._learn)

    def __len__(self) -> int:
        return len(self._engines)

    def __iter__(self) -> Iterator[EndpointId]:
        """Return the endpoints that there are."""
        return iter(self._engines)

    def _learn(self, event: Event, now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        if isinstance(event, Admitted):
            chains = event.quote.chains
            for each in (event.endpoint_id, event.prefill_endpoint_id):
                if chains and each is not None and each in self._engines:
                    self._insert(chains[0], each, now)
        elif isinstance(event, EndpointRemoved):
            if self._engines.pop(event.endpoint_id, None) is not None:
                self._forget(event.endpoint_id)
        elif isinstance(event, EndpointUpserted):
            self._follow(event.endpoint)

    def _follow(self, endpoint: Endpoint) -> None:
        before = self._engines.get(endpoint.id)
        self._engines[endpoint.id] = endpoint.engine
        if before is not None and before != endpoint.engine:
            self._forget(endpoint.id)
