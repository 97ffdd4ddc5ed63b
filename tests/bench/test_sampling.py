"""What is measured of observing fewer responses: every request, whatever was seen of it."""

import argparse

import pytest

from bench.__main__ import _observations
from bench.accuracy.replay import Replay
from bench.accuracy.sampling import sampled_traces
from bench.accuracy.traces import traces_at
from bench.options import Options
from bench.progress import Progress
from epp.protocol.extproc.observation import Observation
from tests.bench.test_traces import FIRST, NEXT, STRANGER, conversation

SHARES = tuple(map(Observation, (1, 4, 0)))


@pytest.fixture
def place(tmp_path):
    return conversation(tmp_path, FIRST, NEXT, STRANGER, (20_000, *NEXT[1:]))


def test_every_share_has_its_figures(place):
    (part,) = sampled_traces(Progress(), place, Options(observe=SHARES))
    keys = {figure.key for figure in part.figures}
    for known in ("tokens", "text"):
        for share in ("1", "4", "first"):
            assert f"mae_{known}_observe_{share}_conversation_pct" in keys
    assert {key for _, row in part.grid.rows for key in row} <= keys
    values = {figure.key: figure.value for figure in part.figures}
    assert values["requests_conversation"] == 4 * 2 * len(SHARES)


@pytest.mark.parametrize("observation", SHARES)
def test_every_request_is_compared(place, observation):
    (trace,) = traces_at(place, quick=True)
    replay = Replay(trace, "tokens", observation=observation)
    replay.run()
    prompts = [guess.prompt for guess in replay.guesses["tokens"]]
    assert sorted(prompts) == sorted(call[1] for call in (FIRST, NEXT, NEXT, STRANGER))


def test_shares_as_they_are_written():
    assert _observations("all,1/4,1/16,first") == tuple(map(Observation, (1, 4, 16, 0)))
    with pytest.raises(argparse.ArgumentTypeError, match="`sample:4` is not a share"):
        _observations("all,4")
