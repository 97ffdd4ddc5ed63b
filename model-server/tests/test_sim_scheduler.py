"""The scheduler: vLLM's cache and batching rules as tables, then invariants."""

from array import array
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_server.simulator.cost import step_seconds
from model_server.simulator.scheduler import Finish, Request, Scheduler, Token
from model_server.simulator.settings import Limits, Speed


def outputs(first: int = 1_000_000):
    return (Token(number, "x") for number in count(first))


def request(prompt, generate: int = 1, *, lora=None, salt=None, source=None) -> Request:
    ids = array("I", prompt)
    return Request(ids, generate, source or outputs(), lora, salt)


def run(scheduler: Scheduler, *requests: Request) -> None:
    """Queue requests and step until everything is finished."""
    for one in requests:
        scheduler.add(one)
    steps = 0
    while scheduler.busy:
        scheduler.complete(scheduler.schedule())
        steps += 1
        assert steps < 100_000, "the engine makes no progress"


def make(**changes: int) -> Scheduler:
    return Scheduler(Limits(**{"block_size": 32, "num_gpu_blocks": 64, **changes}))


@pytest.mark.parametrize(("prompt", "hit"), [(31, 0), (32, 0), (33, 32), (64, 32), (65, 64)])
def test_a_repeated_prompt_hits_all_full_blocks_but_recomputes_one_token(prompt, hit):
    scheduler = make()
    run(scheduler, request(range(prompt)))
    again = request(range(prompt))
    run(scheduler, again)
    assert again.cached_tokens == hit


@pytest.mark.parametrize(
    ("prompt", "generated", "cached"), [(96, 32, 96), (96, 33, 128), (31, 1, 0), (31, 2, 32)]
)
def test_generated_tokens_are_cached_except_the_last(prompt, generated, cached):
    scheduler = make()
    first = request(range(prompt), generated)
    run(scheduler, first)
    follow_up = request([*first.tokens, 7])
    run(scheduler, follow_up)
    assert follow_up.cached_tokens == cached == (prompt + generated - 1) // 32 * 32


def test_the_recomputed_last_block_becomes_a_second_copy():
    scheduler = make()
    run(scheduler, request(range(64)), request(range(64)))
    hashes = [scheduler.pool.hash_of(block) for block in range(64)]
    copies = [hashes.count(h) for h in dict.fromkeys(hashes) if h is not None]
    assert copies == [1, 2]


def test_requests_of_one_step_hit_each_other():
    scheduler = make()
    first, second = request(range(100)), request(range(100))
    scheduler.add(first)
    scheduler.add(second)
    step = scheduler.schedule()
    assert [(chunk.start, chunk.size) for chunk in step] == [(0, 100), (96, 4)]
    assert second.cached_tokens == 96


@pytest.mark.parametrize(
    ("lora", "salt", "hit"), [(None, None, 64), ("a", None, 0), (None, "s", 0), ("a", "s", 0)]
)
def test_adapters_and_salts_do_not_share_blocks(lora, salt, hit):
    scheduler = make()
    run(scheduler, request(range(65)))
    other = request(range(65), lora=lora, salt=salt)
    run(scheduler, other)
    assert other.cached_tokens == hit
    same = request(range(65), lora=lora, salt=salt)
    run(scheduler, same)
    assert same.cached_tokens == 64


def test_under_pressure_the_tail_of_the_older_conversation_goes_first():
    scheduler = make(num_gpu_blocks=9)
    run(scheduler, request(range(128)))  # blocks 1-4
    run(scheduler, request(range(1000, 1192)))  # 6 of 8: evicts the older one's tail
    again = request(range(129))
    run(scheduler, again)
    assert again.cached_tokens == 64


def test_an_aborted_prompt_stays_cached_and_holds_nothing():
    scheduler = make()
    first = request(range(100), 50)
    scheduler.add(first)
    step = scheduler.schedule()
    scheduler.abort(first)
    assert scheduler.complete(step) == []
    assert (scheduler.pool.usage, scheduler.busy, first.finish) == (0.0, False, Finish.ABORT)
    again = request(range(100))
    run(scheduler, again)
    assert again.cached_tokens == 96


def test_aborting_a_waiting_or_a_finished_request_changes_nothing_else():
    scheduler = make(max_num_seqs=1)
    first, second = request(range(40)), request(range(40))
    scheduler.add(first)
    scheduler.add(second)
    scheduler.schedule()
    scheduler.abort(second)
    run(scheduler)
    scheduler.abort(first)
    assert (first.finish, second.finish) == (Finish.LENGTH, Finish.ABORT)
    assert second.cached_tokens is None


def test_a_waiting_request_holds_nothing_and_blocks_those_behind_it():
    scheduler = make(num_gpu_blocks=5)
    running, large, small = request(range(96), 5), request(range(500, 564)), request(range(9))
    for one in (running, large, small):
        scheduler.add(one)
    step = scheduler.schedule()
    assert [chunk.request for chunk in step] == [running]
    assert list(scheduler.waiting) == [large, small]
    assert scheduler.pool.free_count == 1
    assert large.blocks == []


def test_hit_blocks_that_are_free_count_as_needed():
    scheduler = make(num_gpu_blocks=6)
    run(scheduler, request(range(65)))
    holder = request(range(900, 996), 9)
    scheduler.add(holder)
    scheduler.complete(scheduler.schedule())
    # Two hits are free, and so is nothing else: the third block does not fit.
    scheduler.add(request(range(65)))
    assert [chunk.request for chunk in scheduler.schedule()] == [holder]


