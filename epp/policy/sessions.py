"""Session affinity: the endpoint that served a session before, as a scorer and as a filter.

The strategy `encoded_endpoint_header` has the client say it, by the token of the response before;
`session_id` keeps it in the picker, by the session's id. Names and rules are llm-d-router's.
"""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, Protocol

from cachetools import TTLCache

from epp.model.candidate import Candidate
from epp.model.decision import Decision
from epp.model.endpoint import EndpointId, Target
from epp.model.events import EndpointRemoved, Event
from epp.model.request import InferenceRequest
from epp.policy.attribute_sources import SessionId, find_producer
from epp.policy.client_keys import ClientKey, client_key
from epp.policy.effects import without_effect
from epp.policy.plugins import Headers, PluginContext, PluginParameters

_MOST_SESSIONS = 100_000
"""Sessions whose endpoint is kept; beyond them the one that was idle the longest goes."""
_TOKEN_HEADER = "x-session-token"  # noqa: S105 (the name of a header)
_ID_HEADER = "x-session-id"
_ATTRIBUTES = {"SessionID": "session-id-producer"}
"""Attributes whose producer has another name."""

_NO_SWEEP = without_effect("an idle session counts as gone at once")


class TokenHeader(PluginParameters, frozen=True):
    """The header of requests and responses that names the endpoint; empty: the default."""

    header: str = _TOKEN_HEADER

    @property
    def name(self) -> str:
        """The header's name, in lower case."""
        return self.header.strip().lower() or _TOKEN_HEADER


class SessionSource(PluginParameters, frozen=True):
    """Where a session's id is: in a header, or with the plug-in that produces an attribute."""

    header: str = ""
    attribute: str = ""
    producer: str = ""

    def __post_init__(self) -> None:
        if bool(self.header) == bool(self.attribute):
            raise ValueError("exactly one of `header` and `attribute` is needed")


class SessionIds(PluginParameters, frozen=True):
    """Where sessions' ids are, the first that is not empty counting; and when idle ones go."""

    sources: list[SessionSource] = []
    eviction_ttl_seconds: float = 300.0
    eviction_sweep_seconds: Annotated[float, _NO_SWEEP] = 10.0

    def __post_init__(self) -> None:
        if self.eviction_ttl_seconds <= 0 or self.eviction_sweep_seconds <= 0:
            raise ValueError("`evictionTtlSeconds` and `evictionSweepSeconds` must be above 0")


class SessionAffinity(PluginParameters, frozen=True):
    """Parameters of session affinity; `profile_name` is the stage that it follows, "" the last."""

    strategy: Literal["encoded_endpoint_header", "session_id"] = "encoded_endpoint_header"
    encoded_endpoint_header_config: TokenHeader = TokenHeader()
    session_id_config: SessionIds = SessionIds()
    profile_name: str = ""

    def pins(self, context: PluginContext) -> "_Pins":
        """Return what knows the endpoints of sessions."""
        if self.strategy == "session_id":
            return _Bindings(self.session_id_config, self.profile_name, context)
        return _Tokens(self.encoded_endpoint_header_config.name, self.profile_name)


class SessionAffinityScorer(SessionAffinity, frozen=True):
    """Prefers the endpoint of the session."""

    def start(self, context: PluginContext) -> "_PinScorer":
        """Return what scores."""
        return _PinScorer(self.pins(context))


class SessionAffinityFilter(SessionAffinity, frozen=True):
    """Keeps the endpoint of the session alone, as long as it is a candidate."""

    def start(self, context: PluginContext) -> "_PinFilter":
        """Return what filters."""
        return _PinFilter(self.pins(context))


class MulticlusterSessionAffinityFilter(SessionAffinityFilter, frozen=True):
    """The same, where each endpoint is a cluster."""


class _Pins(Protocol):
    def pinned(self, request: InferenceRequest) -> str:
        """Return the id of the endpoint of a request's session; empty without one."""

    def committed(self, request: InferenceRequest, decision: Decision, now: float) -> None:
        """Take note of a decision."""

    def response_headers(
        self, request: InferenceRequest, decision: Decision, served: Target | None
    ) -> Headers:
        """Return the headers that tell the client its endpoint."""


class _PinPlugin:
    """What scorer and filter have in common."""

    def __init__(self, pins: _Pins) -> None:
        self._pins = pins

    def committed(self, request: InferenceRequest, decision: Decision, now: float) -> None:
        """Take note of a decision (`CommitObserver`)."""
        self._pins.committed(request, decision, now)

    def response_headers(
        self, request: InferenceRequest, decision: Decision, served: Target | None
    ) -> Headers:
        """Return headers for the client (`ResponseProcessor`)."""
        return self._pins.response_headers(request, decision, served)


