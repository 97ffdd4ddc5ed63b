"""The benchmark of requests that wait: which traffic it plays, and how it is counted."""

import pytest
from msgspec.structs import replace

from bench.hold import beside, loads, spike
from bench.hold.benchmark import FIGURES
from bench.hold.runs import POD, Case, Got, on_cores, play
from bench.hold.traffic import Client, drawn
from epp.replay.plan import RunPlan
from epp.replay.policies import NAMED

GOOD = Client(name="good", rate=0.5, until=100)
LATE = Client(name="late", rate=5, since=40, until=60, priority=-1)


def shape(calls, name):
    """Say what one client sends, whoever else does."""
    mine = [call for call in calls if call.tenant == name]
    return [(call.at, [run.length for run in call.prompt], call.marks) for call in mine]


def clients(case):
    """Return whose conversations a case draws."""
    assert isinstance(case.offered, tuple)
    return case.offered


def tokens(calls, name):
    return {
        run.token for call in calls if call.tenant == name for run in (*call.prompt, *call.response)
    }


def test_clients_send_in_their_time_at_their_rate_and_share_no_token():
    calls = drawn([GOOD, LATE], 0).calls
    late = [call for call in calls if call.tenant == "late"]
    assert {call.priority for call in late} == {-1}
    assert all(40 <= call.at < 60 for call in late)
    assert len(late) == pytest.approx(5 * 20, rel=0.3)
    assert not tokens(calls, "good") & tokens(calls, "late")
    assert [call.at for call in calls] == sorted(call.at for call in calls)


def test_a_call_goes_on_with_one_of_its_own_conversation():
    calls = drawn([replace(GOOD, until=600), LATE], 0).calls
    followed = [(call, calls[call.after]) for call in calls if call.after is not None]
    assert followed
    for call, before in followed:
        assert (call.session, call.tenant) == (before.session, before.tenant)
        assert call.prompt[0] == before.prompt[0]


def test_a_client_sends_the_same_alone_and_beside_others_and_another_with_another_seed():
    alone = shape(drawn([GOOD], 0).calls, "good")
    assert alone == shape(drawn([GOOD, LATE], 0).calls, "good")
    assert alone != shape(drawn([GOOD], 1).calls, "good")


def test_the_flood_asks_for_ten_times_as_much_as_the_client_beside_it():
    cases = dict(beside.cases(0))
    good, flood = clients(cases[beside.FLOODED])
    assert flood.rate == pytest.approx(10 * good.rate)
    assert clients(cases[beside.ALONE]) == (good,)
    assert clients(cases[beside.WITH_BATCH])[0] == clients(cases[beside.WITHOUT_BATCH])[0]


def test_every_load_is_played_by_what_is_compared():
    cases = dict(loads.cases(None, 3))
    assert set(cases) == {
        (60, "least-ttft"),
        (60, "least-ttft-at-once"),
        (95, "least-ttft"),
        (95, "least-ttft-at-once"),
        (120, "least-ttft"),
        (120, "llm-d-router"),
    }
    (client,) = clients(cases[120, "least-ttft"])
    assert client.rate == pytest.approx(1.2 * loads.CAPACITY_PER_S)
    assert {case.plan.seed for case in cases.values()} == {3}


def test_a_run_counts_each_client_after_the_warm_up():
    plan = RunPlan(policy=NAMED["least-ttft"], pods=(POD,))
    both = (replace(GOOD, rate=0.2), replace(LATE, rate=1))
    case = Case(offered=both, plan=plan, warm_up=50)
    got = play(case)
    calls = drawn(both, 0).calls
    for name, each in got.items():
        assert each.requests == sum(call.tenant == name and call.at >= 50 for call in calls)
        assert len(each.first_tokens) == len(each.sent) == each.requests
        assert (each.refused, each.unfinished) == (0, 0)
        assert 0 < each.ttft <= each.ttft_percentile(100) < each.end_to_end
    assert list(on_cores([case])) == [got]


def test_what_is_served_is_what_goes_in_the_time_in_which_it_could_have_come():
    # 480 requests come in 480 seconds, and go in 600.
    sent = [120 + 1.25 * number for number in range(480)]
    got = Got(
        requests=480,
        refused=0,
        unfinished=0,
        first_tokens=[],
        sent=sent,
        end_to_end=0,
        cached=0,
    )
    assert loads.served(got) == pytest.approx(1 / 1.25)


def test_the_figures_are_those_that_were_promised():
    promised = {
        *(f"ttft_ratio_{load}" for load in (60, 95, 120)),
        *("e2e_ratio_120", "p99_ratio_120", "hit_ratio_120", "refused_120"),
        *("tenant_ratio", "batch_p95_ratio", "us_per_release_10k", "bytes_per_waiting"),
    }
    assert promised <= set(FIGURES)


def test_a_trace_that_is_not_there_is_said(capsys):
    assert loads.main(["nowhere.jsonl"]) == 2
    assert capsys.readouterr().err.startswith("loads: there is no file `nowhere.jsonl`")


def test_a_plot_that_could_not_be_written_is_refused_before_anything_is_played(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        spike.main([str(tmp_path / "no" / "spike.png")])
    assert "there is no folder for " in capsys.readouterr().err
