"""Drives vLLM's own scheduler and that of simulated engines in lockstep; both must do the same.

`python -m e2e.replay_oracle MODEL_DIR TRIALS` prints one JSON object with what was compared, or
ends with the first difference. Needs vLLM, and `model-server/tests` on the path; runs no model.
"""

import importlib
import json
import random
import sys
from collections import deque
from collections.abc import Iterator
from itertools import repeat
from typing import Any

from epp.replay.engines.contract import Job
from epp.replay.engines.scheduler import BatchScheduler
from epp.replay.traffic.calls import Runs
from tests.replay.engines.scripts import drawn, free_order

# By name: mypy cannot find them.
oracle = importlib.import_module("oracle")  # sets what vLLM reads when it is imported
hashes = importlib.import_module("vllm.v1.core.kv_cache_utils")
requests = importlib.import_module("vllm.v1.request")
EngineArgs = importlib.import_module("vllm.engine.arg_utils").EngineArgs
ModelRunnerOutput = importlib.import_module("vllm.v1.outputs").ModelRunnerOutput
SamplingParams = importlib.import_module("vllm.sampling_params").SamplingParams


def tokens(runs: Runs) -> list[int]:
    """Write runs out."""
    return [token for run in runs for token in repeat(run.token, run.length)]


class Trial:
    """One random script on one random engine, stepped in both."""

    def __init__(self, config: Any, seed: int) -> None:
        self.rng = random.Random(seed)
        limits, calls = drawn(seed)
        config.cache_config.enable_prefix_caching = limits.enable_prefix_caching
        self.hasher = oracle.HASHER if limits.enable_prefix_caching else None
        self.theirs = oracle.vllm_scheduler(config, limits)
        self.ours = BatchScheduler(limits, 64)
        self.jobs = [Job(number, call[1], call[2]) for number, call in enumerate(calls)]
        self.answers = [tokens(job.response) for job in self.jobs]
        self.coming = deque(self.jobs)
        self.names: dict[object, int | None] = {}  # their hash of a block, and our key
        self.compared = {"steps": 0, "at_once": 0, "preemptions": 0, "hit_tokens": 0}

    def run(self) -> dict[str, int]:
        """Step until nothing is left; return how much was compared."""
        while self.coming or self.ours.jobs():
            if self.coming and self.rng.random() < 0.3:
                for _ in range(self.rng.randint(1, min(3, len(self.coming)))):
                    self.arrive(self.coming.popleft())
            self.step()
        self.compared["preemptions"] = self.ours.preemptions
        self.compared["hit_tokens"] = sum(job.cached for job in self.jobs)
        return self.compared

    def arrive(self, job: Job) -> None:
        """Queue a request in both."""
        request = requests.Request(
            str(job.number),
            prompt_token_ids=tokens(job.prompt),
            sampling_params=SamplingParams(max_tokens=job.response_tokens, ignore_eos=True),
            pooling_params=None,
            block_hasher=self.hasher,
        )
        self.theirs.add_request(request)
        self.ours.add(job)

    def step(self) -> None:
        """Run a step in both, or several at once in ours, and compare everything."""
        work = self.ours.schedule(0.0)
        plan = self.schedule()
        if work is None:
            return
        alike = self.rng.randint(1, self.ours.steps_alike(64))
        for _ in range(alike - 1):
            self.update(plan)
            plan = self.schedule()
        if alike > 1:
            self.ours.repeat(alike - 1)
            self.compared["at_once"] += alike
        self.update(plan)
        self.ours.complete()
        self.compare()

    def schedule(self) -> Any:
        """Let theirs schedule what ours has; return their plan."""
        plan = self.theirs.schedule()
        self.compared["steps"] += bool(plan.num_scheduled_tokens)
        sizes = {str(job.number): size for job, size in self.ours.scheduled}
        oracle.same(plan.num_scheduled_tokens, sizes)
        for new in plan.scheduled_new_reqs:
            oracle.same(new.num_computed_tokens, self.jobs[int(new.req_id)].cached)
        return plan

    def update(self, plan: Any) -> None:
        """Give theirs what the model would have."""
        names = list(plan.num_scheduled_tokens)
        index = {name: position for position, name in enumerate(names)}
        sampled = [list(self.sampled(name)) for name in names]
        self.theirs.update_from_output(plan, ModelRunnerOutput(names, index, sampled))

    def sampled(self, name: str) -> Iterator[int]:
        request = self.theirs.requests.get(name)
        if request is not None and request.num_computed_tokens >= request.num_tokens:
            yield self.answers[int(name)][request.num_output_tokens]

    def compare(self) -> None:
        """Compare what waits, what runs, and the free blocks in the order of their eviction."""
        for theirs, ours in (
            (self.theirs.waiting, self.ours.waiting),
            (self.theirs.running, self.ours.running),
        ):
            oracle.same([int(each.request_id) for each in theirs], [job.number for job in ours])
        queue = self.theirs.kv_cache_manager.block_pool.free_block_queue.get_all_free_blocks()
        keys = free_order(self.ours.pool)
        theirs_named = [
            None if block.block_hash is None else self.names.setdefault(block.block_hash, key)
            for block, key in zip(queue, keys, strict=True)
        ]
        oracle.same(theirs_named, keys)
        oracle.same(len(self.names), len(set(self.names.values())))


def main(model: str, trials: int) -> None:
    """Run trials, and print how much they compared."""
    hashes.init_none_hash(oracle.HASH)
    config = EngineArgs(model=model, max_model_len=2048, block_size=32).create_engine_config()
    totals: dict[str, int] = {}
    for seed in range(trials):
        for name, number in Trial(config, seed).run().items():
            totals[name] = totals.get(name, 0) + number
    print(json.dumps(totals))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
