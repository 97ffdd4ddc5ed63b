"""How one candidate is chosen: by score, by predicted time to first token, or by simpler means."""

from collections.abc import Sequence

import msgspec

from epp.model.candidate import Candidate
from epp.policy.choice import best, ttft_costs
from epp.policy.plugins import PickContext


class MaxScorePicker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Pick the best total, ties at random; `maxNumOfEndpoints` of them, best first."""

    max_num_of_endpoints: int = 1

    def pick(
        self, candidates: Sequence[Candidate], totals: Sequence[float], draw: PickContext
    ) -> Sequence[int]:
        """Return the positions of the highest totals."""
        return best([-total for total in totals], self.max_num_of_endpoints, draw)


class RandomPicker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Pick any candidate, each as likely; `maxNumOfEndpoints` of them."""

    max_num_of_endpoints: int = 1

    def pick(
        self, candidates: Sequence[Candidate], totals: Sequence[float], draw: PickContext
    ) -> Sequence[int]:
        """Return random positions."""
        return best([0.0] * len(candidates), self.max_num_of_endpoints, draw)


class LeastTtftPicker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Pick the smallest predicted time to first token, ties at random.

    The busier the fleet, the dearer prefill that another endpoint has in its cache: computing it
    again takes time from requests to come. Scores are not looked at.
    """

    max_num_of_endpoints: int = 1

    def pick(
        self, candidates: Sequence[Candidate], totals: Sequence[float], draw: PickContext
    ) -> Sequence[int]:
        """Return the positions of the lowest costs."""
        return best(ttft_costs(candidates), self.max_num_of_endpoints, draw)


class LeastRequestPicker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Pick the endpoint with the fewest requests under way, ties at random."""

    max_num_of_endpoints: int = 1

    def pick(
        self, candidates: Sequence[Candidate], totals: Sequence[float], draw: PickContext
    ) -> Sequence[int]:
        """Return the positions with the fewest requests."""
        return best([each.requests for each in candidates], self.max_num_of_endpoints, draw)


class RoundRobinPicker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Pick one candidate after the other."""

    def pick(
        self, candidates: Sequence[Candidate], totals: Sequence[float], draw: PickContext
    ) -> Sequence[int]:
        """Return the position whose turn it is."""
        return (draw.turn % len(candidates),)
