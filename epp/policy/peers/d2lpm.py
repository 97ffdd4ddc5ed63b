"""D2LPM: the longest prefix, as long as a client has credit left at the endpoint that has it.

Source: "Locality-aware Fair Scheduling in LLM Serving" (arXiv 2501.14312, 2025), the global
scheduler of Double Deficit Longest Prefix Match. Its other half, DLPM, orders the queue within an
engine, which no picker can.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Collection
from itertools import count
from math import floor
from typing import Annotated

import msgspec

from epp.model.decision import Decision
from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved, Event
from epp.model.request import InferenceRequest, RequestId
from epp.model.request_events import Aborted, Finished
from epp.policy.attribute_sources import PrefixMatchInfo, find_producer
from epp.policy.bounds import BoundedParameters, at_least
from epp.policy.client_keys import ClientKey, client_key
from epp.policy.peers.chooser import Choice, Chooser, least
from epp.policy.plugins import Candidates, PluginContext

_MAX_CLIENTS = 10_000
"""Clients whose credit is kept, at most; then the one idle for longest is dropped."""


class D2LpmScorer(BoundedParameters, frozen=True):
    """Prefers the longest cached prefix among endpoints at which the client has credit left.

    A client is a fairness id. It begins with `worker_quantum` tokens at every endpoint, and pays
    there for tokens that are not cached as it is sent, and `output_token_weight` times the tokens
    of the response as it ends. If it has nothing left anywhere, it is given as many quanta as
    it takes at all endpoints that it has used.

    Of equal prefixes the endpoint with the fewest requests in flight is chosen; among equals
    chance decides: all of them score 1, others 0. A small quantum evens out what each client has
    at the endpoints, a large one keeps its prefixes together; the paper has none by default.
    """

    worker_quantum: Annotated[int, at_least(1, "tokens, such as 10000")] = 10_000
    output_token_weight: Annotated[float, at_least(0, "a weight, such as 2")] = 2.0
    prefix_match_info_producer_name: str = ""

    def start(self, context: PluginContext) -> "_ByCredit":
        """Return the started plug-in."""
        producer = find_producer(context, self.prefix_match_info_producer_name, PrefixMatchInfo)
        started = _ByCredit(self, producer)
        context.subscribe((Finished, Aborted, EndpointRemoved), started.on_event)
        return started


class _ByCredit(Chooser):
    def __init__(self, settings: D2LpmScorer, matches: PrefixMatchInfo) -> None:
        self._settings = settings
        self._matches = matches
        # The one idle for longest first.
        self._accounts: OrderedDict[ClientKey, _Account] = OrderedDict()
        self._under_way: dict[RequestId, tuple[ClientKey, int]] = {}
        # A number is never given again, also after its endpoint is gone.
        self._numbers: defaultdict[EndpointId, int] = defaultdict(count().__next__)

    def _choose(self, request: InferenceRequest, candidates: Candidates) -> Choice:
        account = self._accounts.get(client_key(request.fairness_id), _Account())
        balances = [
            self._credit(account, self._numbers.get(each.endpoint.id, -1)) for each in candidates
        ]
        most = max(balances)
        given = self._settings.worker_quantum * self._quanta(most)
        matches = self._matches.prefix_matches(request, candidates)
        return least(
            {
                each.endpoint.id: (-match.matched, each.requests)
                for credit, match, each in zip(balances, matches, candidates, strict=True)
                if credit == most or credit + given > 0
            }
        )

    def _credit(self, account: "_Account", endpoint: int) -> float:
        quantum, spent = self._settings.worker_quantum, account.spent.get(endpoint)
        return quantum if spent is None else account.quanta * quantum - spent

    def _quanta(self, credit: float) -> int:
        """Return how many quanta it takes until something is left."""
        return 0 if credit > 0 else floor(-credit / self._settings.worker_quantum) + 1

    def committed(self, request: InferenceRequest, decision: Decision, now: float) -> None:
        """Charge a client for the tokens to compute."""
        client = client_key(request.fairness_id)
        endpoint = self._numbers[decision.endpoint.id]
        account = self._accounts.setdefault(client, _Account())
        self._accounts.move_to_end(client)
        if len(self._accounts) > _MAX_CLIENTS:
            self._accounts.popitem(last=False)
        account.quanta += self._quanta(self._credit(account, endpoint))
        # An endpoint that is new to the client begins with one quantum, however many it was given.
        account.spent.setdefault(endpoint, (account.quanta - 1) * self._settings.worker_quantum)
        account.spent[endpoint] += decision.prompt_tokens - decision.predicted_cached_tokens
        if len(account.spent) > len(self._numbers):
            account.keep(self._numbers.values())
        self._under_way[request.id] = client, endpoint

    def on_event(self, event: Event, _now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        """Have a client pay for a response; forget an endpoint that is gone."""
        if isinstance(event, EndpointRemoved):
            self._numbers.pop(event.endpoint_id, None)
        elif isinstance(event, Finished | Aborted):
            client, endpoint = self._under_way.pop(event.request_id, (0, -1))
            served = self._accounts.get(client)
            if served is not None and endpoint in served.spent:
                tokens = event.tokens if isinstance(event, Finished) else event.generated
                served.spent[endpoint] += self._settings.output_token_weight * tokens


class _Account(msgspec.Struct, eq=False):
    """The quanta that a client was given at each endpoint, and the tokens that it spent there.

    An endpoint that it did not use has one quantum, and no entry.
    """

    quanta: int = 1
    spent: dict[int, float] = {}

    def keep(self, endpoints: Collection[int]) -> None:
        """Forget the credit spent at endpoints that are gone."""
        self.spent = {each: self.spent[each] for each in endpoints if each in self.spent}
