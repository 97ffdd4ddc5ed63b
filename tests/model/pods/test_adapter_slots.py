"""Slots for adapters: who waits for one, for how long, and what taking one costs others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.events import BooksCorrected
from epp.model.request import RequestId
from epp.model.request_events import Finished, FirstToken
from epp.policy.choice import ttft_costs
from tests.model.rig import LONG, Rig
from tests.strategies import text

RESPONSE = 6.0


class Slots(Rig):
    """Two endpoints with two slots each; any adapter of `abcd` is known by a report of pod-1's."""

    def __init__(self, adapters="abcd", slots=2):
        super().__init__(2)
        self.slots = slots
        self.said("pod-1", adapters)
        self.said("pod-1")
        self.said("pod-0")

    def said(self, name, adapters="", **load):
        load = {"running": len(adapters), "max_adapters": self.slots} | load
        self.report(name, running_adapters=frozenset(adapters), **load)

    def run(self, models):
        for number, model in enumerate(models):
            words = text(100, f"{number} ")
            self.send("pod-0", f"r{number}", words, target_model=model, max_tokens=100)

    def end(self, number):
        self.apply(Finished(RequestId(f"r{number}")))

    def asked(self, adapter):
        return self.pod("pod-0").books.slot_seconds(adapter, RESPONSE)


@pytest.mark.parametrize(
    ("models", "adapter", "wait", "taken"),
    [
        ("", "a", 0, RESPONSE),
        ("a", "a", 0, 0),
        ("a", "b", 0, RESPONSE),
        ("ma", "b", 0, RESPONSE),  # the base model takes no slot
        ("ab", "b", 0, 0),
        ("ab", "c", RESPONSE / 3, 0),  # the first of two ends after a third
        ("mab", "c", RESPONSE / 3, 0),
        ("aab", "c", RESPONSE / 2.5, 0),
        ("aabb", "c", RESPONSE / 2, 0),
        ("abc", "c", RESPONSE / 3, 0),  # it waits for the first slot already
        ("abc", "d", 2 * RESPONSE / 3, 0),
        ("abcc", "a", 0, 0),
    ],
)
def test_an_adapter_without_a_slot_waits_until_another_has_no_request_left(
    models, adapter, wait, taken
):
    rig = Slots()
    rig.run(models)
    assert rig.asked(adapter) == (pytest.approx(wait), taken)


def test_a_slot_is_free_when_the_last_request_of_its_adapter_has_ended():
    rig = Slots()
    rig.run("aab")
    rig.said("pod-0", "ab", running=3)
    rig.end(0)
    assert rig.asked("c")[0] == pytest.approx(RESPONSE / 3)
    rig.end(1)
    assert rig.asked("c") == (0, RESPONSE)  # although the report is older


def test_an_adapter_that_has_requests_left_keeps_its_slot():
    rig = Slots()
    rig.run("aaaaabc")
    before = {each: rig.asked(each) for each in "abc"}
    for left in (4, 3, 2, 1):
        rig.end(4 - left)
        now = {each: rig.asked(each) for each in "abc"}
        assert (now["a"], now["b"]) == (before["a"], before["b"]) == ((0, 0), (0, 0))
        assert now["c"] == (pytest.approx(RESPONSE / (1 + 1 / left + 1)), 0)
        assert not rig.pod("pod-0").books.waits_for_slot("a")
    rig.end(4)
    assert rig.asked("c") == (0, 0)
    assert rig.asked("a")[0] > 0


@given(st.lists(st.sampled_from("abcd") | st.integers(0, 9), max_size=30))
def test_slots_are_held_in_the_order_in_which_adapters_came(script):
    """A letter is a request that is sent, a number one of those that are there, which ends."""
    rig, there, order = Slots(), [], []
    for number, step in enumerate(script):
        if isinstance(step, str):
            rig.send("pod-0", f"r{number}", text(100, f"{number} "), target_model=step)
            there.append((number, step))
            order += [step] * (step not in order)
        elif step < len(there):
            ended, adapter = there.pop(step)
            rig.end(ended)
            if adapter not in [each for _, each in there]:
                order.remove(adapter)
        books = rig.pod("pod-0").books
        assert [books.waits_for_slot(each) for each in order] == [
            place >= rig.slots for place in range(len(order))
        ]


