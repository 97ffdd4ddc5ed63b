"""The plug-in types that profiles consist of: filters, scorers, pickers, and what they replace."""

from typing import Annotated, Any

from epp.config.producers import PreciseProducer
from epp.config.quantities import seconds
from epp.policy.effects import mapped_to
from epp.policy.filters.detectors import (
    UtilizationDetector,
)
from epp.policy.plugins import PluginContext, Scorer
from epp.policy.scorers.caches import (
    PrefixCacheScorer,
)
from epp.policy.scorers.load import (
    ActiveRequestScorer,
)


class PrecisePrefixCacheScorer(PreciseProducer, frozen=True, forbid_unknown_fields=True):
    """A `precise-prefix-cache-producer`, unless the file has one, and the scorer of its matches."""

    indexer_config: Annotated[
        dict[str, Any], mapped_to("the picker's own index; tokens are a `token-producer`'s")
    ] = {}  # type: ignore[assignment]  # noqa: RUF012 (old files have more in it)

    def __post_init__(self) -> None:
        seconds(self.speculative_ttl or "2s")

    def start(self, context: PluginContext) -> Scorer:
        """Return the scorer."""
        return PrefixCacheScorer().start(context)


class UtilizationDetectorParameters(UtilizationDetector, frozen=True):
    """The detector, where its duration is one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        seconds(self.metrics_staleness_threshold)


class ActiveRequestParameters(ActiveRequestScorer, frozen=True):
    """The scorer, where its duration is one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        seconds(self.request_timeout or "2m")
