"""The conversations are a function of their seed, and of the shape that was asked for."""

from itertools import islice

import pytest

from bench.accuracy.workload import Reply, Shape, Workload

SHAPE = Shape(requests=10)


def sessions(seed, count=60, shape=SHAPE):
    return list(islice(Workload(shape, seed).sessions(), count))


def test_equal_seeds_make_equal_conversations_and_others_do_not():
    assert sessions(1) == sessions(1)
    assert sessions(1)[0] != sessions(2)[0]


def test_a_group_shares_a_system_prompt_and_no_question_is_asked_twice():
    made = sessions(3)
    assert len({each.system for each in made}) == 4
    questions = [turn.question for each in made for turn in each.turns]
    assert len(set(questions)) == len(questions)


def test_turns_keep_to_the_shape():
    turns = [turn for each in sessions(4) for turn in each.turns]
    assert {turn.reply for turn in turns} == set(Reply)
    low, high = SHAPE.tokens
    assert all(low <= turn.tokens <= high for turn in turns)
    assert all(1 <= turn.chunks <= max(1, turn.tokens // 2) for turn in turns)
    assert all(0 <= turn.think <= SHAPE.think for turn in turns)


@pytest.mark.parametrize(
    ("shape", "replies"),
    [
        (Shape(requests=1, aborted=1, streamed=0), {Reply.ABORTED}),
        (Shape(requests=1, aborted=0, streamed=1), {Reply.STREAMED}),
        (Shape(requests=1, aborted=0, streamed=0), {Reply.WHOLE}),
    ],
)
def test_answers_are_taken_as_the_shape_says(shape, replies):
    turns = [turn for each in sessions(5, shape=shape) for turn in each.turns]
    assert {turn.reply for turn in turns} == replies