def test_adapters_of_others_hold_slots_as_the_report_says():
    rig = Slots()
    rig.said("pod-0", "ad")
    assert rig.asked("a") == (0, 0)
    assert rig.asked("c") == (pytest.approx(RESPONSE / 3), 0)
    rig.run("b")
    assert rig.asked("c") == (pytest.approx(2 * RESPONSE / 3), 0)


@pytest.mark.parametrize(
    ("adapters", "slots", "expected"),
    [("abcd", 0, (0, 0)), ("abcd", 4, (0, 0)), ("abcd", 3, (0, RESPONSE))],
    ids=["not known", "enough for all", "fewer than adapters"],
)
def test_a_free_slot_is_taken_from_others_only_where_all_may_be_in_use(adapters, slots, expected):
    assert Slots(adapters, slots).asked("a") == expected


def test_the_wait_is_part_of_the_prediction_and_the_slot_of_what_it_costs_others():
    rig = Slots()
    rig.run("ab")
    asked = rig.ask(LONG, target_model="c", max_tokens=100)
    step = rig.pod("pod-0").pace.step_seconds(2, rig.pod("pod-0").books.held_tokens)
    assert asked["pod-0"].queued_prefill_seconds == pytest.approx(100 * step / 3, rel=1e-6)
    assert asked["pod-0"].predicted_ttft > asked["pod-1"].predicted_ttft
    assert asked["pod-1"].queued_prefill_seconds == 0
    alone = rig.pod("pod-1").pace.step_seconds(1, 0)
    assert asked["pod-1"].slot_seconds == pytest.approx(100 * alone)
    base = rig.ask(LONG, target_model="m", max_tokens=100)
    assert base["pod-1"].slot_seconds == 0


def test_prefill_that_is_queued_for_longer_is_what_a_request_waits_for():
    rig = Slots()
    rig.run("ab")
    rig.send("pod-0", "long", text(90_000, "long"), target_model="a", max_tokens=1)
    queued = rig.pod("pod-0").ledger.queued_seconds(rig.now)
    assert rig.asked("c")[0] < queued
    asked = rig.ask(LONG, target_model="c", max_tokens=1)
    assert asked["pod-0"].queued_prefill_seconds == pytest.approx(queued)


@pytest.mark.parametrize("behind", ["", "a", "c"])
def test_how_long_one_waits_for_a_slot_says_nothing_of_prefill(behind):
    rig = Slots()
    rig.run("ab")
    before = rig.ask(LONG)
    for number in range(40):
        names = [f"{place} {number}" for place in ("first", "behind")[: 1 + len(behind)]]
        for name, model in zip(names, "c" + behind, strict=True):
            rig.send("pod-0", name, text(900, name), target_model=model, stream=True)
        rig.now += 5.0
        for name in names:
            rig.apply(FirstToken(RequestId(name)))
            rig.apply(Finished(RequestId(name)))
    after = rig.ask(LONG)
    assert rig.asked("c")[0] > 0
    for name in ("pod-0", "pod-1"):
        assert after[name].prefill_seconds == before[name].prefill_seconds


@given(models=st.text("abcdm", max_size=8), adapter=st.sampled_from("abcd"))
def test_columns_and_candidates_cost_the_same(models, adapter):
    rig = Slots()
    rig.run(models)
    quote = rig.quote("r", LONG, target_model=adapter)
    candidates = rig.fleet.candidates(quote, rig.now)
    assert ttft_costs(candidates) == pytest.approx(ttft_costs(list(candidates)))
    wait, taken = rig.asked(adapter)
    assert 0 <= wait <= len(models) * RESPONSE
    assert wait == 0 or taken == 0


def test_the_slot_of_a_request_that_was_lost_is_free_once_the_books_are_corrected():
    rig = Slots()
    rig.run("ab")
    del rig.fleet.in_flight[RequestId("r1")]
    rig.apply(BooksCorrected(rig.pod("pod-0").endpoint.id, [RequestId("r1")]))
    assert [rig.asked(each) for each in "ac"] == [(0, 0), (0, RESPONSE)]
