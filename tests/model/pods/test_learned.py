"""What a fleet has learned, taken in by another one as it comes from a replica."""

import math

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epp.model.endpoint import Endpoint
from epp.model.events import EndpointUpserted, LearnedCopied
from epp.model.fleet import Fleet
from epp.model.pods.pods import CLASS_LABEL
from epp.model.prompts.block_hasher import BlockHasher
from epp.protocol.replicas.facts import LearnedReply, Mean, Slow

KIND = ("m", True)
SECONDS = st.floats(1e-9, 1e9)
TOKENS = st.integers(1, 1 << 20)
LESSONS = st.lists(
    st.one_of(
        st.tuples(st.just("prompt"), st.integers(0, 2), TOKENS, TOKENS, SECONDS),
        st.tuples(st.just("prefill"), st.integers(0, 2), SECONDS, SECONDS),
        st.tuples(st.just("decode"), st.integers(0, 2), SECONDS, SECONDS),
        st.tuples(
            st.just("step"), st.integers(0, 2), st.floats(1, 1e4), st.floats(0, 1e8), SECONDS
        ),
        st.tuples(st.just("length"), st.booleans(), TOKENS, st.floats(0.01, 100)),
        st.tuples(st.just("token"), st.integers(0, 2), TOKENS, SECONDS),
        st.tuples(st.just("share"), SECONDS, SECONDS),
    ),
    max_size=60,
)


def fleet(labels=("", "", "big")):
    made = Fleet(BlockHasher(b"secret of a fleet"))
    for number, label in enumerate(labels):
        endpoint = Endpoint(
            "default",
            f"pod-{number}",
            f"10.0.0.{number}",
            8000,
            labels={CLASS_LABEL: label} if label else {},
        )
        made.apply(EndpointUpserted(endpoint), 0.0)
    return made


def pace(of, number):
    return list(of.pods.values())[number].pace


def teach(of, lesson, now):
    kind, *values = lesson
    lengths = of.output_lengths
    match kind:
        case "prompt":
            pace(of, values[0]).learn_prompt(*values[1:])
        case "prefill":
            pace(of, values[0]).learn_prefill(*values[1:], now)
        case "decode":
            pace(of, values[0]).decode_slowness.learn(*values[1:], now)
            pace(of, values[0]).of_class.decode.recentre()
        case "step":
            pace(of, values[0]).of_class.decode.learn(*values[1:])
        case "length":
            lengths.record_length(("m", values[0]), values[1], None, values[2])
        case "token":
            pace(of, values[0]).of_class.learn_tokens(*values[1:], 1.0)
        case _:
            lengths.ttft_share.learn(min(values), max(values))


def told(of):
    """Return what it has learned, as another replica reads it."""
    state = of.pods.learned(of.output_lengths)
    fact = LearnedReply(state.classes, state.endpoints, state.responses, state.ttft_share)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(fact), type=LearnedReply)
    return LearnedCopied(read.classes, read.endpoints, read.responses, read.ttft_share)


def predictions(of):
    lengths, paces = of.output_lengths, [pod.pace for pod in of.pods.values()]
    return [
        lengths.ttft_share.value,
        *[lengths.length(("m", stream)) for stream in (False, True)],
        *[lengths.remaining(("m", stream), None, 300) for stream in (False, True)],
        *[each.seconds_per_token for each in paces],
        *[each.prefill_slowness.value for each in paces],
        *[each.prefill_slowness.by_first_prediction for each in paces],
        *[each.prefill_slowness.relative for each in paces],
        *[each.of_class.prefill.slowness.mean for each in paces],
        *[each.decode_slowness.value for each in paces],
        *[each.of_class.prefill.seconds(5000, 3000) for each in paces],
        *[each.step_seconds(10, 5000) for each in paces],
    ]


STALE_SUMS = [
    *[("prompt", 0, 1, 1, 1.0)] * 6,
    ("length", True, 1, 16.0),
    ("length", True, 277, 1.0),
]
SETTLED = [
    *[("prompt", 0, 1000, 0, 0.05)] * 16,
    *[("prefill", 0, 1.0, 2.0)] * 5,
    *[("share", 1.0, 9.0)] * 16,
]


@given(LESSONS, LESSONS)
@example(STALE_SUMS, [])
@example(SETTLED, [])
def test_who_takes_it_in_predicts_the_same_and_goes_on_alike(before, after):
    one, other = fleet(), fleet()
    for now, lesson in enumerate(before):
        teach(one, lesson, float(now))
    other.apply(told(one), 60.0)
    assert told(other) == told(one)
    assert predictions(other) == pytest.approx(predictions(one), rel=1e-9)
    for now, lesson in enumerate(after, 60):
        teach(one, lesson, float(now))
        teach(other, lesson, float(now))
    assert predictions(other) == pytest.approx(predictions(one), rel=1e-3)


def test_what_was_learned_before_gives_way():
    one, other = fleet(), fleet()
    for _ in range(30):
        teach(other, ("prompt", 0, 1000, 0, 9.0), 1.0)
        teach(other, ("prefill", 1, 1.0, 3.0), 1.0)
    assert predictions(other) != predictions(one)
    other.apply(told(one), 2.0)
    assert pace(other, 0).of_class.prefill.seconds(5000, 0) == pace(
        one, 0
    ).of_class.prefill.seconds(5000, 0)
    assert pace(other, 1).prefill_slowness.value == 1.0
    assert pace(other, 1).of_class.prefill.slowness.mean == 0.0


def test_endpoints_and_classes_that_are_not_known_here_are_passed_over():
    one, other = fleet(), fleet(("", "big"))
    for _ in range(30):
        for number in range(3):
            teach(one, ("prompt", number, 1000, 0, 0.5), 1.0)
            teach(one, ("prefill", number, 0.5, 1.0), 1.0)
    other.apply(told(one), 2.0)
    assert pace(other, 0).prefill_slowness.value == pace(one, 0).prefill_slowness.value > 1
    assert pace(other, 1).prefill_slowness.value == 1.0  # it is of another class there
    assert pace(other, 1).of_class.prefill.seconds(5000, 0) == pace(
        one, 2
    ).of_class.prefill.seconds(5000, 0)


MEAN = [5.0, 3, 1.0, 0.1, 0.0, 1.0]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Mean, [math.nan, *MEAN[1:]]),
        (Mean, [0.0, *MEAN[1:]]),
        (Mean, [-1.0, *MEAN[1:]]),
        (Mean, [math.inf, *MEAN[1:]]),
        (Mean, [5.0, 0, *MEAN[2:]]),
        (Mean, ["5", *MEAN[1:]]),
        (Mean, MEAN[:-1]),
        (Slow, [700.0, 1.0, 0.0, True]),
        (Slow, [0.0, -1.0, 0.0, True]),
        (Slow, [0.0, 1.0, math.nan, True]),
    ],
    ids=repr,
)
def test_numbers_that_cannot_be_are_not_read(kind, value):
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind)


@pytest.mark.parametrize("counts", [[], [1.0] * 7, [1.0] * 500])
def test_lengths_in_other_classes_are_left_out(counts):
    one, other = fleet(), fleet()
    for _ in range(30):
        teach(one, ("length", True, 500, 1.0), 1.0)
    state = told(one)
    other_classes = [(*each[:3], (counts, counts)) for each in state.responses]
    other.apply(msgspec.structs.replace(state, responses=other_classes), 2.0)
    assert other.output_lengths.length(KIND) == one.output_lengths.length(KIND) == 500
    assert other.output_lengths.remaining(KIND, None, 600) == 600
