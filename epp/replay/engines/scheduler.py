"""Continuous batching by the rules of vLLM v1 (`vllm/v1/core/sched/scheduler.py`, 0.32).

One step is `schedule()`, then time that passes elsewhere, then `complete()`. A row of steps that
only generate one more token for each running request is completed at once.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from math import isnan

from epp.model.caches.block_pool.pool import BlockPool
from epp.model.prompts.hashing import BlockHash
from epp.replay.engines.contract import NO_LEASE, EngineLoad, Job, Limits, Progress
from epp.replay.engines.cost import StepWork
from epp.replay.traffic.calls import block_keys, joined

Notice = tuple[Job, Progress]
_NO_ADAPTERS = frozenset[str](), frozenset[str]()


class BatchScheduler:
    """The waiting and running requests, and the blocks. `progress` is in generated tokens."""

    def __init__(self, limits: Limits, progress: int) -> None:
        self.limits = limits
        self.pool = BlockPool(limits.capacity, limits.block_size)
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.preemptions = 0
        self._size = limits.block_size
        self._sizes = array("Q", [self._size]) * limits.num_gpu_blocks
        self._progress = progress
        self._step: list[tuple[Job, int]] = []
        self._alike = False  # whether steps like this one can follow it

    def add(self, job: Job) -> None:
        """Queue a request; it holds no block before its admission."""
        self.waiting.append(job)

    def keys(self, job: Job) -> Sequence[BlockHash]:
        """Return the keys of a request's blocks, held here or not; none without prefix caching.

        A long prompt has many keys, so they are made on first use: a request that waits behind
        others needs none.
        """
        if self.limits.enable_prefix_caching and not job.keys:
            runs = joined(job.prompt, job.response)
            job.keys = block_keys(runs, self._size, job.adapter)
        return job.keys

    @property
    def scheduled(self) -> Sequence[tuple[Job, int]]:
        """The requests of the step that is scheduled, and how many tokens of each it computes."""
        return self._step

    def load(self, steps: int = 0) -> EngineLoad:
        """Return the load after this many more steps like the one that is scheduled."""
        free = self._free_blocks() - (self._blocks_for(steps) if steps else 0)
        return EngineLoad(
            len(self.waiting),
            len(self.running),
            1.0 - free / (self.limits.num_gpu_blocks - 1),
            *self._adapters(),
        )

    def _adapters(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the running and the waiting adapters; none if their number is not limited."""
        if not self.limits.max_loras:
            return _NO_ADAPTERS
        return (
            frozenset(job.adapter for job in self.running if job.adapter),
            frozenset(job.adapter for job in self.waiting if job.adapter),
        )

    def schedule(self, now: float) -> StepWork | None:
        """Choose the next step's work: running requests first, then waiting ones, in order."""
        preemptions = self.preemptions
        self._step = []
        budget = self._continue(self.limits.max_num_batched_tokens)
        if preemptions == self.preemptions:
            self._admit(budget, now)
        if not self._step:
            return None
        work = self._work()
        self._alike = work.decoding == len(self.running) and preemptions == self.preemptions
        return work

    def steps_alike(self, most: int) -> int:
        """Return how many steps from this one on are alike; the last of them may end requests.

        Each decodes the same requests, no waiting request can be admitted, and there is room.
        """
        running = self.running
        if not self._alike or self._may_admit() or not all(job.generated for job in running):
            return 1
        left = min([job.response_tokens - job.generated for job in running])
        steps = max(1, min(most, left))
        while steps > 1 and not self._room_for(steps - 1):
            steps //= 2
        return steps

    def repeat(self, steps: int) -> None:
        """Complete `steps` equal steps, none of which ends a request, and schedule another."""
        size, pool, caching = self._size, self.pool, self.limits.enable_prefix_caching
        due: list[tuple[int, int, int]] = []
        for index, (job, _) in enumerate(self._step):
            after, tokens = job.computed + 1, job.lease.tokens
            if caching and after + steps >= tokens + size:
                ends = range(tokens + size, after + steps + 1, size)
                due += [(upto - after, index, upto) for upto in ends]
            pool.grow(job.lease, after + steps)
            job.computed += steps
            job.generated += steps
        # Blocks are cached in the order in which the steps would have done it. When the blocks for
        # the next tokens were allocated changes nothing: it is as many, and none is looked up.
        for _, index, upto in sorted(due):
            self._cache(self._step[index][0], upto // size - 1, upto // size)

    def complete(self) -> list[Notice]:
        """Apply the step; requests whose whole sequence is computed sample a token."""
        notices: list[Notice] = []
        ended = False
        for job, size in self._step:
            job.computed += size
            generated = job.generated
            if job.computed < job.prompt_tokens + generated:
                continue
            job.generated = generated = generated + 1
            if generated == 1:
                notices.append((job, Progress.FIRST))
                job.reported = 1
            if generated == job.response_tokens:
                notices.append((job, Progress.LAST))
                self._free(job)
                ended = True
            elif generated - job.reported >= self._progress:
                notices.append((job, Progress.SOME))
                job.reported = generated
        if ended:
            self.running = [job for job in self.running if job.generated < job.response_tokens]
        self._step = []
        return notices

    def jobs(self) -> list[Job]:
        """Return all requests that have not ended."""
        return [*self.running, *self.waiting]

    def _continue(self, budget: int) -> int:
        size, step = self._size, self._step
        index = 0
        while index < len(self.running) and budget:
            job = self.running[index]
            count = job.prompt_tokens + job.generated - job.computed
            # One token neither begins a block nor ends it, most of the time.
            if count > 1 or (job.computed + 1) % size < 2:  # noqa: PLR2004
                count = min(count, budget)
                if not self._make_room(job, job.computed + count):
                    break
                self._take(job, job.computed + count)
            step.append((job, count))
            budget -= count
            index += 1
        return budget

    def _make_room(self, job: Job, upto: int) -> bool:
        """Preempt running requests, the last admitted first, until `job` can hold `upto` tokens."""
        need = -(-upto // self._size) - self._held(job)
        while need > self._free_blocks():
            # `_preempt_request`: under FCFS the last of `running`, to the head of `waiting`.
            victim = self.running.pop()
            self._free(victim)
            victim.computed = 0
            victim.preempted += 1
            self.preemptions += 1
            self.waiting.appendleft(victim)
            if victim is job:
                return False
        return True

    def _admit(self, budget: int, now: float) -> None:
        most = self.limits.max_num_seqs
        deferred: list[Job] = []
        while self.waiting and budget and len(self.running) < most:
            job = self.waiting[0]
            if not self._has_slot(job):
                # vLLM `schedule`: one whose adapter has no slot is skipped, and keeps its place.
                deferred.append(self.waiting.popleft())
                continue
            if not self._start(job, budget):
                break
            self.waiting.popleft()
            self.running.append(job)
            if isnan(job.scheduled_at):
                job.scheduled_at = now
            count = min(job.prompt_tokens + job.generated - job.computed, budget)
            self._step.append((job, count))
            budget -= count
        self.waiting.extendleft(reversed(deferred))

    def _has_slot(self, job: Job) -> bool:
        """Return whether a request's adapter runs, or may begin to."""
        if not self.limits.max_loras or not job.adapter:
            return True
        running = {each.adapter for each in self.running if each.adapter}
        return job.adapter in running or len(running) < self.limits.max_loras

    def _start(self, job: Job, budget: int) -> bool:
        """Admit a request, with blocks for its first step, if its whole sequence fits."""
        size, keys, total = self._size, self.keys(job), job.prompt_tokens + job.generated
        # `get_computed_blocks`: the last token is always computed, for its logits.
        lookup = (total - 1) // size
        computed = size * self.pool.match(keys[:lookup])
        arrived = job.transferred and job.cached < 0
        upto = total if arrived else min(total, computed + budget)
        full, space = upto // size, -(-upto // size)
        # `full_sequence_must_fit`. `cache_full_blocks`: before they are computed.
        keys = keys[:full]
        lease = self.pool.allocate(
            keys,
            self._sizes[:full],
            size * (space - len(keys)),
            lookup,
            size * (-(-total // size) - space),
        )
        if lease is None:
            return False
        job.lease, job.computed = lease, computed
        if job.cached < 0:
            job.cached = computed
        if arrived:
            # `_update_waiting_for_remote_kv`: all is there, the last token is computed again.
            job.computed = total - 1
        return True

    def _take(self, job: Job, upto: int) -> None:
        """Allocate the blocks up to a token, and cache those that are full with it."""
        cached, full = job.lease.tokens // self._size, upto // self._size
        self.pool.grow(job.lease, upto)
        if full > cached and self.limits.enable_prefix_caching:
            self._cache(job, cached, full)

    def _cache(self, job: Job, start: int, end: int) -> None:
        """Cache a request's blocks from `start` to `end`, which are full."""
        self.pool.assign_hashes(job.lease, job.keys[start:end], self._sizes[start:end])

    def _free(self, job: Job) -> None:
        self.pool.release(job.lease)
        job.lease = NO_LEASE
        # Nobody follows what is cached, and the pool lists it until it is taken.
        self.pool.take_stored()
        self.pool.take_evicted()

    def _held(self, job: Job) -> int:
        """Return how many blocks a request holds."""
        return (job.lease.tokens + job.lease.reserved_tokens) // self._size

    def _free_blocks(self) -> int:
        return self.pool.free // self._size

    def _work(self) -> StepWork:
        prefill = decoding = context = 0
        attended = 0.0
        for job, count in self._step:
            start = job.computed
            if count == 1 and start >= job.prompt_tokens - 1:
                decoding += 1
                context += start
            else:
                prefill += count
                attended += count * (start + count / 2)
        return StepWork(prefill, attended, decoding, context)

    def _may_admit(self) -> bool:
        """Return whether the first waiting request might be admitted before any other ends."""
        full = len(self.running) >= self.limits.max_num_seqs
        if not self.waiting or full or not self.limits.enable_prefix_caching:
            return False
        head = next(filter(self._has_slot, self.waiting), None)
        if head is None:
            return False
        # The head did not fit, and free blocks only get fewer. But it needs fewer itself if a
        # running request generates what it begins with.
        begins, lookup = self.keys(head), (head.prompt_tokens + head.generated - 1) // self._size
        for job in self.running:
            at = job.lease.tokens // self._size
            if at < min(lookup, len(job.keys)) and job.keys[at] == begins[at]:
                return True
        return False

    def _room_for(self, steps: int) -> bool:
        """Return whether there are free blocks for this many more steps."""
        free = self._free_blocks()
        most = len(self.running) * (steps // self._size + 1)
        return most <= free or self._blocks_for(steps) <= free

    def _blocks_for(self, steps: int) -> int:
        """Return how many more blocks this many further steps like this one need."""
        size, after = self._size, 1 + steps
        return sum([-(-(job.computed + after) // size) - self._held(job) for job, _ in self._step])
