"""The page of all policies: what is best, what does not compare, and where ours is behind."""

import pytest
from msgspec.structs import replace

from bench.study import page as routing_study
from bench.study.field import write
from bench.study.grid import Grid, shared_prefixes, tasks
from epp.replay.plan import PodPlan, RunPlan
from epp.replay.policies import NAMED
from epp.replay.results.digest import digest
from epp.replay.simulation.run import Simulation
from epp.replay.traffic.calls import Call, Run, Trace

PLAYED = Simulation(
    Trace(
        name="test", calls=(Call(at=0.0, prompt=(Run(1, 9),), response=(Run(2, 9),), session=0),)
    ),
    RunPlan(policy=NAMED["random"], pods=[PodPlan()]),
).run()


def runs(policy, fleet, *times, served=100):
    """Return a digest for each seed, of a TTFT and an end-to-end time each."""
    any_run = digest(PLAYED)
    return [
        replace(
            any_run,
            policy=policy,
            seed=seed,
            cell=f"chat, 4 {fleet} pods, load 0.5",
            workload=f"chat, {fleet}",
            load=0.5,
            figures={
                **any_run.figures,
                "ttft_mean": ttft,
                "end_to_end_mean": whole,
                "requests": 100,
                "served": served,
            },
        )
        for seed, (ttft, whole) in enumerate(times)
    ]


@pytest.fixture
def page(tmp_path):
    write(
        [
            *runs("llm-d-router", "equal", (1.0, 10.0), (2.0, 10.0)),
            *runs("least-ttft", "equal", (0.5, 9.0), (1.0, 9.0)),
            *runs("lmetric", "equal", (0.4, 9.9)),
            *runs("random", "equal", (0.1, 1.0), (0.1, 1.0), served=90),
            *runs("oracle", "equal", (0.25, 6.0), (0.5, 6.0)),
            *runs("llm-d-router", "unequal", (1.0, 10.0)),
            *runs("least-ttft", "unequal", (0.8, 9.0)),
        ],
        tmp_path / "page.md",
        whole=20,
    )
    return tmp_path / "page.md"


def test_the_best_that_answers_is_bold_and_the_oracle_never_is(page):
    text = page.read_text()
    first, *_ = text.partition("## Mean end to end")[0].split("### Mean TTFT, every second")
    assert "| `lmetric` | **0.40** | **0.40** |" in first
    assert "| `least-ttft` | 0.50 | 0.50 |" in first
    assert "| `oracle` | 0.25 | 0.25 |" in first
    # 0.1 over 1.0 and 0.1 over 2.0 is 0.07, of nine requests in ten.
    assert "| `random` | 0.07* | 0.07 |" in first
    assert "11 of 20 runs" in text


def test_those_ahead_are_compared_by_the_seeds_that_both_have(page):
    behind = page.read_text().partition("## Where another policy")[2].partition("\n## ")[0]
    rows = [line for line in behind.splitlines() if line.startswith("| chat")]
    assert rows == ["| chat, 4 equal pods, load 0.5 | `lmetric` | **1.25** | 0.91 | 1 |"]


def test_the_oracle_is_compared_with_ours_where_it_has_run(page):
    against = page.read_text().partition("and the oracle\n")[2]
    assert "| chat, 4 equal pods, load 0.5 | 2.00 | 1.50 |" in against
    assert "| chat, 4 unequal pods, load 0.5 | - | - |" in against
    assert "| all | 2.00 | 1.50 |" in against


def test_heat_maps_lie_beside_the_page(page):
    for name in ("page-mean-ttft.svg", "page-mean-end-to-end.svg"):
        assert page.with_name(name).read_text().startswith("<svg")
        assert f"]({name})" in page.read_text()


def test_shared_prefixes_come_at_their_own_rates_by_what_the_pods_can_do():
    grid = Grid(pods=(8,), loads=(0.5,), seeds=(0,), policies=("llm-d-router",))
    rates = [task.cell.split(", ")[::2] for task in tasks(shared_prefixes(), grid)]
    assert rates == [
        ["shared A cold", "20/s"],
        ["shared A cold", "14/s"],
        ["shared A warm", "40/s"],
        ["shared A warm", "28/s"],
        ["shared B cold", "12/s"],
        ["shared B cold", "8.4/s"],
        ["shared B warm", "20/s"],
        ["shared B warm", "14/s"],
    ]


def test_who_answers_fewer_is_best_in_no_case_of_the_routing_study(tmp_path):
    routing_study.write(
        [
            *runs("llm-d-router", "equal", (1.0, 10.0)),
            *runs("least-ttft", "equal", (0.5, 9.0)),
            *runs("random", "equal", (0.1, 1.0), served=90),
        ],
        tmp_path / "page.md",
        whole=3,
    )
    rows = (tmp_path / "page.md").read_text().splitlines()
    assert "| chat, 4 equal pods, load 0.5 | 1.000 | **0.500** | 0.100* |" in rows
