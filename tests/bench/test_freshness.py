"""The benchmark of reports: which runs it compares, and of what traffic."""

import msgspec
import pytest

from bench.freshness import MINUTES, VARIANTS, WARM_UP_SECONDS, tasks_of
from epp.replay.sweep import play, read_traffic

START, END = (minute * 60_000 for minute in MINUTES)


@pytest.fixture
def trace(tmp_path):
    """A request every four seconds, from well before the minutes that are replayed to after."""
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": at, "input_length": 1024, "output_length": 5, "hash_ids": [at, at + 1]}
        for at in range(0, END + 60_000, 4_000)
    ]
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return path


def test_each_seed_is_played_by_all_variants(trace):
    tasks = tasks_of(trace, [0, 1])
    assert [task.plan.policy for task in tasks] == [each for _, each in VARIANTS.values()] * 2
    assert [task.traffic.seed for task in tasks] == [0] * len(VARIANTS) + [1] * len(VARIANTS)
    assert all(task.plan.seed == task.traffic.seed for task in tasks)


def test_a_run_counts_what_comes_after_the_warm_up(trace):
    task = tasks_of(trace, [0])[0]
    calls = read_traffic(task.traffic).calls
    late = sum(call.at >= WARM_UP_SECONDS for call in calls)
    figures = play(task).figures
    # 1.4 copies of a request every four seconds, each conversation of one request.
    expected = 1.4 * (END - START) / 4_000
    assert len(calls) == pytest.approx(expected, rel=0.15)
    assert figures["requests"] == figures["served"] == late < len(calls)
