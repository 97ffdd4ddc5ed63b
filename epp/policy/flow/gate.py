"""The gate of llm-d-router's flow control: a band sends while the pool is below the band's ceiling.

A saturation detector measures how busy the pool is: the endpoints that prefill and those that
decode, of which the busier group counts. A usage limit policy sets the ceilings. Bands are checked
from the highest priority down, and the first one that is closed closes all below.
"""

from collections.abc import Iterable, Sequence
from math import inf
from typing import Final

from epp.model.candidate import Candidate
from epp.model.fleet import Fleet
from epp.model.quote import Quote
from epp.model.request import InferenceRequest, RequestId
from epp.policy.filters.detectors import STAGES, SeveralDetectors, of_stage
from epp.policy.flow.settings import GateSettings

EFFECTIVE: Final = "effective"
"""The name of the saturation that counts, in addition to those of the stages."""
_DEFAULT_PRIORITY: Final = 0


class SaturationGate:
    """The gate before one fleet. A priority gets a band with its first request."""

    def __init__(self, fleet: Fleet, settings: GateSettings) -> None:
        self.settings: Final = settings
        self._fleet: Final = fleet
        self._priorities = sorted({_DEFAULT_PRIORITY, *settings.priorities}, reverse=True)
        self._quote: Quote | None = None

    def measure(self, now: float) -> dict[str, float]:
        """Return the saturation of each stage that has endpoints, and the one that counts."""
        candidates, detect = self._candidates(now), self.settings.detector.saturation
        found = {stage: detect(kept) for stage, kept in _by_stage(candidates).items()}
        return {**found, EFFECTIVE: max(found.values()) if found else detect(candidates)}

    def detected(self, now: float) -> list[tuple[str, str, float]]:
        """Return the saturation that each detector finds in each stage, after both names."""
        detector, found = self.settings.detector, list[tuple[str, str, float]]()
        for stage, kept in _by_stage(self._candidates(now)).items():
            if isinstance(detector, SeveralDetectors):
                found += [(name, stage, value) for name, value in detector.found(kept)]
            else:
                found.append((self.settings.name, stage, detector.saturation(kept)))
        return found

    def _candidates(self, now: float) -> Sequence[Candidate]:
        if self._quote is None:
            self._quote = self._fleet.quote(InferenceRequest(id=RequestId("")), now)
        return self._fleet.candidates(self._quote, now)

    def least_open(self, now: float) -> float:
        """Return the lowest priority that may send now; infinite if none may."""
        saturation = self.measure(now)[EFFECTIVE]
        priorities, least = self._priorities, inf
        ceilings = self.settings.usage_limits.ceilings(saturation, priorities)
        for priority, ceiling in zip(priorities, ceilings, strict=True):
            if saturation >= ceiling:
                break
            least = priority
        return least

    def admits(self, priority: int, now: float) -> bool:
        """Return whether a request of a priority may be sent now."""
        self.add_bands((priority,))
        return priority >= self.least_open(now)

    def add_bands(self, priorities: Iterable[int]) -> None:
        """Add bands for priorities that have none."""
        if not set(priorities).issubset(self._priorities):
            self._priorities = sorted({*self._priorities, *priorities}, reverse=True)


def _by_stage(candidates: Sequence[Candidate]) -> dict[str, Sequence[Candidate]]:
    """Return the endpoints of each stage that has any."""
    return {stage: kept for stage in STAGES if (kept := of_stage(stage, candidates))}
