"""Every learner finds back to the truth: whatever was measured for minutes, minutes later it is
right, and where nothing changes it stays there."""

from math import exp
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epp.model.learning import decode, prefill
from epp.model.learning.output_lengths import OutputLengths
from epp.model.learning.slowness import ClassSlowness, Slowness
from epp.model.learning.trust import PredictionTrust
from epp.model.learning.ttft_share import TtftShare
from epp.model.pods.pace import Pace, PaceClass
from epp.model.prompts.token_estimator import TokenEstimator
from epp.model.prompts.token_offsets import TokenOffsets

ASKED = ("a model", True)
NEAR = 1.3
PODS = 8
TOKENS = (120, 3000, 700, 64, 6000, 250, 1500)
"""Uncached tokens of prompts, in turn."""
SEQUENCES = (5, 30, 1, 12, 60)
"""What decodes beside one another, in turn; each looks back at `CONTEXT` tokens."""
CONTEXT = 2000


class Learner:
    """What learns by one measurement after another; `values` are what is learned over the truth."""

    def __init__(self, shape):
        """The truth of a formula is its defaults times `shape`."""
        del shape


class Endpoint(Learner):
    """One endpoint of a class in which others are as they were."""

    def __init__(self, shape):
        super().__init__(shape)
        of_class = ClassSlowness()
        for _ in range(PODS):
            Slowness(of_class).learn(1.0, 1.0, 0.0)
        self.slowness = Slowness(of_class)

    def learn(self, times, weight):
        self.slowness.learn(0.1, 0.1 * times, 0.0)

    @property
    def values(self):
        return [self.slowness.value]


class Speeds(Learner):
    """Endpoints of one class; `shape` is of the class's formula, of which each takes a multiple."""

    def __init__(self, shape):
        super().__init__(shape)
        self.of_class = PaceClass()
        self.paces = [Pace(self.of_class) for _ in range(PODS)]
        self.shape = shape
        self.turn = 0

    def next(self):
        """Return whose turn it is, and what of."""
        self.turn += 1
        return self.paces[self.turn % PODS], self.turn


class Prefills(Speeds):
    """What prompts take that meet an idle endpoint."""

    def truth(self, uncached):
        return (
            self.shape[0] * prefill.STEP_SECONDS
            + self.shape[1] * prefill.TOKEN_SECONDS * uncached
            + self.shape[2] * prefill.ATTENTION_SECONDS * uncached**2 / 2
        )

    def learn(self, times, weight):
        pace, turn = self.next()
        uncached = TOKENS[turn % len(TOKENS)]
        model, seconds = self.of_class.prefill, times * self.truth(uncached)
        pace.learn_prefill(model.seconds(uncached, 0) / model.slowness.scale, seconds, 0.0)
        pace.learn_prompt(uncached, 0, seconds)

    @property
    def values(self):
        return [
            pace.prefill_slowness.value
            * sum(self.of_class.prefill.seconds(each, 0) for each in TOKENS)
            / sum(map(self.truth, TOKENS))
            for pace in self.paces
        ]


class Decodes(Speeds):
    """What steps take in which others decode as well, of responses of 200 tokens."""

    def truth(self, sequences):
        return (
            self.shape[0] * decode.STEP_SECONDS
            + self.shape[1] * decode.SEQUENCE_SECONDS * sequences
            + self.shape[2] * decode.CONTEXT_SECONDS * sequences * CONTEXT
        )

    def learn(self, times, weight):
        pace, turn = self.next()
        sequences, now = SEQUENCES[turn % len(SEQUENCES)], 1000.0 * turn
        pace.count(0, 0, now, prefilling=False)
        mark, now = pace.mark(), now + 200 * times * self.truth(sequences)
        pace.count(sequences, sequences * CONTEXT, now, prefilling=False)
        pace.learn_decode(mark, 200, now)

    @property
    def values(self):
        return [
            sum(pace.step_seconds(each, each * CONTEXT) for each in SEQUENCES)
            / sum(map(self.truth, SEQUENCES))
            for pace in self.paces
        ]


class Lengths(Learner):
    """Lengths of responses, which are 300 tokens on average."""

    def __init__(self, shape):
        super().__init__(shape)
        self.learned = OutputLengths()

    def learn(self, times, weight):
        self.learned.record_length(ASKED, max(1, round(300 * times)), weight=weight)

    @property
    def values(self):
        return [self.learned.length(ASKED) / 300]


