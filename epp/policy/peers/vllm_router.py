"""vllm-router's policies: two by caches and loads, and two by session, a ring and a table.

Source: vllm-router 0.1.17 (`src/policies/consistent_hash.rs`, `sticky_least_loaded.rs`,
`hash_key.rs`). The rules of `cache_aware` and `kv_aware` are inferred from its picks and its log
(`python -m bench.peers`).
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Annotated

import msgspec
from xxhash import xxh3_64_intdigest

from epp.model.decision import Decision
from epp.model.endpoint import EndpointId
from epp.model.request import InferenceRequest
from epp.policy.attribute_sources import PrefixMatchInfo, find_producer
from epp.policy.bounds import BoundedParameters, above_zero, at_least, within
from epp.policy.client_keys import ClientKey, client_key
from epp.policy.peers.chooser import Choice, Chooser
from epp.policy.peers.dynamo import costs_at
from epp.policy.peers.hash_ring import HashRing, prefix_key
from epp.policy.peers.memory.prefix_tree import PrefixFound
from epp.policy.peers.sglang import Gated, GatedSettings
from epp.policy.plugins import Candidates, PluginContext, when_removed

_MAX_SESSIONS = 262_144
"""Sessions that are kept, at most; vllm-router keeps all."""


class VllmCacheAwareScorer(GatedSettings, frozen=True):
    """Prefers the least loaded endpoint that the prompt's longest known prefix was sent to.

    1. Loads are this picker's own requests in flight. If they are too uneven
       (`GatedSettings`), the least loaded endpoint is chosen.
    2. Otherwise, if a match in the tree of prompts that were sent before counts, the least
       loaded endpoint of all that have it.
    3. Otherwise the least loaded one.

    Of equally loaded endpoints the first is chosen. The prompt is then in the tree for the chosen
    endpoint; each endpoint has `max_tree_size` to itself. It is `SglangCacheAwareScorer` with
    another step 2: there a match names one endpoint.
    """

    eviction_interval_secs: Annotated[float, above_zero("seconds, such as 60")] = 120.0
    max_tree_size: Annotated[int, above_zero("a length, such as 67108864")] = 33_554_432

    def start(self, context: PluginContext) -> Gated:
        """Return the started plug-in."""
        return Gated(self, context, _least_loaded)


def _least_loaded(match: PrefixFound, loads: Mapping[EndpointId, int]) -> EndpointId:
    """Return the least loaded endpoint of those that have a match, the first of equals."""
    there = [each for each in loads if each in match.endpoints]
    return min(there or loads, key=loads.__getitem__)


class VllmKvAwareScorer(BoundedParameters, frozen=True):
    """Prefers the endpoint with the smallest product of tokens to prefill and requests.

    `(prefilling + prompt - cached) * (requests + 1)`: `prefilling` are the uncached tokens of
    prompts sent there whose first token was not seen, `cached` those of this one that its cache
    has, `requests` those in flight. It is LMetric with the prompts in flight. The score is lowest /
    own, with a temperature as in `DynamoCostScorer`.

    Cached tokens come from the index that `prefix_match_info_producer_name` names, by default the
    fleet's own; vllm-router has KV events.
    """

    router_temperature: Annotated[float, at_least(0, "a number from 0")] = 0.0
    prefix_match_info_producer_name: str = ""

    def start(self, context: PluginContext) -> "_ByProduct":
        """Return the started plug-in."""
        matches = find_producer(context, self.prefix_match_info_producer_name, PrefixMatchInfo)
        return _ByProduct(self.router_temperature, matches)


class _ByProduct(msgspec.Struct, frozen=True):
    temperature: float
    matches: PrefixMatchInfo

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return scores in 0..1; 1 for all if costs are equal."""
        if not candidates:
            return []
        matches = self.matches.prefix_matches(request, candidates)
        costs = [
            float(each.in_flight_tokens + match.total - match.matched) * (each.requests + 1)
            for each, match in zip(candidates, matches, strict=True)
        ]
        return costs_at(self.temperature, costs)


