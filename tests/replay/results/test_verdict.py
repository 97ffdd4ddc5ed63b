"""What the figures of several policies say: which is best, and how sure that is."""

import math

import msgspec
import pytest

from epp.replay.results.comparison import compare
from epp.replay.results.digest import Slo, digest
from epp.replay.results.report import report
from epp.replay.results.table import Screen, show
from epp.replay.results.verdict import confidence, headline
from epp.replay.simulation.outcome import CallStatus
from tests.replay.results.runs import digests, nowhere, outcome, run

NONE_CAME = "No policy can be chosen: no request came after the warm-up and within --duration."


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ([], [], NONE_CAME),
        ([nowhere(CallStatus.LOST)], [], "No policy can be chosen: no request got a first token."),
        ([outcome()], [nowhere(CallStatus.LOST)], "Choose a: with b no request got a first token."),
    ],
)
def test_nothing_is_chosen_by_times_that_nobody_has(ours, theirs, said):
    runs = {"a": ours, "b": theirs}
    found = compare((digest(run(runs[policy], policy=policy)) for policy in runs), "b")
    assert headline(found) == said
    assert "nan" not in f"{confidence(found)} {show(found, Screen())} {report(found)}"
    alone = compare([digest(run(theirs))])
    assert headline(alone).startswith("No policy can be chosen: ")


@pytest.mark.parametrize(
    ("slo", "said"),
    [
        (Slo(2.0, 0.05), "the first token within 2 s and the others 50 ms apart"),
        (Slo(0.5, math.inf), "the first token within 0.5 s"),
    ],
)
def test_an_objective_without_a_bound_on_other_tokens_names_none(slo, said):
    found = compare([digest(run([outcome()]), slo)])
    assert f"of all requests, {said}." in show(found, Screen())
    assert f"served with {said};" in report(found)


def test_a_policy_that_changes_nothing_is_not_chosen():
    alike = compare([digest(run([outcome()], policy=each)) for each in ("a", "b")], "b")
    assert headline(alike).startswith("No policy is faster than b ")


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ((0.1, 0.1, 0.1), "Choose a: "),
        ((0.1, 0.3, 0.1), "Perhaps choose a: "),  # against 0.2: once it is the slower one
        ((0.1,), "Choose a: "),  # with one seed there is nothing to be sure by
    ],
)
def test_what_seeds_leave_open_is_chosen_perhaps(ours, said):
    runs = [
        digest(run([outcome(ttft=ttft)], policy=policy, seed=seed))
        for seed, mine in enumerate(ours)
        for policy, ttft in (("a", mine), ("b", 0.2))
    ]
    for cells in (runs, [*runs, *(msgspec.structs.replace(each, cell="2") for each in runs)]):
        found = compare(cells, "b")
        assert headline(found).startswith(said)
        assert (": sure." in confidence(found)) == (len(ours) > 1 and said == "Choose a: ")


def test_what_is_best_over_all_cases_is_not_said_to_refuse_too_much():
    runs = [
        digest(
            run(
                [nowhere(CallStatus.REFUSED)] * refused
                + [outcome(ttft=0.1 if policy == "a" else 0.3)] * (100 - refused),
                policy=policy,
                cell=cell,
            )
        )
        for cell, policy, refused in (("1", "a", 3), ("1", "b", 5), ("2", "a", 2), ("2", "b", 0))
    ]
    found = compare(runs, "b")
    assert headline(found).startswith("Choose a: ")
    assert ". b left more requests without an answer and cannot be best: " in confidence(found)


def test_one_traffic_is_said_and_never_sure():
    runs = [
        msgspec.structs.replace(each, traffic=traffic)
        for cell, traffic in (("a", "same"), ("b", ""))
        for each in digests(seeds=(1, 2, 3), requests=400, cell=cell)
    ]
    both = confidence(compare(runs, "round-robin"))
    assert "one and the same traffic in 1 of 2 cells: " in both
    alone = confidence(compare([each for each in runs if each.traffic], "round-robin"))
    assert "one and the same traffic: " in alone
    assert "95 % interval" in alone
    assert "sure" not in alone
    other = confidence(compare([each for each in runs if not each.traffic], "round-robin"))
    assert "one and the same" not in other
    assert "sure" in other
