"""Producers of llm-d-router's whose work the fleet's own model does.

Their parameters are read and checked, so that files that list them load.
"""

from typing import Annotated, ClassVar, Literal

import msgspec

from epp.policy.attribute_sources import FROM_FLEET, PrefixMatchInfo
from epp.policy.bounds import BoundedParameters, within
from epp.policy.effects import Effect, mapped_to, without_effect
from epp.policy.plugins import PluginContext, PluginParameters
from epp.policy.scorers.load import LeastTtftScorer

_Duration = str | int
_PREDICTED = mapped_to("the fleet's own predictions of TTFT")
_NO_HINTS = without_effect("requests are sent on without hints of how long to keep their blocks")


class BurstPrefixCacheProducer(BoundedParameters, frozen=True):
    """Groups equal prompts that arrive within a window.

    The fleet admits each request as it is decided on, so that the next of a burst finds the
    prompt cached where the one before it went.
    """

    effect: ClassVar[Effect] = mapped_to(
        "the fleet's model: equal prompts of a burst find each other's blocks, and nothing waits"
    )
    window_duration_ms: Annotated[int, within(1, 10_000, "milliseconds, such as 100")] = 100
    max_per_replica: int = -1
    block_size_tokens: int = 64
    max_prefix_tokens_to_match: int = 0
    min_colocate_blocks: int = 0
    max_batch_size: int = 1000
    balance_by: Literal["requests", "tokens", ""] = "requests"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_per_replica != -1 and self.max_per_replica < 1:
            raise ValueError("`maxPerReplica` must be -1, or at least 1")
        if self.max_prefix_tokens_to_match and (
            self.max_prefix_tokens_to_match < self.block_size_tokens
        ):
            raise ValueError("`maxPrefixTokensToMatch` must be 0, or at least `blockSizeTokens`")

    def start(self, context: PluginContext) -> PrefixMatchInfo:
        """Return a producer that answers from the fleet's index."""
        return FROM_FLEET


class LatencyObserverProducer(PluginParameters, frozen=True):
    """Keeps percentiles of observed TTFT; durations are Go's, or nanoseconds."""

    effect: ClassVar[Effect] = _PREDICTED
    interval_duration: _Duration = "1s"
    max_observation_age: _Duration = "3m"
    max_requests: int = 100
    min_requests: int = 10
    low_percentile: float = 25.0
    typical_percentile: float = 50.0
    window_size: int = 5000
    bucket_duration: _Duration = "1m"
    bucket_history_size: int = 1000
    in_flight_load_producer_name: str = ""


class _ByTtft(LeastTtftScorer, frozen=True):
    effect: ClassVar[Effect] = mapped_to("`least-ttft-scorer`")
    exploration_rate: float = 0.1


class LatencyObservationScorer(_ByTtft, frozen=True):
    """Prefers the endpoint with the lowest predicted time to first token."""

    min_inflight_gap: float = 2.0
    round_ttft_step: float = msgspec.field(default=0.0, name="roundTTFTStep")
    in_flight_load_producer_name: str = ""
    ttft_percentiles_producer_name: str = ""


class SojournTimeObserver(PluginParameters, frozen=True):
    """Keeps distributions of the times to the first token, and from there to the last."""

    effect: ClassVar[Effect] = _PREDICTED
    compression: float = 200.0
    min_samples: int = 60
    interval_duration: _Duration = "5s"


class MeanResidualLifeScorer(_ByTtft, frozen=True):
    """Prefers the endpoint whose requests in flight have the least work left."""

    sojourn_time_observer_producer_name: str = ""


class InterTurnLatencyProducer(PluginParameters, frozen=True):
    """Learns how long sessions pause between requests, for `kv-cache-hint`."""

    effect: ClassVar[Effect] = _NO_HINTS
    session_type_header: str = "x-session-type"
    queues: list[dict[str, object]] = []
    initial_log_mean: float = 2.28
    initial_log_std: float = 1.34
    ema_factor: float = 0.1
    min_samples: int = 20
    window_size: int = 200
    min_interval: _Duration = "100ms"
    max_idle: _Duration = "1h"
    max_sessions: int = 100_000


class KvCacheHint(PluginParameters, frozen=True):
    """Tells engines how long to keep the blocks of a session."""

    effect: ClassVar[Effect] = _NO_HINTS
    parent_session_header: str = "x-parent-session-id"
    queues: list[dict[str, object]] = []


class SessionStateProducer(PluginParameters, frozen=True):
    """Counts the turns and tokens of each agent, for flow control."""

    effect: ClassVar[Effect] = mapped_to("`program-aware-fairness`, which counts for itself")
    eviction_ttl_seconds: float = 3600.0
    eviction_sweep_seconds: float = 300.0


class PeerDiscovery(PluginParameters, frozen=True):
    """Finds other replicas of the picker: pods with labels, at a port."""

    effect: ClassVar[Effect] = without_effect("`--replicas` names the other replicas")
    selector: str | dict[str, object]
    port: int
