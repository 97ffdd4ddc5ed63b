import json
import math
import re
import statistics
from html.parser import HTMLParser
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.replay.results.comparison import LEADING, compare, paired
from epp.replay.results.digest import Slo, digest
from epp.replay.results.measures import MEASURES, percentile
from epp.replay.results.played import PodSample
from epp.replay.results.plots import cell_plots
from epp.replay.results.report import report
from epp.replay.results.table import Screen, show
from epp.replay.results.verdict import as_json, headline
from epp.replay.simulation.outcome import CallStatus
from tests.replay.results.runs import digests, nowhere, outcome, played, run


def figures(outcomes, **more):
    return SimpleNamespace(**digest(run(outcomes, **more)).figures)


@pytest.fixture(scope="module")
def comparison():
    return compare(digests(seeds=(1, 2), requests=400), "round-robin")


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7.0], 99, 7.0),
        ([1.0, 2.0], 50, 1.5),
        ([4.0, 1.0, 3.0, 2.0], 0, 1.0),
        ([4.0, 1.0, 3.0, 2.0], 100, 4.0),
        ([4.0, 1.0, 3.0, 2.0], 50, 2.5),
        ([4.0, 1.0, 3.0, 2.0], 90, 3.7),
        (list(range(101)), 99, 99),
    ],
)
def test_percentiles_by_hand(values, percent, expected):
    assert percentile(values, percent) == pytest.approx(expected)


def test_a_percentile_of_nothing_is_no_number():
    assert math.isnan(percentile([], 50))


@given(st.lists(st.floats(0, 1e6), min_size=2), st.integers(1, 99))
def test_percentiles_are_those_of_the_statistics_module(values, percent):
    expected = statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
    assert percentile(values, percent) == pytest.approx(expected, abs=1e-9)


def test_every_measure_is_a_figure():
    names = {measure.name for measure in MEASURES}
    assert digest(run([])).figures.keys() == names | {"requests", "served"}


def test_a_run_of_nothing_has_counts_and_no_times():
    found = figures([], seconds=0.0)
    assert (found.requests, found.served, found.refused, found.lost) == (0, 0, 0, 0)
    times = (found.ttft_mean, found.cached_ratio, found.goodput_share, found.imbalance)
    assert all(math.isnan(each) for each in times)


def test_figures_by_hand():
    found = figures(
        [
            outcome(ttft=1.0, end_to_end=2.0, queued=0.25, prompt=100, cached=50, reusable=80),
            outcome(ttft=3.0, end_to_end=4.0, queued=0.75, prompt=300, cached=50, endpoint=1),
            nowhere(CallStatus.REFUSED, endpoint=-1),
            nowhere(CallStatus.LOST),
        ]
    )
    assert (found.requests, found.served, found.refused, found.lost) == (4, 2, 1, 1)
    assert (found.ttft_mean, found.queue_mean, found.prefill_mean) == (2.0, 0.5, 1.5)
    assert (found.decode_mean, found.end_to_end_mean) == (1.0, 3.0)
    assert (found.goodput_share, found.goodput_per_s) == (0.25, 0.1)  # 3 s are too long
    assert (found.cached_ratio, found.cached_of_reusable) == (0.25, 1.25)
    assert found.imbalance == pytest.approx(250 / 150)  # of 50 and 250 computed tokens


def test_a_prompt_counts_where_it_was_computed_not_where_its_answer_is_generated():
    outcomes = [outcome(endpoint=1, prefill=0), outcome(endpoint=0), outcome(endpoint=1)]
    found = figures(outcomes)
    assert (found.imbalance, found.imbalance_windows) == pytest.approx((200 / 150, 200 / 150))


@pytest.mark.parametrize(
    ("values", "met"),
    [
        ({}, True),
        ({"ttft": 2.01}, False),
        ({"tpot": 0.051}, False),
        ({"tpot": math.nan}, True),
        ({"status": CallStatus.UNFINISHED}, False),
    ],
)
def test_an_slo_is_for_both_times_and_for_the_served(values, met):
    assert Slo().met(outcome(**values)) is met


def test_the_warm_up_counts_nowhere():
    outcomes = [outcome(at=1.0, ttft=9.0), outcome(at=5.0, ttft=1.0)]
    assert figures(outcomes, began=2.0).ttft_mean == 1.0


