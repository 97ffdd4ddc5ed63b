"""The fleet: what it learns from requests, and what others do."""

import pytest

from epp.model.events import EndpointRemoved
from epp.model.learning.prefill import STEP_SECONDS, PrefillModel
from epp.model.pods.pods import CLASS_LABEL
from epp.model.request import Prompt, RequestId, Usage
from epp.model.request_events import Aborted, Finished, FirstToken, Generated, Unobserved
from tests.model.rig import LONG, Rig, predicted
from tests.strategies import text


def test_waiting_requests_of_others_are_queued_prefill():
    rig = Rig()
    rig.report("pod-0", waiting=3)
    seconds = PrefillModel().seconds(1000, 0)
    assert rig.ask(LONG)["pod-0"].queued_prefill_seconds == pytest.approx(3 * seconds)
    assert rig.ask()["pod-0"].queued_prefill_seconds == pytest.approx(3 * STEP_SECONDS)
    rig.send("pod-0", "r1", "x")  # the report is older
    assert rig.ask(LONG)["pod-0"].queued_prefill_seconds == pytest.approx(
        3 * seconds + PrefillModel().seconds(1, 0)
    )


def test_decodes_interfere_by_number_and_by_what_they_look_back_at():
    rig = Rig()
    rig.report("pod-0", running=100, kv_usage=0.5, num_blocks=100_001, block_size=16)
    found = rig.ask(text(1000))
    decode = 100 * 20e-6 + 56e-9 * 0.5 * 1_600_000
    assert found["pod-0"].decode_seconds == pytest.approx(decode)
    # 256 tokens are expected: each waits for the others, and each of them for it and its prompt.
    own, prefill = 20e-6 + 56e-9 * (1000 + 256 / 2), PrefillModel().seconds(1000, 0)
    lost = 256 * (decode + 100 * own) + 100 * prefill
    assert found["pod-0"].crowding_seconds == pytest.approx(lost)
    assert found["pod-0"].generation_seconds == pytest.approx(256 * (6e-3 + own + decode))
    assert found["pod-1"].generation_seconds == pytest.approx(256 * (6e-3 + own))
    assert found["pod-1"].decode_seconds == found["pod-1"].crowding_seconds == 0


def test_a_decision_keeps_what_it_was_made_by():
    rig = Rig()
    found = rig.fleet.candidates(rig.quote("r1", LONG), rig.now)
    seen = [(found[each].decode_seconds, found[each].crowding_seconds) for each in (0, 1)]
    rig.send("pod-0", "r2", LONG)
    assert [(each.decode_seconds, each.crowding_seconds) for each in found] == seen


def test_the_busy_share_is_averaged_over_ten_seconds():
    rig = Rig(4)
    assert rig.ask()["pod-0"].busy_share == 0
    rig.send("pod-0", "r1", text(200_000))
    assert rig.ask()["pod-0"].busy_share == 0
    rig.now += 10
    assert rig.ask()["pod-0"].busy_share == pytest.approx(0.25 * (1 - 1 / 2.718281828))
    rig.now += 50
    assert rig.ask()["pod-0"].busy_share == pytest.approx(0.25, abs=0.002)
    rig.apply(Finished(RequestId("r1")))
    rig.now += 100
    assert rig.ask()["pod-0"].busy_share == pytest.approx(0, abs=1e-4)


def respond(rig, identity, *, first, last, tokens):
    rig.send("pod-0", identity, LONG)
    rig.now += first
    rig.apply(FirstToken(RequestId(identity)))
    rig.now += last
    rig.apply(Finished(RequestId(identity), Usage(1000, tokens, 0)))


def test_the_share_of_first_tokens_is_learned_from_responses_that_were_counted():
    rig = Rig()
    for number in range(20):
        respond(rig, f"r{number}", first=0.5, last=1.5, tokens=20)
        respond(rig, f"empty {number}", first=5.0, last=0.0, tokens=0)
    assert rig.ask()["pod-0"].ttft_share == pytest.approx(0.25)


def test_bytes_a_token_are_learned_per_model():
    rig = Rig()
    rig.send("pod-0", "r1", LONG)
    rig.apply(Finished(RequestId("r1"), Usage(2000, 1, 0)))
    assert rig.ask(LONG)["pod-0"].prompt_tokens == 2000
    assert rig.ask(LONG, target_model="other")["pod-0"].prompt_tokens == 1000


