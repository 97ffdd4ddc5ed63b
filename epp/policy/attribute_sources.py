"""What plug-ins can ask each other about candidates: prefix matches, loads, latencies, sessions.

llm-d-router has a producer for each, which writes attributes of endpoints before profiles run, and
parameters such as `prefixMatchInfoProducerName` by which a plug-in chooses the producer. Here a
producer answers when it is asked. The default is usually `FROM_FLEET`, which answers from the
candidates themselves; producers of latencies and of media must be configured, as there.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar, cast, runtime_checkable

from epp.model.candidate import Candidate
from epp.model.endpoint import Endpoint
from epp.model.learning.trust import DOUBT
from epp.model.request import InferenceRequest
from epp.model.topology import Topology, topology_of
from epp.policy.plugins import Candidates, PluginContext

T = TypeVar("T")


class PrefixMatch(NamedTuple):
    """How many tokens of a prompt's `total` an endpoint is predicted to have cached.

    `whole` if that is all that a cache can hold of it. It is less than `total`, as partial blocks
    are not cached and engines always compute the last token.
    """

    matched: int
    total: int
    whole: bool = False

    @property
    def ratio(self) -> float:
        """The cached share of the part that can be cached, in 0..1; 0 without a prompt."""
        if self.whole:
            return 1.0
        return min(1.0, self.matched / self.total) if self.total else 0.0


def holds_all(candidate: Candidate, matched: int) -> bool:
    """Return whether `matched` leading blocks of a prompt are all that a cache may serve of it."""
    unserved = sum(len(chain.hashes) - chain.lookup for chain in candidate.chains)
    return 0 < candidate.total_blocks - unserved <= matched


class EndpointLoad(NamedTuple):
    """The requests of this picker that are in flight at an endpoint.

    `requests` were sent and have not ended. `tokens` are the uncached ones of their prompts,
    without those whose first token was seen. `uncached` tokens of the request at hand are not
    cached there.
    """

    requests: int
    tokens: float
    uncached: int


class LatencyPrediction(NamedTuple):
    """The predicted latencies of a request at an endpoint, in milliseconds.

    A headroom is the request's objective minus the prediction; an objective that the request does
    not name counts as 0. `dispatched` requests of this picker are at the endpoint. `valid`: the
    prediction meets all objectives that the request names.
    """

    ttft: float
    tpot: float
    ttft_headroom: float
    tpot_headroom: float
    dispatched: int = 0
    valid: bool = True


@runtime_checkable
class PrefixMatchInfo(Protocol):
    """Knows how much of a prompt each endpoint has cached."""

    def prefix_matches(
        self, request: InferenceRequest, candidates: Candidates
    ) -> Sequence[PrefixMatch]:
        """Return one match for each candidate, in their order."""


@runtime_checkable
class InFlightLoad(Protocol):
    """Knows the requests in flight at each endpoint."""

    def in_flight(
        self, request: InferenceRequest, candidates: Candidates
    ) -> Sequence[EndpointLoad]:
        """Return one load for each candidate, in their order."""


@runtime_checkable
class LatencyPredictionInfo(Protocol):
    """Predicts latencies of a request."""

    def latencies(
        self, request: InferenceRequest, candidates: Candidates
    ) -> Sequence[LatencyPrediction | None]:
        """Return one prediction for each candidate, in their order; None if there is none."""


@runtime_checkable
class MultimodalMatchInfo(Protocol):
    """Knows which images, videos and sounds of a request each endpoint has encoded before."""

    def multimodal_matches(
        self, request: InferenceRequest, candidates: Candidates
    ) -> Sequence[PrefixMatch]:
        """Return, for each candidate, the size of the items that match and of all items."""


@runtime_checkable
class SessionId(Protocol):
    """Knows the session that a request belongs to."""

    def session_id(self, request: InferenceRequest) -> str:
        """Return the session's id; empty without one."""


@runtime_checkable
class TopologyInfo(Protocol):
    """Knows where endpoints run."""

    def topology(self, endpoint: Endpoint) -> Topology | None:
        """Return an endpoint's place; None if it is not known."""


@runtime_checkable
class TextAttributes(Protocol):
    """Knows attributes of endpoints that are text."""

    def text(self, endpoint: Endpoint, attribute_key: str) -> str | None:
        """Return the value of an attribute; None if the endpoint has no such."""


@runtime_checkable
class NumberAttributes(Protocol):
    """Knows numeric attributes of endpoints, other than those in `Load.attributes`."""

    def number(self, endpoint: Endpoint, attribute_key: str) -> float | None:
        """Return the value of an attribute; None if the endpoint has no such."""


def shared_places(
    producer: TopologyInfo, request: InferenceRequest, candidates: Candidates
) -> list[str]:
    """Return the narrowest field of `Topology` that each shares with `request.peer`; "" if none."""
    peer = None if request.peer is None else producer.topology(request.peer)
    if peer is None:
        return [""] * len(candidates)
    places = [producer.topology(each.endpoint) for each in candidates]
    return ["" if place is None else peer.shared(place) for place in places]


class _FromFleet:
    """Answers from the candidates, except for `UNKNOWN_TO_FLEET`; it has no sessions."""

    def prefix_matches(
        self, request: InferenceRequest, candidates: Candidates
    ) -> list[PrefixMatch]:
        """Return the tokens that the index predicts to be cached."""
        return [
            PrefixMatch(
                each.cached_tokens,
                each.prompt_tokens,
                whole=each.trust >= DOUBT and holds_all(each, each.matched_blocks),
            )
            for each in candidates
        ]

    def in_flight(self, request: InferenceRequest, candidates: Candidates) -> list[EndpointLoad]:
        """Return the loads in the fleet's ledgers."""
        return [
            EndpointLoad(
                each.requests, each.in_flight_tokens, each.prompt_tokens - each.cached_tokens
            )
            for each in candidates
        ]

    def session_id(self, request: InferenceRequest) -> str:
        """Return no session."""
        return ""

    def topology(self, endpoint: Endpoint) -> Topology | None:
        """Return an endpoint's place by the labels that Kubernetes and llm-d-router have for it."""
        return topology_of(endpoint)

    def text(self, endpoint: Endpoint, attribute_key: str) -> str | None:
        """Return None."""
        return None


FROM_FLEET = _FromFleet()
"""The default producer of all that it knows."""

_DEFAULT_NAMES: Mapping[type, str] = {
    PrefixMatchInfo: "approx-prefix-cache-producer",
    InFlightLoad: "inflight-load-producer",
    LatencyPredictionInfo: "predicted-latency-producer",
    MultimodalMatchInfo: "mm-embeddings-cache-producer",
    TopologyInfo: "topology-extractor",
    TextAttributes: "label-producer",
    SessionId: "session-id-producer",
}
"""The producer that an empty `...ProducerName` refers to (llm-d-router)."""


UNKNOWN_TO_FLEET = frozenset((LatencyPredictionInfo, MultimodalMatchInfo))
"""Facts that only a producer knows; a default one is added to files that do not list it."""


def find_producer(context: PluginContext, name: str, kind: type[T]) -> T:
    """Return the producer of a kind that a `...ProducerName` names. Raises `ConfigError`.

    If the file does not list it, it is `FROM_FLEET`, unless that cannot answer for the kind.
    """
    return context.plugin(name or _DEFAULT_NAMES[kind], kind, cast(T, FROM_FLEET))