class SecondsPerToken(Learner):
    """What a token takes, which is 20 ms."""

    def __init__(self, shape):
        super().__init__(shape)
        self.pace = Pace(PaceClass())

    def learn(self, times, weight):
        self.pace.of_class.learn_tokens(101, 2.0 * times, weight)

    @property
    def values(self):
        return [self.pace.seconds_per_token / 0.02]


class FirstTokens(Learner):
    """The share of first tokens in the time of responses, which is a twentieth."""

    def __init__(self, shape):
        super().__init__(shape)
        self.share = TtftShare()

    def learn(self, times, weight):
        self.share.learn(0.2 * times, 0.2 * times + 3.8, weight)

    @property
    def values(self):
        return [self.share.value / 0.05]


class Trust(Learner):
    """Trust in a cache that holds all that is predicted; what is wrong is what it holds."""

    def __init__(self, shape):
        super().__init__(shape)
        self.trust = PredictionTrust()

    def learn(self, times, weight):
        self.trust.judge(2000, min(2000, round(2000 * times)), 16)

    @property
    def values(self):
        return [self.trust.trust]


class BytesAToken(Learner):
    """Bytes a token of a model's texts, which are 4."""

    def __init__(self, shape):
        super().__init__(shape)
        self.estimator = TokenEstimator()

    def learn(self, times, weight):
        self.estimator.learn("a model", "prose", 8000, max(1, round(2000 * times)))

    @property
    def values(self):
        return [self.estimator.rate("a model", "prose") / 4]


class LengthError(BytesAToken):
    """The error of estimates, which is a fifth."""

    def learn(self, times, weight):
        offsets = TokenOffsets(2000, [2000], 0)
        self.estimator.learn_error("a model", "prose", offsets, round(2000 + 400 * times))

    @property
    def values(self):
        return [self.estimator.error("a model", "prose") / 0.2]


LEARNERS = {
    Endpoint: 180 * 14 // PODS,
    Prefills: 180 * 14,
    Decodes: 180 * 8,
    Lengths: 180 * 2,
    SecondsPerToken: 180 * 2,
    FirstTokens: 180 * 8,  # where all are observed: a mean of two hundred forgets slowly
    Trust: 180 * 2,
    BytesAToken: 180 * 2,
    LengthError: 180 * 2,
}
"""Learners, and what they measure in three minutes of normal traffic."""
FAR = st.sampled_from((0.01, 0.03, 0.1, 10.0, 30.0, 100.0))
EPISODES = st.lists(
    st.tuples(FAR | st.floats(0.01, 100.0), st.integers(1, 400), st.sampled_from((1.0, 8.0))),
    min_size=1,
    max_size=3,
)
"""Times that something takes in place of one, for how many measurements, each for so many."""
SHAPES = st.tuples(*[st.sampled_from((0.3, 1.0, 3.0))] * 3)


@pytest.mark.parametrize("learner", LEARNERS)
@settings(max_examples=30)
@given(history=EPISODES, weight=st.sampled_from((1.0, 8.0)), known=st.booleans(), shape=SHAPES)
@example(history=[(0.03, 51, 1.0)], weight=1.0, known=False, shape=(3.0, 0.3, 0.3))
@example(history=[(0.03, 60, 1.0)], weight=1.0, known=False, shape=(3.0, 0.3, 0.3))
def test_what_was_measured_wrong_for_minutes_is_right_minutes_later(
    learner, history, weight, known, shape
):
    learned = learner(shape)
    # A response stands for others once much is known.
    for times, count, each in [(1.0, 100 * known, 1.0), *history, (1.0, LEARNERS[learner], weight)]:
        for _ in range(count):
            learned.learn(times, each if known else 1.0)
    for value in learned.values:
        assert 1 / NEAR < value < NEAR


@pytest.mark.parametrize("learner", LEARNERS)
@settings(max_examples=10)
@given(seed=st.integers(0, 1 << 32), weight=st.sampled_from((1.0, 100.0)), shape=SHAPES)
def test_noise_alone_moves_nothing_far(learner, seed, weight, shape):
    learned, noise, spread = learner(shape), Random(seed), 0.3  # noqa: S311 (noise)
    for number in range(1000):
        learned.learn(exp(noise.gauss(-(spread**2) / 2, spread)), weight)
        if number > 200:
            for value in learned.values:
                assert 1 / 1.75 < value < 1.75
