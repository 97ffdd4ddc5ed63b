"""Session affinity: the endpoint that served a session before, as a scorer and as a filter.

With the strategy `encoded_endpoint_header` the client returns a token from the previous response;
with `session_id` the picker keeps the endpoint of each session. Names and rules are llm-d-router's.
"""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
from cachetools import TTLCache

from epp.model.decision import Decision
from epp.model.endpoint import EndpointId, Target
from epp.model.request import InferenceRequest, RequestId
from epp.policy.attribute_sources import SessionId, find_producer
from epp.policy.bounds import BoundedParameters, above_zero, at_least
from epp.policy.client_keys import ClientKey, client_key
from epp.policy.effects import mapped_to, without_effect
from epp.policy.flow.fairness import flow_by_fairness_id
from epp.policy.flow.held import HeldRequest
from epp.policy.plugins import (
    Candidates,
    Headers,
    PluginContext,
    PluginParameters,
    when_removed,
)

_MAX_SESSIONS = 100_000
"""Sessions whose endpoint is kept, at most; then the one that was idle the longest is dropped."""
_TTL_SECONDS = 300.0
_TOKEN_HEADER = "x-session-token"  # noqa: S105 (the name of a header)
_ID_HEADER = "x-session-id"
_ATTRIBUTES = {"SessionID": "session-id-producer"}
"""Attributes whose producer does not have their name."""

_SECONDS = at_least(0, "seconds, or 0 for the default")
_NO_SWEEP = without_effect("idle sessions expire at once")
_ROOM = mapped_to("the room of each endpoint, whose limits are learned")


class TokenHeader(PluginParameters, frozen=True):
    """The header of requests and responses that names the endpoint; empty: the default."""

    header: str = _TOKEN_HEADER

    @property
    def name(self) -> str:
        """The header's name, in lower case."""
        return self.header.strip().lower() or _TOKEN_HEADER


class SessionSource(PluginParameters, frozen=True):
    """Where a session's id comes from: a header, or the plug-in that produces an attribute."""

    header: str = ""
    attribute: str = ""
    producer: str = ""

    def __post_init__(self) -> None:
        if bool(self.header) == bool(self.attribute):
            raise ValueError("exactly one of `header` and `attribute` is needed")


class SessionIds(BoundedParameters, frozen=True):
    """The sources of session ids, of which the first non-empty one counts; and their TTL.

    Seconds of 0 stand for the defaults.
    """

    sources: list[SessionSource] = []
    eviction_ttl_seconds: Annotated[float, _SECONDS] = _TTL_SECONDS
    eviction_sweep_seconds: Annotated[float, _SECONDS, _NO_SWEEP] = 10.0


class SessionAffinity(PluginParameters, frozen=True):
    """Parameters of session affinity; `profile_name` is the stage that it follows, "" the last."""

    strategy: Literal["encoded_endpoint_header", "session_id"] = "encoded_endpoint_header"
    encoded_endpoint_header_config: TokenHeader = TokenHeader()
    session_id_config: SessionIds = SessionIds()
    profile_name: str = ""
    header_name: Annotated[str, mapped_to("`encodedEndpointHeaderConfig.header`")] = ""
    """The form of 0.9."""

    def pins(self, context: PluginContext) -> "_Tokens | _Bindings":
        """Return the store of the sessions' endpoints."""
        if self.strategy == "session_id":
            return _Bindings(self.session_id_config, self.profile_name, context)
        header = TokenHeader(self.header_name or self.encoded_endpoint_header_config.header)
        return _Tokens(header.name, self.profile_name)


class SessionAffinityScorer(SessionAffinity, frozen=True):
    """Prefers the endpoint of the session."""

    def start(self, context: PluginContext) -> "_PinScorer":
        """Return the scorer."""
        return _PinScorer(self.pins(context))


class SessionAffinityFilter(SessionAffinity, frozen=True):
    """Keeps only the endpoint of the session, if it is a candidate."""

    def start(self, context: PluginContext) -> "_PinFilter":
        """Return the filter."""
        return _PinFilter(self.pins(context))


class ThunderAgent(BoundedParameters, frozen=True):
    """Keeps an agent's session at its endpoint, and others waiting while there is no room.

    It is a scorer, a saturation detector and a fairness policy at once.
    """

    capacity_tokens: Annotated[int, _ROOM] = 4_194_304
    util_threshold: Annotated[float, _ROOM] = 1.0
    idle_lease_seconds: Annotated[float, _ROOM] = 30.0
    head_wait_starvation_ms: Annotated[int, _ROOM] = 1_800_000
    next_turn_predictor: Annotated[str, _ROOM] = ""
    admission_policy: Annotated[str, _ROOM] = ""
    eviction_ttl_seconds: Annotated[float, above_zero("seconds, such as 3600")] = 3600.0
    eviction_sweep_seconds: Annotated[float, _NO_SWEEP] = 10.0

    def start(self, context: PluginContext) -> "_AgentSessions":
        """Return the started plug-in."""
        agents = SessionSource(attribute="agent-identity")
        ids = SessionIds([agents], self.eviction_ttl_seconds)
        return _AgentSessions(_Bindings(ids, "", context))