class SessionHeaders(BoundedParameters, frozen=True):
    """The headers that name a session; the first that is not empty counts.

    vllm-router then tries `x-request-id` and `x-trace-id`, which Envoy makes unique for each
    request, so no two would belong together; and then the body, which is not kept here.
    """

    session_headers: list[str] = msgspec.field(
        default_factory=lambda: ["x-session-id", "x-user-id", "x-tenant-id", "x-correlation-id"]
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(each.strip() for each in self.session_headers):
            raise ValueError("`sessionHeaders` has an empty name; write headers' names")

    def session(self, request: InferenceRequest) -> str:
        """Return the header and value that name a request's session; empty without one."""
        for name in self.session_headers:
            header = name.strip().lower()
            if value := request.headers.get(header):
                return f"{header}:{value}"
        return ""


class VllmConsistentHashScorer(SessionHeaders, frozen=True):
    """Prefers the endpoint that the session hashes to, whatever its load.

    Each endpoint has `virtual_nodes` points on the ring. If the endpoint of the first point
    after the key is not a candidate, the first candidate is chosen. Requests without a session hash
    their first prompt, as far as its blocks tell.
    """

    virtual_nodes: Annotated[int, within(1, 10_000, "points, such as 160")] = 160

    def start(self, context: PluginContext) -> "_OnSessionRing":
        """Return the started plug-in."""
        return _OnSessionRing(self, context)


class _OnSessionRing(Chooser):
    def __init__(self, settings: VllmConsistentHashScorer, context: PluginContext) -> None:
        self._settings = settings
        self._ring = HashRing(context.subscribe, settings.virtual_nodes)

    def _choose(self, request: InferenceRequest, candidates: Candidates) -> Choice:
        names = [each.endpoint.id for each in candidates]
        self._ring.add(names)
        session = self._settings.session(request)
        key = xxh3_64_intdigest(session.encode()) if session else prefix_key(candidates[0].chains)
        owner = next(self._ring.walk(key))
        return (owner if owner in names else names[0],)


class VllmStickyLeastLoadedScorer(SessionHeaders, frozen=True):
    """Prefers the endpoint of the session; a new session gets the one with the fewest sessions.

    Between endpoints with equally many, the hash of session and endpoint decides (rendezvous). A
    session is forgotten after `session_expiration_secs` without a request, and when its endpoint
    is removed; if its endpoint is not a candidate it gets another. Requests without a session go
    to the endpoint with the fewest sessions, and are not counted.
    """

    session_expiration_secs: Annotated[float, above_zero("seconds, such as 7200")] = 7200.0

    def start(self, context: PluginContext) -> "_BySessions":
        """Return the started plug-in."""
        started = _BySessions(self)
        when_removed(context.subscribe, started.forget)
        return started


class _Home(msgspec.Struct, eq=False):
    """An endpoint with the number of its sessions; they have none once it is gone."""

    endpoint: EndpointId | None
    sessions: int = 0


class _BySessions(Chooser):
    def __init__(self, settings: VllmStickyLeastLoadedScorer) -> None:
        self._settings = settings
        # The endpoint and the last request of each, the longest idle one first.
        self._sessions: OrderedDict[ClientKey, tuple[_Home, float]] = OrderedDict()
        self._homes: dict[EndpointId, _Home] = {}

    def _choose(self, request: InferenceRequest, candidates: Candidates) -> Choice:
        session = self._settings.session(request)
        names = [each.endpoint.id for each in candidates]
        home = self._sessions.get(client_key(session))
        if home is not None and home[0].endpoint in names:
            return (home[0].endpoint,)
        key = session or str(prefix_key(candidates[0].chains))
        return (min(names, key=lambda name: (self._at(name), -_weight(key, name))),)

    def _at(self, endpoint: EndpointId) -> int:
        home = self._homes.get(endpoint)
        return 0 if home is None else home.sessions

    def committed(self, request: InferenceRequest, decision: Decision, now: float) -> None:
        """Bind a session to its endpoint, unless it has one that was a candidate."""
        name = self._settings.session(request)
        if not name:
            return
        session, endpoint = client_key(name), decision.endpoint.id
        bound = self._drop(session)
        if bound is not None and any(each.endpoint.id == bound for each in decision.candidates):
            endpoint = bound
        home = self._homes.setdefault(endpoint, _Home(endpoint))
        home.sessions += 1
        self._sessions[session] = home, now
        self._expire(now)

    def _expire(self, now: float) -> None:
        """Drop idle sessions, and the oldest if there are too many."""
        since = now - self._settings.session_expiration_secs
        while self._sessions:
            session, (_, last) = next(iter(self._sessions.items()))
            if last > since and len(self._sessions) <= _MAX_SESSIONS:
                return
            self._drop(session)

    def _drop(self, session: ClientKey) -> EndpointId | None:
        """Forget a session; return the endpoint that it had."""
        known = self._sessions.pop(session, None)
        if known is None:
            return None
        home, _ = known
        home.sessions -= 1
        return home.endpoint

    def forget(self, endpoint: EndpointId) -> None:
        """Forget the sessions of an endpoint that is gone."""
        home = self._homes.pop(endpoint, None)
        if home is not None:
            home.endpoint = None


def _weight(key: str, endpoint: EndpointId) -> int:
    return xxh3_64_intdigest(f"{key}:{endpoint}".encode())