@pytest.mark.parametrize(
    ("prompts", "usage"),
    [
        (("a" * 4000, "b" * 4000), Usage(500, 1, 0)),
        (("a" * 4000,), Usage(0, 1, 0)),
        (("a" * 4000,), None),
    ],
    ids=["several prompts", "none reported", "no usage"],
)
def test_bytes_a_token_are_learned_from_clear_cases_only(prompts, usage):
    rig = Rig()
    rig.send("pod-0", "r1", *prompts)
    rig.apply(Finished(RequestId("r1"), usage))
    assert rig.ask(LONG)["pod-0"].prompt_tokens == 1000


@pytest.mark.parametrize("prompt", [LONG, list(range(1000))], ids=["text", "token ids"])
def test_a_request_for_which_the_engine_reads_no_cache_says_nothing_of_it(prompt):
    rig, skips = Rig(), {"skip_reading_prefix_cache": True}
    for cached in (0, predicted(1000)):
        rig.send("pod-0", "r1", prompt)
        rig.apply(Finished(RequestId("r1"), Usage(1000, 1, cached)))
    for number in range(6):
        assert rig.cached(prompt, **skips)["pod-0"] == 0
        rig.send("pod-0", f"r{number}", prompt, **skips)
        rig.apply(Finished(RequestId(f"r{number}"), Usage(1000, 1, 0)))
    assert rig.cached(prompt)["pod-0"] == predicted(1000)
    (stats, _) = rig.fleet.cache_stats()
    assert (stats.trust, rig.pod("pod-0").scheduler.generation) == (1.0, 0)


def test_what_it_computes_is_cached():
    rig = Rig()
    rig.serve("pod-0", "r1", LONG, skip_reading_prefix_cache=True)
    assert rig.cached(LONG)["pod-0"] == predicted(1000)


def shared(number):
    """A prompt of a shared message of 1000 tokens and one of its own."""
    own = text(100, str(number)).encode()
    return {"prompts": (Prompt(LONG.encode() + own, marks=(4000, 4000 + len(own))),)}


def hit(rig, number, cached):
    """Have a prompt hit as much; return what was predicted."""
    found = rig.ask(**shared(number))["pod-0"].cached_tokens
    rig.send("pod-0", f"r{number}", **shared(number))
    rig.apply(Finished(RequestId(f"r{number}"), Usage(1100, 1, cached)))
    return found