class _PinPlugin:
    """The common part of scorer and filter: a `CommitObserver` and a `ResponseProcessor`."""

    def __init__(self, pins: "_Tokens | _Bindings") -> None:
        self.pinned = pins.pinned
        self.offered = pins.offered
        self.committed = pins.committed
        self.response_headers = pins.response_headers


class _PinScorer(_PinPlugin):
    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return 1 for the session's endpoint, 0 for others."""
        pinned = self.pinned(request)
        scores = [1.0 if each.endpoint.id == pinned else 0.0 for each in candidates]
        if 1.0 in scores:
            self.offered(request)
        return scores


class _AgentSessions(_PinScorer):
    flow_of = staticmethod(flow_by_fairness_id)

    def cost(self, held: HeldRequest) -> float:
        """Return the engine's seconds that the request takes."""
        return held.work

    def saturation(self, candidates: Candidates) -> float:
        """Return 0, as requests wait for room at endpoints and not for the pool; 1 without any."""
        return 0.0 if candidates else 1.0


class _PinFilter(_PinPlugin):
    def filter(self, request: InferenceRequest, candidates: Candidates) -> Candidates:
        """Return only the session's endpoint; all if it is not a candidate."""
        pinned = self.pinned(request)
        if not pinned:
            return candidates
        return [each for each in candidates if each.endpoint.id == pinned] or candidates


class _Tokens:
    """Endpoints that clients name by tokens: base64 of `namespace/name`."""

    def __init__(self, header: str, profile: str) -> None:
        self._header = header
        self._profile = profile

    def pinned(self, request: InferenceRequest) -> str:
        """Return the id of the endpoint in the token; empty if it cannot be decoded."""
        try:
            return b64decode(request.headers.get(self._header, ""), validate=True).decode()
        except (binascii.Error, ValueError):
            return ""

    def offered(self, request: InferenceRequest) -> None:
        """Do nothing: the client keeps the endpoint."""

    def committed(self, request: InferenceRequest, decision: Decision, now: float) -> None:
        """Do nothing, as above."""

    def response_headers(
        self, request: InferenceRequest, decision: Decision, served: Target | None
    ) -> Headers:
        """Return the token of the endpoint that served the request, or a stage of it."""
        stage = decision.of(self._profile)
        if stage is None:
            return ()
        endpoint = decision.served_endpoint(served) if stage is decision else stage.endpoint
        return ((self._header, b64encode(endpoint.id.encode()).decode()),)


class _Bound(msgspec.Struct, eq=False):
    """The endpoint of several sessions, which can all be unbound at once."""

    endpoint: EndpointId


class _Bindings:
    """The endpoint that each session was first sent to, until the session is idle too long."""

    def __init__(self, settings: SessionIds, profile: str, context: PluginContext) -> None:
        sources = settings.sources or [SessionSource(header=_ID_HEADER)]
        self._finders = [_finder(each, context) for each in sources]
        self._profile = profile
        self._now = 0.0
        self._endpoints: TTLCache[ClientKey, _Bound] = TTLCache(
            _MAX_SESSIONS,
            settings.eviction_ttl_seconds or _TTL_SECONDS,
            timer=lambda: self._now,
        )
        self._bound: dict[EndpointId, _Bound] = {}
        self._offered = RequestId("")
        when_removed(context.subscribe, self._forget)

    def _forget(self, endpoint: EndpointId) -> None:
        """Unbind all sessions of an endpoint that is gone."""
        bound = self._bound.pop(endpoint, None)
        if bound is not None:
            bound.endpoint = EndpointId("")

    def _session(self, request: InferenceRequest) -> ClientKey | None:
        found = next(filter(None, (find(request).strip() for find in self._finders)), "")
        return client_key(found) if found else None

    def pinned(self, request: InferenceRequest) -> str:
        """Return the endpoint of the request's session, as of the last request of any session."""
        session = self._session(request)
        bound = None if session is None else self._endpoints.get(session)
        return "" if bound is None else bound.endpoint

    def offered(self, request: InferenceRequest) -> None:
        """Note that the endpoint of a request's session is a candidate.

        Flow control, which calls scorers again, may send the request to another that has room.
        """
        self._offered = request.id

    def committed(self, request: InferenceRequest, decision: Decision, now: float) -> None:
        """Bind a session to its endpoint, or to another if that is no longer a candidate."""
        self._now = now
        session, stage = self._session(request), decision.of(self._profile)
        if session is None or stage is None:
            return
        bound = self._endpoints.get(session)
        if bound is None or (
            (not bound.endpoint or request.id != self._offered)
            and all(each.endpoint.id != bound.endpoint for each in stage.candidates)
        ):
            chosen = stage.endpoint.id
            bound = self._bound.setdefault(chosen, _Bound(chosen))
        elif stage.endpoint.id != bound.endpoint:
            return
        self._endpoints[session] = bound  # also restarts its TTL

    def response_headers(
        self, request: InferenceRequest, decision: Decision, served: Target | None
    ) -> Headers:
        """Return none."""
        return ()


def _finder(source: SessionSource, context: PluginContext) -> Callable[[InferenceRequest], str]:
    """Return a function that reads the session's id from a request; "" if it has none."""
    if source.header:
        name = source.header.strip().lower()
        return lambda request: request.headers.get(name, "")
    kind = _ATTRIBUTES.get(source.attribute, source.attribute)
    producer = source.producer or context.first_of(kind)
    return find_producer(context, producer, SessionId).session_id