@given(st.randoms(use_true_random=False))
def test_the_order_of_outcomes_changes_nothing(rng):
    whole = played("least-ttft", 1, requests=60)
    shuffled = list(whole.outcomes)
    rng.shuffle(shuffled)
    other = msgspec.structs.replace(whole, outcomes=shuffled)
    assert repr(digest(other)) == repr(digest(whole))


def test_ratios_are_paired_by_seed():
    # Each seed's requests are ten times as long as the last one's; the ratio is always a half.
    found = compare(
        digest(run([outcome(ttft=ttft * half)], policy=policy, seed=seed))
        for policy, half in (("a", 1.0), ("b", 0.5))
        for seed, ttft in enumerate((0.1, 1.0, 10.0))
    )
    ratio = found.overall["b"][LEADING]
    assert (ratio.ratio, ratio.low, ratio.high) == pytest.approx((0.5, 0.5, 0.5))
    assert (ratio.seeds, ratio.less, found.best) == (3, 3, "b")


@pytest.mark.parametrize(
    ("mine", "theirs", "ratio"),
    [
        ((5, 5), (5, 5), 1.0),
        ((4, 0), (1, 0), 4.0),  # in the second cell neither has any
        ((4, 0), (1, 5), 0.0),
        ((4, 5), (1, 0), math.inf),
        ((4, 0), (0, 5), math.nan),
    ],
)
@pytest.mark.parametrize("seeds", [1, 3])
def test_who_has_no_goodput_in_a_case_has_0_times_that_of_others(mine, theirs, ratio, seeds):
    found = compare(
        digest(run([outcome()] * good + [outcome(ttft=9.0)], policy=policy, seed=seed, cell=cell))
        for policy, goods in (("b", theirs), ("a", mine))
        for cell, good in zip("xy", goods, strict=True)
        for seed in range(seeds)
    )
    overall = found.overall["a"]["goodput_per_s"]
    assert overall.ratio == pytest.approx(ratio, nan_ok=True)
    assert not overall.sure or ratio == 4.0
    written = json.loads(as_json(found), parse_constant=pytest.fail)["overall"]["a"]
    expected = pytest.approx(ratio) if math.isfinite(ratio) else None
    assert written["goodput_per_s"]["ratio"] == expected
    # What should be less than it is, as refusals, has no ratio to nothing.
    assert math.isnan(found.overall["a"]["refused"].ratio)


def test_an_interval_is_students():
    logs = [math.log(0.5), math.log(0.6), math.log(0.7)]
    reach = 4.303 * statistics.stdev(logs) / math.sqrt(3)
    assert paired(logs).high == pytest.approx(math.exp(statistics.mean(logs) + reach))


@pytest.mark.parametrize("count", [0, 1])
def test_one_seed_has_no_interval(count):
    assert not paired([-1.0] * count).sure


def test_who_answers_fewer_cannot_be_best():
    quick = [outcome(ttft=0.1)] * 9 + [nowhere(CallStatus.REFUSED)]
    found = compare(
        [digest(run([outcome()] * 10)), digest(run(quick, policy="b"))],
    )
    assert found.best == "a"
    assert "b left more requests without an answer" in show(found, Screen())


@pytest.mark.parametrize("width", [80, 120, 200])
def test_tables_keep_to_the_width_and_always_say_who_was_refused(comparison, width):
    lines = show(comparison, Screen(width)).splitlines()
    tables = [line for line in lines if line.startswith((" ", *comparison.policies))]
    assert (
        max(len(line) for line in tables if "against" not in line and "left" not in line) <= width
    )
    headings = [line for line in lines if line.startswith("    ") and "p50" in line]
    assert headings
    assert all("refused" in line and "lost" in line for line in headings)


def test_json_has_every_figure_and_no_number_that_is_none(comparison):
    found = json.loads(as_json(comparison, "epp replay"), parse_constant=pytest.fail)
    result = found["cells"][0]["standings"]["least-ttft"]
    assert set(result["figures"]) == {measure.name for measure in MEASURES}
    expected = comparison.cells[0].standings["least-ttft"].figures[LEADING].mean
    assert result["figures"][LEADING]["mean"] == expected
    values = result["figures"][LEADING]["values"]
    assert statistics.fmean(values) == pytest.approx(expected)
    assert len(values) == len(result["seeds"])


def test_values_are_in_the_order_of_their_seeds():
    found = compare(digest(run([outcome(ttft=float(seed))], seed=seed)) for seed in (3, 1, 2))
    result = json.loads(as_json(found))["cells"][0]["standings"][found.best]
    assert result["seeds"] == result["figures"][LEADING]["values"] == [1, 2, 3]


