"""The load at a moment: the last report, and what was sent and seen done since."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.endpoint import EndpointId
from epp.model.events import OrcaReported, ScrapeFailed, ScrapeFailure
from epp.model.request import RequestId
from epp.model.request_events import Aborted, Finished, FirstToken
from tests.model.rig import LONG, Rig
from tests.strategies import text

COUNTS = st.integers(0, 50)


def load(rig, name="pod-0"):
    """Return how many wait and run, and the use of the cache."""
    said = rig.ask()[name]
    return said.waiting, said.running, said.kv_usage


@given(waiting=COUNTS, running=COUNTS, usage=st.floats(0, 1), sent=st.integers(0, 3))
def test_reports_that_agree_are_the_load(waiting, running, usage, sent):
    """A second report a second later says the same: so it is, whatever the books expect."""
    rig = Rig()
    for number in range(min(sent, waiting + running)):
        rig.send("pod-0", f"r{number}", text(100, str(number)), stream=True)
    for _ in range(2):
        rig.report("pod-0", waiting=waiting, running=running, kv_usage=usage)
        rig.now += 1
    assert load(rig) == (waiting, running, pytest.approx(usage))


@given(waiting=COUNTS, running=COUNTS, usage=st.floats(0, 1), data=st.data())
def test_no_load_is_below_zero_or_lacks_own_requests(waiting, running, usage, data):
    rig, under_way = Rig(), []
    for number in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["send", "begin", "end", "report", "wait"])):
            case "send":
                rig.send("pod-0", f"r{number}", text(3000, str(number)), stream=True)
                under_way.append(RequestId(f"r{number}"))
            case "begin" if under_way:
                rig.apply(FirstToken(data.draw(st.sampled_from(under_way))))
            case "end" if under_way:
                rig.apply(Finished(under_way.pop()))
            case "report":
                rig.report("pod-0", waiting=waiting, running=running, kv_usage=usage)
            case _:
                rig.now += data.draw(st.floats(0, 10))
        waiting_now, running_now, usage_now = load(rig)
        assert waiting_now >= 0
        assert running_now >= 0
        assert 0 <= usage_now <= 1
        assert waiting_now + running_now >= len(under_way)


def test_a_request_that_is_sent_after_the_report_counts():
    rig = Rig()
    rig.report("pod-0", waiting=0, running=4, kv_usage=0.5, block_size=16, num_blocks=1001)
    rig.send("pod-0", "r", text(1600))
    waiting, running, usage = load(rig)
    # 1600 tokens are a tenth of the 16,000 that 1000 blocks of 16 hold.
    assert (waiting, running, usage) == (0, 5, pytest.approx(0.6, abs=0.01))


def test_a_request_that_ended_after_the_report_does_not():
    rig = Rig()
    rig.send("pod-0", "r", LONG)
    rig.report("pod-0", running=3, kv_usage=0.5, block_size=16, num_blocks=1001)
    before = load(rig)
    rig.apply(Finished(RequestId("r")))
    after = load(rig)
    assert (before[1], after[1]) == (3, 2)
    assert after[2] < before[2]


def test_requests_behind_long_prompts_wait_until_a_step_reaches_them():
    """A step of 8192 tokens takes all of the first prompt and none of the third."""
    rig = Rig()
    rig.report("pod-0", block_size=16, num_blocks=10_000)
    for number in range(3):
        rig.send("pod-0", f"r{number}", text(8000, str(number)), stream=True)
    assert load(rig)[:2] == (1, 2)
    rig.apply(FirstToken(RequestId("r0")))
    assert load(rig)[:2] == (0, 3)


def test_what_reports_and_books_have_as_waiting_waits_until_a_step_reaches_it():
    rig, cache = Rig(), {"block_size": 16, "num_blocks": 10_000}
    rig.report("pod-0", **cache)
    rig.now += 1
    for number in range(5):
        rig.send("pod-0", f"r{number}", text(8000, str(number)), stream=True)
    for seconds, waiting, running in ((0.0, 3, 2), (0.4, 2, 3)):  # a prompt takes 0.38 seconds
        rig.now += seconds
        assert load(rig)[:2] == (waiting, running)
        rig.report("pod-0", waiting=waiting, running=running, **cache)
    for identity in ("r0", "r1"):
        rig.apply(FirstToken(RequestId(identity)))
    assert load(rig)[:2] == (1, 4)


def test_a_report_that_came_too_early_for_a_request_does_not_undo_it():
    """Engines count a request only after the step in which it came."""
    rig = Rig()
    rig.report("pod-0", block_size=16, num_blocks=1001)
    rig.send("pod-0", "r", text(1600), stream=True)
    rig.report("pod-0", block_size=16, num_blocks=1001)
    assert load(rig) == (0, 1, pytest.approx(0.1, abs=0.01))


def test_a_report_that_nothing_waits_is_believed_of_what_was_sent_before():
    rig = Rig()
    rig.report("pod-0", block_size=16, num_blocks=10_000)
    for number in range(3):
        rig.send("pod-0", f"r{number}", text(8000, str(number)), stream=True)
    rig.report("pod-0", running=3, block_size=16, num_blocks=10_000)
    assert load(rig)[:2] == (0, 3)
    rig.send("pod-0", "r3", text(8000, "3"), stream=True)
    assert load(rig)[:2] == (1, 3)


def test_what_others_sent_stays_until_the_next_report():
    rig = Rig()
    rig.report("pod-0", waiting=7, running=2)
    rig.send("pod-0", "r", LONG, stream=True)
    assert load(rig)[:2] == (7, 3)
    rig.apply(Aborted(RequestId("r")))
    assert load(rig)[:2] == (7, 2)
    rig.report("pod-0", waiting=1, running=2)
    assert load(rig)[:2] == (1, 2)


def test_what_others_held_is_no_more_than_all_that_is_held_by_the_next_report():
    """Of requests that were sent and not received yet nothing is said of what others hold."""
    rig = Rig()
    cache = {"block_size": 16, "num_blocks": 1001}
    rig.report("pod-0", running=9, kv_usage=0.8, **cache)
    rig.send("pod-0", "1", text(64))
    rig.send("pod-0", "2", text(64, "v"))
    rig.report("pod-0", running=1, kv_usage=0.1, **cache)
    assert rig.pod("pod-0").books.held_tokens == pytest.approx(0.1 * 16_000 + 2 * 64)


def test_none_waits_whose_first_token_came():
    """A report said that it waits, and the next one too; nobody else sent anything."""
    rig = Rig()
    rig.send("pod-0", "r", LONG, stream=True)
    rig.report("pod-0", waiting=1)
    assert load(rig)[:2] == (0, 1)
    rig.now += 1
    rig.report("pod-0", waiting=1)
    assert load(rig)[:2] == (1, 0)
    rig.apply(FirstToken(RequestId("r")))
    assert load(rig)[:2] == (0, 1)


def test_an_endpoint_that_never_reported_bears_what_was_sent():
    rig = Rig()
    rig.send("pod-0", "r", LONG, stream=True)
    assert load(rig)[:2] == (0, 1)
    assert load(rig, "pod-1") == (0, 0, 0)


def test_a_response_that_reports_load_is_a_report():
    rig = Rig()
    rig.report("pod-0", waiting=5, running=5, kv_usage=0.5)
    rig.send("pod-0", "r1", "x")
    target = rig.pod("pod-0").endpoint.target
    rig.apply(OrcaReported(RequestId("r1"), target, kv_usage=0.2, waiting=1.0, running=5.0))
    assert load(rig) == (1, 5, pytest.approx(0.2))


@pytest.mark.parametrize("others", [0, 4])
def test_what_a_response_does_not_report_is_what_was_sent_and_has_ended_since(others):
    """vLLM reports how many wait, and the use of the cache, but not how many run."""
    rig = Rig()
    for number in range(5):
        rig.send("pod-0", f"r{number}", text(16, str(number)), stream=True)
    rig.report("pod-0", running=5 + others, kv_usage=0.5, block_size=16, num_blocks=1001)
    for number in range(3):
        rig.apply(Finished(RequestId(f"r{number}")))
    rig.send("pod-0", "new", text(16, "n"), stream=True)
    target = rig.pod("pod-0").endpoint.target
    rig.apply(OrcaReported(RequestId("r3"), target, kv_usage=0.2, waiting=0.0))
    assert load(rig) == (0, 3 + others, pytest.approx(0.2))
    assert rig.pod("pod-0").load.running == 5 + others
    rig.apply(Finished(RequestId("new")))
    rig.apply(OrcaReported(RequestId("r3"), target, running=2.0 + others))
    assert load(rig) == (0, 2 + others, pytest.approx(0.199))


def test_what_responses_do_not_report_ends_with_the_pages_that_had_it():
    rig = Rig()
    rig.report("pod-0", running=40, kv_usage=0.5, block_size=16, num_blocks=1001, at=rig.now)
    rig.send("pod-0", "r", text(16), stream=True)
    for _ in range(11):
        rig.now += 1
        rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.NO_PAGE))
        target = rig.pod("pod-0").endpoint.target
        rig.apply(OrcaReported(RequestId("r"), target, kv_usage=0.2, waiting=0.0))
    assert load(rig) == (0, 1, pytest.approx(0.2))
    assert rig.pod("pod-0").running == 1


def test_what_responses_report_outlives_the_pages_that_have_become_old():
    rig = Rig()
    rig.report("pod-0", running=40, kv_usage=0.5, block_size=16, num_blocks=1001, at=rig.now)
    rig.send("pod-0", "r", text(16), stream=True)
    target = rig.pod("pod-0").endpoint.target
    for _ in range(15):
        rig.now += 1
        rig.apply(OrcaReported(RequestId("r"), target, waiting=5.0, running=30.0))
        rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.NO_PAGE))
    assert load(rig)[:2] == (5, 30)
    rig.now += 11
    rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.NO_PAGE))
    assert load(rig)[:2] == (0, 1)


def adapters(rig, name="pod-0"):
    said = rig.ask()[name]
    return said.running_adapters, said.waiting_adapters


def test_an_adapter_runs_where_a_request_for_it_was_sent():
    """That `x` names an adapter is known of another endpoint; `base` never was one's name."""
    rig = Rig()
    rig.report("pod-1", running_adapters=frozenset({"x"}), max_adapters=2)
    rig.report("pod-0", running_adapters=frozenset({"a"}), max_adapters=2)
    rig.send("pod-0", "r0", LONG, target_model="base")
    assert adapters(rig) == ({"a"}, set())
    rig.send("pod-0", "r1", LONG, target_model="x")
    rig.send("pod-0", "r2", LONG, target_model="x")
    assert adapters(rig) == ({"a", "x"}, set())
    assert adapters(rig, "pod-1") == ({"x"}, set())
    rig.apply(Finished(RequestId("r1")))
    assert adapters(rig) == ({"a", "x"}, set())
    rig.apply(Finished(RequestId("r2")))
    assert adapters(rig) == ({"a"}, set())