def test_a_shared_prefix_that_was_evicted_in_part_is_as_long_as_before():
    rig, whole = Rig(1), 992  # 62 of the engine's blocks of 16
    for number in range(3):
        hit(rig, number, whole if number else 0)
    for number in range(10, 30, 2):  # what is left of it, sometimes
        hit(rig, number, whole * 7 // 8)
        hit(rig, number + 1, whole)
    assert hit(rig, 40, whole) == whole


def test_often_evicted_in_part_it_is_no_shorter_for_it():
    rig, whole = Rig(1), 992
    for number in range(3):
        hit(rig, number, whole if number else 0)
    for number in range(10, 40):
        hit(rig, number, rig.ask(**shared(number))["pod-0"].cached_tokens * 7 // 8)
    hit(rig, 50, whole)
    assert hit(rig, 51, whole) == whole


def test_one_absurd_count_of_a_prompt_that_others_start_with_changes_nothing():
    def after(usage):
        rig, start = Rig(1), text(150, "s").encode()
        rig.send("pod-0", "r1", prompts=(Prompt(start, marks=(600,)),))
        rig.apply(Finished(RequestId("r1"), usage))
        found = rig.ask(prompts=(Prompt(start + LONG.encode(), marks=(600, 4600)),))["pod-0"]
        return found.prompt_tokens, found.cached_tokens

    assert after(Usage(1 << 24, 1, 0)) == after(Usage(0, 1, 0))


def test_token_ids_are_counted_not_estimated():
    rig, ids = Rig(), list(range(1000))
    rig.send("pod-0", "r1", ids)
    rig.apply(Finished(RequestId("r1"), Usage(900, 1, 0)))
    found = rig.ask(ids)["pod-0"]
    assert (found.prompt_tokens, found.cached_tokens) == (1000, predicted(1000))


def slow(rig, name, identity, tokens, seconds):
    rig.send(name, identity, text(tokens, identity))
    rig.now += seconds
    rig.apply(FirstToken(RequestId(identity)))
    rig.apply(Finished(RequestId(identity)))


def test_prefill_is_learned_from_endpoints_that_were_idle():
    rig = Rig()
    for number in range(60):
        slow(rig, "pod-0", f"r{number}", 500 + 50 * number, 0.01 + 4e-4 * (500 + 50 * number))
    assert rig.ask(text(2000, "new"))["pod-1"].prefill_seconds == pytest.approx(0.8, rel=0.2)


def test_short_prompts_and_queued_ones_teach_nothing():
    rig = Rig()
    slow(rig, "pod-0", "short", 60, 9.0)
    rig.send("pod-0", "first", text(500))
    slow(rig, "pod-0", "second", 500, 9.0)
    assert rig.ask(text(100, "new"))["pod-1"].prefill_seconds == PrefillModel().seconds(100, 0)


@pytest.mark.parametrize(
    ("waiting", "learned"), [(3, False), (0, True), (None, True)], ids=["some", "none", "unknown"]
)
def test_what_waits_at_an_endpoint_by_its_report_holds_prompts_up(waiting, learned):
    rig = Rig()
    for number in range(40):
        if waiting is not None:  # of a picker that was here before, as far as this one knows
            rig.report("pod-0", waiting=waiting, running=8, at=rig.now)
        slow(rig, "pod-0", f"r{number}", 500 + 50 * number, 3.0)
    unchanged = rig.pod("pod-0").speed.prefill.seconds(1000, 0) == PrefillModel().seconds(1000, 0)
    assert learned is not unchanged


def test_classes_of_endpoints_learn_apart():
    rig = Rig(0)
    rig.add("h100", "10.0.0.1", labels={CLASS_LABEL: "h100"})
    rig.add("cpu", "10.0.0.2", labels={CLASS_LABEL: "cpu"})
    for number in range(40):
        slow(rig, "cpu", f"r{number}", 500 + 50 * number, 1 + number)
    found = rig.ask(text(1000, "new"))
    assert found["h100"].prefill_seconds == PrefillModel().seconds(1000, 0)
    assert found["cpu"].prefill_seconds > 1
    rig.add("h100", "10.0.0.1", labels={CLASS_LABEL: "cpu"})
    assert rig.ask(text(1000, "new"))["h100"].prefill_seconds > 1


def answer(rig, name, number, seconds, *, tokens=200, step=0.007):  # noqa: PLR0913
    """Send a request that is answered after `seconds`, then with a token every `step`."""
    identity = RequestId(f"{name} {number}")
    rig.send(name, identity, text(500 + 53 * (number % 40), identity), stream=True)
    rig.now += seconds
    rig.apply(FirstToken(identity))
    rig.now += tokens * step
    rig.apply(Finished(identity, Usage(500 + 53 * (number % 40), tokens, 0)))


def as_predicted(number, times=1.0):
    return times * PrefillModel().seconds(500 + 53 * (number % 40), 0)


def figures(rig, name):
    """What is predicted of one endpoint: a prompt that no other has, and a step of one decode."""
    asked, pace = rig.ask(text(2000, "asked"))[name], rig.pod(name).pace
    step = pace.decode_slowness.value * pace.of_class.decode.seconds(1, 1000)
    return asked.prefill_seconds, step


def test_steps_are_timed_while_no_prompt_is_computed():
    rig = Rig(1)
    for number in range(40):  # a token every 20 ms, and one with the other prompt
        rig.send("pod-0", "one", text(500, f"one {number}"))
        rig.now += 0.03
        rig.apply(FirstToken(RequestId("one")))
        rig.now += 1.0
        rig.send("pod-0", "other", text(500, f"other {number}"))
        rig.now += 0.4
        rig.apply(FirstToken(RequestId("other")))
        rig.apply(Finished(RequestId("other"), Usage(500, 1, 0)))
        rig.now += 1.0
        rig.apply(Finished(RequestId("one"), Usage(500, 1 + 50 + 1 + 50, 0)))
    assert rig.pod("pod-0").pace.step_seconds(1, 500) == pytest.approx(0.02, rel=0.1)


def test_unlabelled_endpoints_are_told_apart():
    rig = Rig()
    for number in range(120):
        answer(rig, "pod-0", number, as_predicted(number), step=0.00602)
        answer(rig, "pod-1", number, as_predicted(number, 2.5), step=2.5 * 0.00602)
    fast, slow = figures(rig, "pod-0"), figures(rig, "pod-1")
    assert fast[0] == pytest.approx(PrefillModel().seconds(2000, 0), rel=0.1)
    assert slow == pytest.approx((2.5 * fast[0], 2.5 * fast[1]), rel=0.15)


@pytest.mark.parametrize(
    "odd",
    [
        {"seconds": 1e-4},
        {"seconds": 0.0, "tokens": 1},
        {"seconds": 0.05, "tokens": 10**9, "step": 1e-9},
        {"seconds": 0.05, "tokens": 200, "step": 0.07},
        {"seconds": 3.0, "step": 0.07},
    ],
    ids=["at once", "at once with nothing", "counts too much", "decodes slowly", "tenfold slower"],
)
def test_one_odd_endpoint_leaves_the_figures_of_others(odd):
    def others(of_third):
        rig = Rig(3)
        for number in range(60):
            for name in ("pod-0", "pod-1", "pod-2"):
                answer(rig, name, number, as_predicted(number))
        for number in range(60, 160):
            answer(rig, "pod-2", number, **{"seconds": as_predicted(number), **of_third})
            answer(rig, "pod-0", number, as_predicted(number))
        return [figures(rig, name) for name in ("pod-0", "pod-1")]

    for found, usual in zip(others(odd), others({}), strict=True):
        assert found == pytest.approx(usual, rel=0.1)


@pytest.mark.parametrize("times", [0.25, 4.0])
def test_what_happens_to_fewer_than_half_leaves_the_class(times):
    rig = Rig(5)
    for number in range(140):
        for place in range(5):
            factor = times if place < 2 and number >= 20 else 1.0
            answer(rig, f"pod-{place}", number, as_predicted(number, factor), tokens=64)
    of_class = rig.pod("pod-0").pace.of_class.prefill
    assert of_class.seconds(2000, 0) == pytest.approx(PrefillModel().seconds(2000, 0), rel=0.1)
    for name, factor in (("pod-0", times), ("pod-4", 1.0)):
        expected = factor * PrefillModel().seconds(2000, 0)
        assert figures(rig, name)[0] == pytest.approx(expected, rel=0.2)


def slow_third():
    """Three endpoints, of which pod-2 is 2.5 times slower, with a request of its under way."""
    rig = Rig(3)
    for number in range(60):
        for name in ("pod-0", "pod-1", "pod-2"):
            times = 2.5 if name == "pod-2" else 1.0
            answer(rig, name, number, as_predicted(number, times), step=times * 0.007)
    rig.send("pod-2", "late", text(2000, "late"), stream=True)
    return rig


def end_late(rig):
    rig.now += 50.0
    rig.apply(FirstToken(RequestId("late")))
    rig.now += 100.0
    rig.apply(Finished(RequestId("late"), Usage(2000, 1000, 0)))


def test_what_a_removed_endpoint_still_does_teaches_nothing():
    rig = slow_third()
    rig.apply(EndpointRemoved(rig.pod("pod-2").endpoint.id))
    known = figures(rig, "pod-0")
    end_late(rig)
    assert figures(rig, "pod-0") == known
    rig.add("new", "10.0.0.9")
    assert figures(rig, "new") == pytest.approx(known, rel=0.1)


def test_another_class_is_learned_anew():
    rig = slow_third()
    known = figures(rig, "pod-0")
    rig.add("pod-2", "10.0.0.3", labels={CLASS_LABEL: "other"})
    assert figures(rig, "pod-2") == figures(Rig(), "pod-0")
    end_late(rig)
    assert figures(rig, "pod-0") == known
    assert figures(rig, "pod-2")[1] > 0.05


def test_time_before_the_first_request_is_nobodys():
    rig = Rig()
    rig.report("pod-0", running=4)
    answer(rig, "pod-0", 1, as_predicted(1))
    assert rig.pod("pod-0").pace.mark().seconds == pytest.approx(200 * 0.007)


def test_cut_off_streams_teach_nothing():
    rig = Rig()
    rig.send("pod-0", "r1", LONG, stream=True)
    rig.now += 30
    rig.apply(Aborted(RequestId("r1")))
    rig.send("pod-0", "r2", text(900), stream=True)
    rig.apply(Unobserved(RequestId("r2")))
    rig.now += 30
    rig.apply(Finished(RequestId("r2")))
    assert figures(rig, "pod-0") == figures(Rig(), "pod-0")


def sleep(rig, name):
    """Have an endpoint sleep for a while."""
    for awake in (False, True):
        rig.report(name, awake=awake, at=rig.now)
        rig.now += 20


@pytest.mark.parametrize("begun", [False, True], ids=["before its first token", "after it"])
def test_what_an_engine_kept_while_it_slept_teaches_nothing_of_its_speed(begun):
    def learned(kept):
        rig = Rig()
        for number in range(60):
            for name in ("pod-0", "pod-1"):
                answer(rig, name, number, as_predicted(number))
        for number in range(20):
            identity = RequestId(f"kept {number}")
            rig.send("pod-0", identity, text(900, identity), stream=True)
            rig.now += PrefillModel().seconds(900, 0)
            if begun:
                rig.apply(FirstToken(identity))
            if kept:
                sleep(rig, "pod-0")
            if not begun:
                rig.apply(FirstToken(identity))
            rig.now += 200 * 0.007
            rig.apply(Finished(identity, Usage(900, 200, 0)))
        lengths, pod = rig.fleet.output_lengths, rig.pod("pod-0")
        per_token = pod.pace.of_class.seconds_per_token.value
        return *figures(rig, "pod-0"), per_token, lengths.ttft_share.value

    assert learned(kept=True) == pytest.approx(learned(kept=False), rel=0.1)


@pytest.mark.parametrize("prompts", [1, 2])
def test_of_several_answers_each_is_taken_for_as_long(prompts):
    rig = Rig()
    for number in range(20):
        rig.send("pod-0", f"r{number}", *[text(50, str(each)) for each in range(prompts)], n=4)
        rig.apply(FirstToken(RequestId(f"r{number}")))
        rig.now += 1
        rig.apply(Finished(RequestId(f"r{number}"), Usage(50 * prompts, 400 * prompts, 0)))
    kind = rig.quote("next", LONG).response_kind
    assert rig.fleet.output_lengths.length(kind) == pytest.approx(100)


def streamed(rig, identity, pieces, usage=None):
    """Have a request be answered in pieces; return the tokens that half of them are taken for."""
    rig.send("pod-0", identity, text(160, identity), stream=True)
    rig.apply(FirstToken(RequestId(identity)))
    rig.now += 1
    rig.apply(Generated(RequestId(identity), pieces // 2))
    (sequence,) = rig.in_flight(identity).sequences
    halfway = sequence.computed - sequence.offsets.total + 1
    rig.now += 1
    rig.apply(Finished(RequestId(identity), usage, pieces))
    return halfway


@pytest.mark.parametrize("each", [1, 4])
def test_streams_that_are_not_counted_have_as_many_tokens_in_a_piece_as_those_that_are(each):
    rig = Rig()
    assert streamed(rig, "first", 100) == 50
    for number in range(20):
        streamed(rig, f"counted {number}", 100, Usage(160, 100 * each, 0))
    kind = rig.quote("next", LONG).response_kind
    for number in range(40):
        assert streamed(rig, f"not counted {number}", 300) == 150 * each
    assert rig.fleet.output_lengths.length(kind) == pytest.approx(300 * each, rel=0.3)


@pytest.mark.parametrize("answers", [1, 2])
def test_a_stream_is_not_taken_for_more_tokens_than_its_client_allows(answers):
    # The others' reasoning is hidden: it is counted, but not streamed.
    rig = Rig()
    for number in range(20):
        streamed(rig, f"hidden {number}", 20, Usage(160, 1000, 0))
    rig.send("pod-0", "short", text(160, "short"), stream=True, max_tokens=300, n=answers)
    rig.apply(FirstToken(RequestId("short")))
    in_flight = rig.in_flight("short")
    assert in_flight.seen_tokens(4, rig.fleet.output_lengths) == pytest.approx(200, rel=0.1)
    assert in_flight.seen_tokens(200, rig.fleet.output_lengths) == 300 * answers
    assert in_flight.seen_tokens(999, rig.fleet.output_lengths) == 999


def test_what_is_guessed_of_a_stream_is_in_tokens():
    rig = Rig()
    for number in range(20):
        streamed(rig, f"counted {number}", 100, Usage(160, 400, 0))
    rig.send("pod-0", "left", text(160, "left"), stream=True)
    rig.apply(FirstToken(RequestId("left")))
    rig.apply(Unobserved(RequestId("left")))
    (sequence,) = rig.in_flight("left").sequences
    rig.now += 1e3
    rig.ask(LONG)
    assert "left" not in rig.fleet.in_flight
    assert sequence.computed - sequence.offsets.total + 1 == pytest.approx(400, rel=0.02)


@pytest.mark.parametrize("stream", [True, False])
def test_an_endpoint_that_counts_what_it_cannot_generate_makes_no_answers_long(stream):
    rig = Rig(4)
    for number in range(400):
        for place in range(4):
            identity = RequestId(f"{place} {number}")
            rig.send(f"pod-{place}", identity, text(100, identity), stream=stream)
            if stream:
                rig.apply(FirstToken(identity))
            rig.now += 1.3
            count = 1 << 24 if place == 3 and number >= 100 else 200
            rig.apply(Finished(identity, Usage(100, count, 0), 195 if stream else 0))
    kind = rig.quote("next", LONG, stream=stream).response_kind
    assert 190 < rig.fleet.output_lengths.length(kind) <= 200
