"""Traffic by name: files, workloads and what may be said of them."""

import pytest

from epp.errors import ConfigError
from epp.replay.traffic.calls import block_keys, joined, tokens_in
from epp.replay.traffic.reading import ALIASES, WORKLOADS, read


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_conversations_whose_prompts_go_on(name):
    trace = read(f"{name}:sessions=40", seed=3)
    assert trace == read(f"{name}:sessions=40", seed=3)
    assert trace != read(f"{name}:sessions=40", seed=4)
    assert not trace.closed
    assert len({call.session for call in trace.calls}) >= 40
    for number, call in enumerate(trace.calls):
        asked = tokens_in(call.prompt)
        assert call.marks[-1] == asked
        assert list(call.marks) == sorted(set(call.marks))
        assert min(run.length for run in (*call.prompt, *call.response)) > 0
        if call.after is not None:
            before = trace.calls[call.after]
            assert call.after < number
            assert before.at <= call.at
            said = block_keys(joined(before.prompt, before.response), 1000)
            assert block_keys(call.prompt, 1000)[: len(said)] == said
            assert asked > tokens_in(before.prompt) + tokens_in(before.response)


def test_an_alias_is_the_workload():
    for alias, name in ALIASES.items():
        assert read(f"{alias}:sessions=3").calls == read(f"{name}:sessions=3").calls


@pytest.mark.parametrize(
    "name", ["chat", "code", "research", "agents", "llm-d-a", "llm-d-code", "agentic-trace-replay"]
)
def test_no_prompt_is_longer_than_asked_for_but_a_first_one(name):
    calls = read(f"{name}:sessions=30,longest=50000").calls
    assert all(tokens_in(call.prompt) <= 50_000 for call in calls if call.after is not None)


def test_files_have_arrivals_too(tmp_path):
    path = tmp_path / "trace.csv"
    rows = "".join(f"{7 * at},5,5\n" for at in range(400))
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    assert [call.at for call in read(path).calls[:3]] == [0, 7, 14]
    assert read(f"{path}:rate=4", seed=1).calls[-1].at == pytest.approx(100, rel=0.15)
    assert read(f"{path}:users=4").closed
    assert read(f"reasoning:like={path},sessions=3").calls[-1].at == 14
    with pytest.raises(ConfigError, match=r"trace\.csv has no parameter `sessions`"):
        read(f"{path}:sessions=4")
    with pytest.raises(ConfigError, match=r"trace\.csv: `cv` has no effect without a `rate`"):
        read(f"{path}:cv=4")


def test_parameters():
    calls = read("chat:sessions=400,rate=8", seed=1).calls
    assert len({call.session for call in calls}) == 400
    starts = [call.at for call in calls if call.after is None]
    assert len(calls) / starts[-1] == pytest.approx(8, rel=0.15)
    assert read("chat:users=7,sessions=40").closed


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("chta", "there is no file `chta`, and no workload `chta`: did you mean `chat`?"),
        ("nothing-like-it", "no workload `nothing-like-it`; workloads are agentic-trace-replay, a"),
        ("chat:rat=5", "chat has no parameter `rat`: did you mean `rate`"),
        ("chat:xyz=5", "chat has no parameter `xyz`; there are rate, "),
        ("chat:rate", "parameter `rate` of chat has no value; write rate=VALUE"),
        ("chat:rate=1,rate=2", "parameter `rate` of chat is given twice"),
        ("chat:rate=0", "`rate` of chat: a number of at least 1e-06 is expected"),
        ("chat:rate=fast", "`rate` of chat: a number is expected, not text"),
        ("chat:sessions=0", "`sessions` of chat: a whole number of at least 1 is expected"),
        ("chat:sessions=1.5", "`sessions` of chat: a whole number is expected, not text"),
        ("chat:rate=nan", "chat: "),
        ("chat:like=nowhere.csv", "cannot read nowhere.csv"),
        ("chat:users=4,rate=9", "chat: `rate` has no effect beside `users`"),
        ("chat:cv=2,users=4", "chat: `cv` has no effect beside `users`"),
        ("chat:like=a.csv,to_rate=9", "chat: `to_rate` has no effect beside `like`"),
    ],
)
def test_what_cannot_be_meant(name, problem):
    with pytest.raises(ConfigError) as raised:
        read(name)
    assert problem in str(raised.value)