class _PinScorer(_PinPlugin):
    def score(self, request: InferenceRequest, candidates: Sequence[Candidate]) -> list[float]:
        """Return 1 for the session's endpoint, 0 for others."""
        pinned = self._pins.pinned(request)
        return [1.0 if pinned and each.endpoint.id == pinned else 0.0 for each in candidates]


class _PinFilter(_PinPlugin):
    def filter(
        self, request: InferenceRequest, candidates: Sequence[Candidate]
    ) -> Sequence[Candidate]:
        """Return the session's endpoint alone; all if it is not a candidate."""
        pinned = self._pins.pinned(request)
        if not pinned:
            return candidates
        return [each for each in candidates if each.endpoint.id == pinned] or candidates


class _Tokens:
    """Endpoints that clients name by tokens: base64 of `namespace/name`."""

    def __init__(self, header: str, profile: str) -> None:
        self._header = header
        self._profile = profile

    def pinned(self, request: InferenceRequest) -> str:
        """Return what the token says; empty for what is not a token."""
        try:
            return b64decode(request.headers.get(self._header, ""), validate=True).decode()
        except (binascii.Error, ValueError):
            return ""

    def committed(self, request: InferenceRequest, decision: Decision, now: float) -> None:
        """Keep nothing."""

    def response_headers(
        self, request: InferenceRequest, decision: Decision, served: Target | None
    ) -> Headers:
        """Return the token of the endpoint that served the request, or a stage of it."""
        stage = decision.of(self._profile)
        if stage is None:
            return ()
        endpoint = stage.endpoint
        if stage is decision and served is not None and endpoint.target != served:
            others = (each.endpoint for each in decision.candidates)
            endpoint = next((each for each in others if each.target == served), endpoint)
        return ((self._header, b64encode(endpoint.id.encode()).decode()),)


class _Bound:
    """The endpoint of some sessions, all of which lose it at once."""

    __slots__ = ("endpoint",)

    def __init__(self, endpoint: EndpointId) -> None:
        self.endpoint = endpoint


class _Bindings:
    """Endpoints that sessions were sent to first, until they are idle for some time."""

    def __init__(self, settings: SessionIds, profile: str, context: PluginContext) -> None:
        sources = settings.sources or [SessionSource(header=_ID_HEADER)]
        self._finders = [_finder(each, context) for each in sources]
        self._profile = profile
        self._now = 0.0
        self._endpoints: TTLCache[ClientKey, _Bound] = TTLCache(
            _MOST_SESSIONS, settings.eviction_ttl_seconds, timer=lambda: self._now
        )

        self._bound: dict[EndpointId, _Bound] = {}
        context.subscribe([EndpointRemoved], self._forget)

    def _forget(self, event: Event, _now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        """Unbind all sessions of an endpoint that is gone."""
        if isinstance(event, EndpointRemoved):
            bound = self._bound.pop(event.endpoint_id, None)
            if bound is not None:
                bound.endpoint = EndpointId("")

    def dump_state(self) -> dict[str, object]:
        """Return how many sessions there are, and how many endpoints they are bound to."""
        return {"sessions": len(self._endpoints), "endpoints": len(self._bound)}

    def _session(self, request: InferenceRequest) -> ClientKey | None:
        found = next((found for find in self._finders if (found := find(request).strip())), "")
        return client_key(found) if found else None

    def pinned(self, request: InferenceRequest) -> str:
        """Return the endpoint of the request's session, as of the last request of any session."""
        session = self._session(request)
        bound = None if session is None else self._endpoints.get(session)
        return "" if bound is None else bound.endpoint

    def committed(self, request: InferenceRequest, decision: Decision, now: float) -> None:
        """Bind a session to its first endpoint, or anew if that is not a candidate any more."""
        self._now = now
        session, stage = self._session(request), decision.of(self._profile)
        if session is None or stage is None:
            return
        bound = self._endpoints.get(session)
        if bound is None or all(each.endpoint.id != bound.endpoint for each in stage.candidates):
            chosen = stage.endpoint.id
            bound = self._bound.setdefault(chosen, _Bound(chosen))
        elif stage.endpoint.id != bound.endpoint:
            return
        self._endpoints[session] = bound  # which starts its time anew

    def response_headers(
        self, request: InferenceRequest, decision: Decision, served: Target | None
    ) -> Headers:
        """Return none."""
        return ()


def _finder(source: SessionSource, context: PluginContext) -> Callable[[InferenceRequest], str]:
    """Return what finds a session's id in a request; it returns "" if there is none."""
    if source.header:
        name = source.header.strip().lower()
        return lambda request: request.headers.get(name, "")
    kind = _ATTRIBUTES.get(source.attribute, source.attribute)
    producer = source.producer or context.first_of(kind)
    return find_producer(context, producer, SessionId).session_id
