"""An engine in virtual time: when tokens come, what is heard, and what is left of it."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.replay.engines.contract import EngineLoad, Job, Limits, Progress
from epp.replay.engines.cost import StepCost
from epp.replay.engines.engine import Engine
from epp.replay.simulation.clock import Clock
from epp.replay.traffic.calls import Run
from tests.replay.engines.scripts import drawn, play

COST = StepCost(
    step_ms=10,
    prefill_us_per_token=100,
    attention_ns=0,
    decode_us_per_seq=1000,
    decode_ns_per_context_token=0,
)
"""10 ms a step, 0.1 ms a prompt token, 1 ms a sequence that decodes."""


class Watched:
    """An engine that is listened to."""

    def __init__(self, cost=COST, progress_tokens=64, **limits):
        self.clock = Clock()
        self.heard = []
        self.engine = Engine(
            Limits(**limits), cost, self.clock, self.hear, progress_tokens=progress_tokens
        )

    def hear(self, job, progress):
        self.heard.append((job.number, progress.name, round(self.clock.now, 6), job.generated))

    def at(self, when, do, *arguments):
        self.clock.at(when, partial(do, *arguments))

    def run(self, until=float("inf")):
        self.clock.run(lambda: self.clock.now >= until)
        return self.heard


def rounded(load):
    return load._replace(usage=round(load.usage, 6))


def job(number=0, prompt=100, response=3, token=None, **more):
    return Job(number, [Run(token or 10 + number, prompt)], [Run(900 + number, response)], **more)


def test_a_response_takes_a_step_for_its_prompt_and_one_for_each_token_after_the_first():
    it = Watched()
    it.engine.submit(job())
    # 10 ms and 100 tokens of 0.1 ms; then twice 10 ms and 1 ms.
    assert it.run() == [(0, "FIRST", 0.02, 1), (0, "LAST", 0.042, 3)]


def test_first_and_last_come_at_once_where_there_is_one_token():
    it = Watched()
    it.engine.submit(job(response=1))
    assert it.run() == [(0, "FIRST", 0.02, 1), (0, "LAST", 0.02, 1)]


def test_a_long_prompt_takes_several_steps():
    it = Watched(max_num_batched_tokens=40)
    it.engine.submit(job(response=1))
    assert it.run()[0] == (0, "FIRST", 0.04, 1)  # 3 steps, 100 tokens


def test_what_comes_during_a_step_waits_for_its_end():
    it = Watched()
    it.engine.submit(job(0, response=50))
    it.at(0.025, it.engine.submit, job(1, response=1))
    # The step under way ends at 0.031; the next has 100 prompt tokens and one that decodes.
    assert (1, "FIRST", 0.052, 1) in it.run()


def test_progress_is_told_now_and_then():
    it = Watched(progress_tokens=10)
    it.engine.submit(job(response=35))
    told = [generated for _, progress, _, generated in it.run() if progress == "SOME"]
    assert told == [11, 21, 31]


def test_the_metrics_page_has_what_the_last_step_left():
    it = Watched(num_gpu_blocks=101)
    it.engine.submit(job(0, prompt=160, response=100))
    it.at(0.001, it.engine.submit, job(1, prompt=80, response=100))
    it.run(until=0.001)
    assert it.engine.published == EngineLoad()
    assert rounded(it.engine.load) == EngineLoad(1, 1, 0.10)
    it.at(0.027, lambda: None)
    it.run(until=0.027)  # the first step has ended, the second is under way
    assert rounded(it.engine.published) == EngineLoad(0, 1, 0.10)
    assert rounded(it.engine.load) == EngineLoad(0, 2, 0.16)


def test_the_metrics_page_follows_steps_that_are_computed_at_once():
    it = Watched(num_gpu_blocks=101)
    it.engine.submit(job(0, prompt=160, response=100))
    usages = []
    # Steps end at 26 ms, 37 ms and so on. The first decodes token 161, in a block of its own; the
    # 17th after that begins another.
    for at in (0.030, 0.040, 0.020 + 17 * 0.011, 0.031 + 17 * 0.011):
        it.at(at, lambda: usages.append(round(it.engine.published.usage, 6)))
    it.run(until=0.3)
    assert usages == [0.10, 0.11, 0.11, 0.12]


def test_a_request_that_could_never_fit_is_refused():
    it = Watched(num_gpu_blocks=11)
    with pytest.raises(ValueError, match="161 tokens, but the engine takes 160"):
        it.engine.submit(job(prompt=150, response=11))
    it.engine.submit(job(prompt=150, response=10))
    assert it.run()[-1][1] == "LAST"


def test_a_repeated_prompt_is_cached_but_for_its_last_block():
    it = Watched()
    first, second = job(0, prompt=160), job(1, prompt=160, token=10)
    it.engine.submit(first)
    it.run()
    assert it.engine.cached_tokens(second) == 144
    it.engine.submit(second)
    it.run()
    assert (first.cached, second.cached) == (0, 144)


def test_what_was_cached_and_evicted_is_not_kept():
    it = Watched(num_gpu_blocks=21)
    for number in range(5):
        it.engine.submit(job(number, prompt=160, response=40))
        it.run()
    assert not it.engine._scheduler.pool.changed


def test_adapters_share_no_blocks():
    it = Watched()
    jobs = [job(0, adapter="a"), job(1, token=10, adapter="b"), job(2, token=10, adapter="a")]
    for each in jobs:
        it.engine.submit(each)
        it.run()
    assert [each.cached for each in jobs] == [0, 0, 96]


def test_a_transferred_prompt_is_not_computed():
    it = Watched()
    it.engine.submit(job(prompt=1000, response=2, transferred=True))
    # Two steps that decode one sequence.
    assert it.run() == [(0, "FIRST", 0.011, 1), (0, "LAST", 0.022, 2)]


def test_a_faster_engine_is_faster_from_its_next_step_on():
    it = Watched()
    it.engine.submit(job(response=5))
    it.at(0.025, setattr, it.engine, "speed", 2.0)
    assert it.run()[-1] == (0, "LAST", round(0.031 + 3 * 0.0055, 6), 5)


@pytest.mark.parametrize("at", [0.0, 0.035])
def test_an_engine_that_stalls_goes_on_later(at):
    it = Watched()
    it.engine.submit(job(response=10))
    it.at(at, it.engine.stall, 5.0)
    assert it.run()[-1] == (0, "LAST", round(5.02 + 9 * 0.011, 6), 10)


def test_a_dead_engine_has_lost_everything():
    it = Watched(max_num_seqs=1)
    for number in range(3):
        it.at(number / 1000, it.engine.submit, job(number, response=50))
    it.at(0.1, it.engine.kill)
    it.at(0.2, it.engine.submit, job(3))
    it.at(0.3, it.engine.start)
    last = job(4, token=10)
    it.at(0.4, it.engine.submit, last)
    heard = it.run()
    assert heard[1:5] == [
        (0, "LOST", 0.1, 8),
        (1, "LOST", 0.1, 0),
        (2, "LOST", 0.1, 0),
        (3, "LOST", 0.2, 0),
    ]
    assert heard[5:] == [(4, "FIRST", 0.42, 1), (4, "LAST", 0.442, 3)]
    assert last.cached == 0


def test_a_request_knows_when_it_was_first_scheduled():
    it = Watched(max_num_seqs=1)
    jobs = [job(number) for number in range(2)]
    for each in jobs:
        it.engine.submit(each)
    it.run()
    assert [each.scheduled_at for each in jobs] == [0.0, pytest.approx(0.042)]


def test_an_adapter_without_a_slot_waits_and_others_pass_it():
    it = Watched(max_loras=2)
    adapters = ("a", "b", "c", "", "b", "a")
    for number, adapter in enumerate(adapters):
        it.engine.submit(job(number, response=10 if adapter == "b" else 20, adapter=adapter))
    shown = []
    it.at(0.1, lambda: shown.append(it.engine.published))
    times = {(number, progress): at for number, progress, at, _ in it.run()}
    firsts = {number: at for (number, progress), at in times.items() if progress == "FIRST"}
    assert [number for number in firsts if number != 2] == [0, 1, 3, 4, 5]
    assert max(times[1, "LAST"], times[4, "LAST"]) < firsts[2] < times[0, "LAST"]
    assert (shown[0].waiting, shown[0].running) == (1, 5)
    assert shown[0].running_adapters == {"a", "b"}
    assert shown[0].waiting_adapters == {"c"}
    assert it.engine.published.running_adapters == frozenset()


@given(st.integers(0, 1 << 32))
def test_steps_at_once_do_what_they_do_one_by_one(seed):
    limits, calls = drawn(seed)
    at_once, single = (play(limits, calls, progress) for progress in (64, 1))
    assert [each[:2] for each in at_once.heard] == [each[:2] for each in single.heard]
    assert [each.at for each in at_once.heard] == pytest.approx([each.at for each in single.heard])
    assert at_once.scheduled == pytest.approx(single.scheduled)
    assert at_once.outcomes == single.outcomes
    assert at_once[3:] == single[3:]


@given(st.integers(0, 1 << 32))
def test_every_request_ends_once_and_every_block_comes_back(seed):
    limits, calls = drawn(seed)
    faults = [
        (3.0, lambda engine: engine.stall(0.5)),
        (4.0, Engine.kill),
        (5.0, Engine.start),
        (5.5, lambda engine: setattr(engine, "speed", 0.5)),
    ]
    played = play(limits, calls, 64, faults)
    assert len(played.free) == played.blocks
    assert (played.load.waiting, played.load.running) == (0, 0)
    over = [each.job for each in played.heard if each.progress is not Progress.FIRST]
    assert sorted(over) == list(range(len(calls)))