def test_an_engine_that_does_not_say_how_many_adapters_may_run_has_those_that_it_reports():
    rig = Rig()  # vLLM's Rust frontend (`rust/src/metrics/src/scheduler.rs`) has no `max_lora`
    rig.report("pod-1", running_adapters=frozenset({"x"}))
    rig.report("pod-0", running_adapters=frozenset({"a"}), waiting_adapters=frozenset({"b"}))
    assert adapters(rig) == ({"a"}, {"b"})
    rig.send("pod-0", "r", LONG, target_model="x")
    assert adapters(rig) == ({"a", "x"}, {"b"})


def test_of_thousands_of_adapters_that_a_page_names_none_is_copied_for_a_request():
    rig, names = Rig(), frozenset(str(each) for each in range(4096))
    others = frozenset(f"{each}-waits" for each in names)
    rig.report("pod-0", running_adapters=names, waiting_adapters=others, max_adapters=2)
    _, waits = adapters(rig)
    assert waits == others
    rig.send("pod-0", "r", LONG, target_model="7")
    running, waiting = adapters(rig)
    assert running is names
    assert waiting is waits


def test_an_adapter_that_a_report_has_as_both_runs():
    rig = Rig()
    both = frozenset({"a", "b"})
    rig.report("pod-0", running_adapters=both, waiting_adapters=both | {"c"}, max_adapters=4)
    assert adapters(rig) == (both, {"c"})


def test_an_adapter_for_which_there_is_no_room_waits():
    rig = Rig()
    rig.report("pod-1", running_adapters=frozenset({"x"}), max_adapters=1)
    rig.report("pod-0", running_adapters=frozenset({"a"}), max_adapters=1)
    rig.send("pod-0", "r", LONG, target_model="x")
    assert adapters(rig) == ({"a"}, {"x"})
    rig.report("pod-0", running_adapters=frozenset({"x"}), max_adapters=1)
    assert adapters(rig) == ({"x"}, set())
