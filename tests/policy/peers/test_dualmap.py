"""dualmap: two endpoints for each prefix, and the choice between them, worked out by hand."""

import pytest

from epp.model.events import EndpointRemoved
from epp.model.prompts.chain import Chain
from epp.policy.attribute_sources import PrefixMatch
from epp.policy.peers.dualmap import DualMapScorer
from tests.policy.started import Context, Told, started
from tests.strategies import candidate, endpoint, request

NAMES = "abcdefgh"


class Map:
    """Eight endpoints, one prompt, and what is predicted of each."""

    def __init__(self, key=12345, **parameters):
        self.context = Context()
        self.scorer = DualMapScorer(**parameters).start(self.context)
        self.chains = (Chain([key], [32], 40, 1, exact=True),)
        # With all equal both of the two may be chosen.
        self.two = self.best({}, {})

    def best(self, cached, seconds, names=NAMES):
        """Name those that may be chosen; `seconds` are of queue, prefill and decode."""
        found = [
            candidate(
                name,
                prompt_tokens=100,
                cached_tokens=cached.get(name, 0),
                queued_prefill_seconds=seconds.get(name, (0, 0, 0))[0],
                prefill_seconds=seconds.get(name, (0, 0, 0))[1],
                decode_seconds=seconds.get(name, (0, 0, 0))[2],
                chains=self.chains,
            )
            for name in names
        ]
        scores = self.scorer.score(request(), found)
        assert set(scores) <= {0, 1}
        return [name for name, score in zip(names, scores, strict=True) if score]


@pytest.mark.parametrize("key", range(0, 2**64, 2**60))
def test_a_prefix_has_two_endpoints_and_others_count_for_nothing(key):
    at = Map(key)
    assert len(at.two) == 2
    assert at.best(dict.fromkeys(set(NAMES) - set(at.two), 100), {}) == at.two


def test_pairs_differ():
    """Neighbours on one ring would be 8 pairs; two hash functions make up to 28."""
    assert len({tuple(Map(key).two) for key in range(0, 2**64, 2**58)}) > 14


def test_the_warmer_is_chosen_as_long_as_it_is_in_time():
    at = Map()
    warm, cold = at.two
    assert at.best({warm: 16}, {warm: (3, 1, 1), cold: (0, 1, 0)}) == [warm]
    assert at.best({warm: 16}, {warm: (3, 1, 1.001), cold: (0, 1, 0)}) == [cold]
    assert at.best({warm: 16}, {warm: (6, 1, 0), cold: (8, 2, 0)}) == [warm]  # both are late
    assert at.best({warm: 16, cold: 16}, {warm: (1, 0, 0), cold: (0, 0, 0)}) == [cold]


def test_the_objective_can_be_another():
    at = Map(ttft_slo_seconds=0.5)
    warm, cold = at.two
    assert at.best({warm: 16}, {warm: (0.5, 0, 0)}) == [warm]
    assert at.best({warm: 16}, {warm: (0.6, 0, 0)}) == [cold]


def test_one_that_goes_leaves_the_other_in_place():
    at = Map()
    gone, stays = at.two
    left = [name for name in NAMES if name != gone]
    before = at.best({}, {}, left)
    for listener in at.context.listeners:
        listener(EndpointRemoved(endpoint(gone).id), 0.0, False)
    assert at.best({}, {}, left) == before
    assert stays in before
    assert len(before) == 2
    assert at.best({}, {}, [stays]) == [stays]
    assert at.scorer.score(request(), []) == []


def test_a_named_producer_is_asked():
    warm, cold = Map().two
    told = Told({cold: PrefixMatch(50, 100)}, PrefixMatch(0, 100))
    scorer = started(DualMapScorer(prefix_match_info_producer_name="precise"), precise=told)
    found = [candidate(name, chains=Map().chains) for name in NAMES]
    assert [NAMES[at] for at, score in enumerate(scorer.score(request(), found)) if score] == [cold]
    assert warm != cold