class Page(HTMLParser):
    """Checks that tags close in order, and collects what they refer to."""

    def __init__(self):
        super().__init__()
        self.open, self.references = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in {"meta", "br"}:
            self.open.append(tag)
        self.references += [value for name, value in attrs if name in {"src", "href", "xlink:href"}]

    def handle_startendtag(self, tag, attrs):
        self.references += [value for name, value in attrs if name in {"src", "href", "xlink:href"}]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_report_is_whole_needs_no_network_and_is_the_same_again(comparison):
    page = Page()
    text = report(comparison, "epp replay <trace>")
    page.feed(text)
    assert page.open == []
    assert all(each.startswith(("#", "data:")) for each in page.references)
    assert "url(http" not in text
    assert "epp replay &lt;trace&gt;" in text
    assert text == report(comparison, "epp replay <trace>")


def test_a_moment_has_one_place_in_all_plots_over_time_however_long_a_run_took():
    outcomes = [outcome(at=float(at)) for at in range(41)]
    samples = [PodSample(float(at), pod, 0, 1) for at in range(41) for pod in (0, 1)]
    found = compare(
        digest(run(outcomes, policy=policy, seed=seed, seconds=seconds, samples=samples))
        for policy, seed, seconds in (("a", 1, 60.0), ("a", 2, 45.0), ("b", 1, 120.0))
    )
    plots = cell_plots(found, found.cells[0])
    frame = re.search(r'id="patch_2">\s*<path d="M (\S+) \S+\s+L (\S+)', plots["time"])
    assert frame is not None
    left, right = map(float, frame.groups())
    lines = re.findall(r'<path d="([^"]*)" clip-path=[^>]*stroke-width: 1.8', plots["time"])
    ends = [120 * (float(line.split()[-2]) - left) / (right - left) for line in lines]
    assert ends == pytest.approx([40, 40], abs=2)  # which is a bin of the longest run
    a, b = map(float, re.findall(r'width="60"[^>]*matrix\((\S+)', plots["load"]))
    assert b / a == pytest.approx(120 / 60)  # of the first seed


def test_a_sweep_has_ratios_of_all_cells_and_a_report():
    ran = [
        each
        for load in (0.5, 1.0, 1.5, 2.0, 2.5)
        for each in digests(
            ("round-robin", "least-ttft"),
            (1,),
            requests=50,
            load=load,
            workload="chat",
            cell=f"chat, load {load}",
        )
    ]
    text = show(compare(ran), Screen())
    assert "5 cells, ratios to round-robin" in text
    for name, unit in (("TTFT mean", "m?s"), ("Requests within the SLO", "%")):
        rows = text.partition(f"{name}, in each cell\n")[2].splitlines()[1:6]
        assert [row.split()[2] for row in rows] == ["0.5", "1.0", "1.5", "2.0", "2.5"]
        assert all(re.search(rf"\d {unit}\*? +[\d.]+ {unit}\*?$", row) for row in rows)
    # Each cell of the page has all its plots.
    assert "How it goes with the load" in report(compare(ran[:4]))


def test_one_policy_in_several_cells_has_its_figures_of_each():
    times = {"4 pods": 0.5, "2 pods": 1.5, "8 pods": 0.25}
    ran = {cell: [outcome(ttft=ttft)] for cell, ttft in times.items()} | {
        "1 pods": [nowhere(CallStatus.LOST)]
    }
    found = compare(digest(run(outcomes, cell=cell)) for cell, outcomes in ran.items())
    said = "a: the first token after 250 ms (8 pods) to 1.50 s (2 pods) on average."
    assert headline(found) == said
    text = show(found, Screen())
    page = report(found).replace(' class="bad"', ' class="best"')
    for cell, shown in (("4 pods", "500 ms"), ("2 pods", "1.50 s"), ("1 pods", "-")):
        assert re.search(rf"^{cell} +{shown} ", text, re.MULTILINE)
        assert f'<th>{cell}</th><td class="best">{shown}<' in page


def test_nothing_served_makes_a_page_and_a_table():
    found = compare(digest(run([nowhere(CallStatus.REFUSED)], policy=each)) for each in "ab")
    assert "refused" in show(found, Screen())
    assert "Warmpick replay" in report(found)