def test_a_prompt_is_chunked_by_the_step_budget_after_the_decodes():
    scheduler = make(max_num_batched_tokens=50)
    decoding = request(range(30), 9)
    scheduler.add(decoding)
    scheduler.complete(scheduler.schedule())
    scheduler.add(request(range(500, 620)))
    sizes = []
    for _ in range(4):
        step = scheduler.schedule()
        sizes.append([chunk.size for chunk in step])
        scheduler.complete(step)
    assert sizes == [[1, 49], [1, 49], [1, 22], [1]]


def test_running_requests_are_limited():
    scheduler = make(max_num_seqs=2)
    for start in range(3):
        scheduler.add(request([start], 3))
    assert len(scheduler.schedule()) == 2
    assert len(scheduler.waiting) == 1


def test_a_request_of_a_further_adapter_waits_and_is_overtaken():
    scheduler = make(max_loras=1)
    a, b, base = request([1], 3, lora="a"), request([2], 3, lora="b"), request([3], 3)
    for one in (a, b, base):
        scheduler.add(one)
    assert [chunk.request for chunk in scheduler.schedule()] == [a, base]
    assert list(scheduler.waiting) == [b]


def test_preemption_takes_the_last_admitted_and_it_resumes_from_its_cached_blocks():
    scheduler = make(num_gpu_blocks=7)
    first, second = request(range(90), 20), request(range(500, 590), 20)
    run(scheduler, first, second)
    assert scheduler.counts.preemptions == 1
    assert (first.generated, second.generated) == (20, 20)
    assert (first.cached_tokens, second.cached_tokens) == (0, 0)
    assert scheduler.counts.prefix_queries == 180
    assert scheduler.pool.usage == 0.0


def test_nothing_is_admitted_in_a_step_that_preempted():
    scheduler = make(num_gpu_blocks=7)
    first, second = request(range(95), 20), request(range(500, 590), 20)
    scheduler.add(first)
    scheduler.add(second)
    scheduler.complete(scheduler.schedule())
    while not scheduler.counts.preemptions:
        step = scheduler.schedule()
        scheduler.complete(step)
    assert [chunk.request for chunk in step] == [first]
    assert list(scheduler.waiting) == [second]
    assert second.blocks == []


def test_the_end_of_sequence_token_ends_and_counts():
    scheduler = make()
    ending = request([1], 9, source=iter([Token(5, "a"), Token(0, "", last=True)]))
    run(scheduler, ending)
    assert (ending.finish, ending.generated) == (Finish.STOP, 2)


def test_a_pooling_request_ends_with_its_prompt_and_is_cached():
    scheduler = make()
    pooled = request(range(64), 0)
    run(scheduler, pooled)
    assert (pooled.finish, pooled.generated) == (Finish.STOP, 0)
    again = request(range(65), 0)
    run(scheduler, again)
    assert again.cached_tokens == 64


def test_what_can_never_fit_is_refused():
    scheduler = make(num_gpu_blocks=3)
    with pytest.raises(ValueError, match="longer than the pool"):
        scheduler.add(request(range(60), 6))
    run(scheduler, request(range(60), 5))


def test_the_cost_of_a_step():
    scheduler = make(max_num_batched_tokens=1000)
    decoding = request(range(100), 9)
    scheduler.add(decoding)
    scheduler.complete(scheduler.schedule())
    scheduler.add(request([*range(64), *range(900, 1036)]))
    step = scheduler.schedule()
    assert [(chunk.start, chunk.size) for chunk in step] == [(100, 1), (64, 136)]
    speed = Speed(factor=2.0)
    expected = 6e-3 + 20e-6 + 56e-9 * 100 + 136 * 40e-6 + 1.75e-9 * 136 * (64 + 68)
    assert step_seconds(step, speed) == pytest.approx(expected / 2)


PROMPTS = st.tuples(
    st.integers(0, 2), st.integers(1, 60), st.integers(0, 30), st.sampled_from([None, "a", "b"])
)


@settings(max_examples=60, deadline=None)
@given(
    arrivals=st.lists(PROMPTS, max_size=12),
    blocks=st.integers(25, 40),
    budget=st.integers(3, 60),
    aborts=st.sets(st.integers(0, 11)),
)
def test_every_request_ends_and_every_block_comes_back(arrivals, blocks, budget, aborts):
    limits = Limits(
        block_size=4, num_gpu_blocks=blocks, max_num_batched_tokens=budget, max_num_seqs=5
    )
    scheduler = Scheduler(limits)
    requests = [
        request(range(family * 100, family * 100 + size), generate, lora=lora)
        for family, size, generate, lora in arrivals
    ]
    for one in requests:
        scheduler.add(one)
    steps = 0
    while scheduler.busy:
        step = scheduler.schedule()
        assert step, "nothing to do for unfinished requests"
        assert sum(chunk.size for chunk in step) <= budget
        check_blocks(scheduler)
        if steps in aborts and steps < len(requests):
            scheduler.abort(requests[steps])
        scheduler.complete(step)
        check_blocks(scheduler)
        steps += 1
    for one, (_, _, generate, _) in zip(requests, arrivals, strict=True):
        assert one.finish is not None
        assert one.finish is Finish.ABORT or one.generated == generate
    assert scheduler.pool.free_count == blocks - 1


def check_blocks(scheduler: Scheduler) -> None:
    """Free and used blocks are all blocks; references are the running requests' holdings."""
    pool = scheduler.pool
    held = [block for one in scheduler.running for block in one.blocks]
    assert len(set(held)) + pool.free_count == pool.num_blocks - 1
    assert all(pool.references(block) == held.count(block) for block in set(held))
    assert all(not one.blocks for one in scheduler.waiting)
    for one in scheduler.running:
        assert len(one.blocks) * scheduler.limits.block_size >= one.computed
