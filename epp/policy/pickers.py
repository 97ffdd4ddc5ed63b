"""How one candidate is chosen: by score, by predicted time to first token, or by simpler means."""

from collections.abc import Sequence

import msgspec

from epp.model.candidate import Candidate
from epp.model.candidates import Candidates
from epp.policy.plugins import Draw

_MOST_PENALTY = 8.0


class MaxScorePicker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Pick the best total, ties at random; `maxNumOfEndpoints` of them, best first."""

    max_num_of_endpoints: int = 1

    def pick(
        self, candidates: Sequence[Candidate], totals: Sequence[float], draw: Draw
    ) -> Sequence[int]:
        """Return the positions of the highest totals."""
        return _best([-total for total in totals], self.max_num_of_endpoints, draw)


class RandomPicker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Pick any candidate, each as likely; `maxNumOfEndpoints` of them."""

    max_num_of_endpoints: int = 1

    def pick(
        self, candidates: Sequence[Candidate], totals: Sequence[float], draw: Draw
    ) -> Sequence[int]:
        """Return random positions."""
        return _best([0.0] * len(candidates), self.max_num_of_endpoints, draw)


class LeastTtftPicker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Pick the smallest predicted time to first token, ties at random.

    The busier the fleet, the dearer prefill that another endpoint has in its cache: computing it
    again takes time from requests to come. Scores are not looked at.
    """

    max_num_of_endpoints: int = 1

    def pick(
        self, candidates: Sequence[Candidate], totals: Sequence[float], draw: Draw
    ) -> Sequence[int]:
        """Return the positions of the lowest costs."""
        return _best(ttft_costs(candidates), self.max_num_of_endpoints, draw)


def ttft_costs(candidates: Sequence[Candidate]) -> list[float]:
    """Seconds until this prompt's first token, recomputation at its price for the fleet.

    `owed + (1 + alpha) * prefill + decode`, alpha = min(8, 2b / (1 - b)) of the busy share b,
    which is the fleet's and so the same for all candidates.
    """
    if type(candidates) is Candidates:  # what is compiled knows no subclass of a `Sequence`
        return candidates.seconds(_price(candidates.busy_share))
    price = _price(candidates[0].busy_share)
    return [
        each.owed_seconds + price * each.prefill_seconds + each.decode_seconds
        for each in candidates
    ]


def _price(busy: float) -> float:
    """Return what a second of prefill counts for in a fleet that is so busy."""
    return 1 + (min(_MOST_PENALTY, 2 * busy / (1 - busy)) if busy < 1 else _MOST_PENALTY)


class LeastRequestPicker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Pick the endpoint with the fewest requests under way, ties at random."""

    max_num_of_endpoints: int = 1

    def pick(
        self, candidates: Sequence[Candidate], totals: Sequence[float], draw: Draw
    ) -> Sequence[int]:
        """Return the positions with the fewest requests."""
        return _best([each.requests for each in candidates], self.max_num_of_endpoints, draw)


class RoundRobinPicker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Pick one candidate after the other."""

    def pick(
        self, candidates: Sequence[Candidate], totals: Sequence[float], draw: Draw
    ) -> Sequence[int]:
        """Return the position whose turn it is."""
        return (draw.turn % len(candidates),)


def _best(costs: Sequence[float], count: int, draw: Draw) -> Sequence[int]:
    """Return the positions of the `count` lowest costs, equal ones in random order."""
    if count == 1:
        lowest = min(costs)
        ties = [position for position, cost in enumerate(costs) if cost == lowest]
        return (ties[draw.below(len(ties))] if len(ties) > 1 else ties[0],)
    left = list(range(len(costs)))
    shuffled = [left.pop(draw.below(len(left))) for _ in costs]
    return sorted(shuffled, key=costs.__getitem__)[: max(1, count)]
