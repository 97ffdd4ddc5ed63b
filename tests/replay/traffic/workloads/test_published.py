"""Generated workloads beside what was published of them."""

from collections import Counter
from statistics import mean, median

import pytest

from epp.replay.traffic.calls import tokens_in
from epp.replay.traffic.reading import WORKLOADS
from epp.replay.traffic.workloads.agentic import Agents
from epp.replay.traffic.workloads.catalog import CATALOG
from epp.replay.traffic.workloads.shapes import SHAPES


def percentile(values, share):
    return sorted(values)[int(share * len(values))]


def pauses(calls):
    return [call.think for call in calls if call.after is not None]


def test_agents_are_as_observed_in_the_data_set():
    # aiperf's inference-day-2026, of 1,131 sessions and 13,167 turns by seed 42.
    calls = Agents().calls(1000, None, 42)
    turns = Counter(call.session for call in calls)
    assert len(turns) == pytest.approx(1131, rel=0.08)
    assert len(calls) == pytest.approx(13_167, rel=0.08)
    assert mean(turns.values()) == pytest.approx(11.6, rel=0.05)
    assert percentile(turns.values(), 0.95) == pytest.approx(25, abs=2)
    begun = [tokens_in(call.prompt) for call in calls if call.after is None]
    assert mean(begun) == pytest.approx(54_700, rel=0.05)
    assert median(pauses(calls)) == pytest.approx(2.0, rel=0.1)
    assert percentile(pauses(calls), 0.95) == pytest.approx(30.8, rel=0.1)
    assert max(tokens_in(call.prompt) for call in calls) <= 200_000


def test_agents_share_layers_and_go_on_as_other_sessions():
    calls = Agents().calls(300, None, 7)
    assert {call.prompt[0] for call in calls} == {calls[0].prompt[0]}
    assert calls[0].prompt[0].length == 32_000
    groups = Counter(call.prompt[1] for call in calls if call.after is None)
    assert {run.length for run in groups} == {10_000}
    assert 50 < len(groups) <= 100
    sessions: dict[int, set[int]] = {}
    for call in calls:
        sessions.setdefault(call.prompt[2].token, set()).add(call.session)
    again = Counter(len(each) for each in sessions.values())
    assert set(again) == {1, 2}
    # Of 30 %, linearly fewer up to three quarters, those that get as far as turns 5 to 14.
    assert again[2] == pytest.approx(300 * 0.3 * 0.375 * 0.6, rel=0.5)


def test_a_chat_is_as_its_catalog_entry_says():
    calls = CATALOG["interactive-chat"].calls(3000, None, 1)
    turns = Counter(call.session for call in calls)
    assert mean(turns.values()) == pytest.approx(4, rel=0.05)
    assert max(turns.values()) <= 15
    assert mean(tokens_in(call.response) for call in calls) == pytest.approx(300, rel=0.05)
    assert mean(pauses(calls)) == pytest.approx(45, rel=0.05)
    begun = [tokens_in(call.prompt) for call in calls if call.after is None]
    assert mean(begun) == pytest.approx(1000 + 4000 + 50, rel=0.05)
    assert {call.prompt[0] for call in calls} == {calls[0].prompt[0]}


def test_recorded_agents_have_the_length_that_was_observed():
    calls = CATALOG["agentic-trace-replay"].calls(2000, None, 1)
    assert mean(tokens_in(call.prompt) for call in calls) == pytest.approx(49_141, rel=0.15)
    assert mean(tokens_in(call.response) for call in calls) == pytest.approx(659, rel=0.1)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llm-d-a", (6, 1000, 1000, 30, 4)),
        ("llm-d-b", (6, 1000, 1000, 3000, 4)),
        ("llm-d-c", (150, 5, 6000, 1200, 4)),
        ("llm-d-d", (150, 5, 1000, 6200, 4)),
        ("b2b-saas", (150, 5, 6000, 1200, 1)),
    ],
)
def test_a_comparison_is_as_published(name, published):
    groups, users, system, question, rounds = published
    calls = SHAPES[name].calls(groups * users, None, 1)
    assert len(calls) == groups * users * rounds
    assert len({call.prompt[0] for call in calls}) == groups
    assert {call.prompt[0].length for call in calls} == {system}
    assert len({call.prompt[1].token for call in calls}) == groups * users
    begun = [call.prompt[1].length for call in calls if call.after is None]
    assert mean(begun) == pytest.approx(question, rel=0.05)
    assert mean(tokens_in(call.response) for call in calls) == pytest.approx(1000, rel=0.05)


def test_users_of_single_questions_ask_them_again_and_conversations_begin_anew():
    once = SHAPES["b2b-saas"].calls(1500, None, 1)
    assert [call.prompt for call in once[:750]] == [call.prompt for call in once[750:]]
    chats = SHAPES["llm-d-c"].calls(1500, None, 1)
    assert len({call.prompt[1].token for call in chats}) == 1500


def test_every_workload_has_conversations_however_few_are_asked_for():
    for workload in WORKLOADS.values():
        assert workload.calls(1, 1, 1)
