"""Drives vLLM's own scheduler and the simulator's in lockstep; both must do the same.

`python oracle.py MODEL_DIR TRIALS` prints one JSON object with what was compared, or ends with the
first difference. Needs vLLM; runs no model. Private parts of vLLM are used as of 0.32.
"""

import json
import os
import random
import sys
from array import array
from dataclasses import dataclass, field
from itertools import count

os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}

import msgspec
import torch
from model_server.simulator.kv_events import EventLog
from model_server.simulator.scheduler import Request, Scheduler, Token
from model_server.simulator.settings import Limits
from vllm.config import KVEventsConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request as VllmRequest
from vllm.v1.request import RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 16
VOCABULARY = 2000
STEPS = 400
HASH = get_hash_fn_by_name("sha256")
init_none_hash(HASH)
HASHER = get_request_block_hasher(BLOCK, HASH)


def generated(number: int, index: int) -> int:
    """Token `index` of the answer to request `number`."""
    return (number * 131 + index * 7) % VOCABULARY


def answer(number: int):
    return (Token(generated(number, index), "") for index in count())


def vllm_scheduler(config, limits: Limits) -> VllmScheduler:
    config.scheduler_config.max_num_seqs = limits.max_num_seqs
    config.scheduler_config.max_num_batched_tokens = limits.max_num_batched_tokens
    config.cache_config.num_gpu_blocks = limits.num_gpu_blocks
    config.cache_config.block_size = BLOCK
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float16)
    cache = KVCacheConfig(
        num_blocks=limits.num_gpu_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    return VllmScheduler(
        config,
        cache,
        StructuredOutputManager(config),
        block_size=BLOCK,
        hash_block_size=BLOCK,
        log_stats=True,
    )


class Recorder:
    """Stands where vLLM's publisher does, and keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def publish(self, batch) -> None:
        self.events += batch.events

    def take(self) -> list[object]:
        events, self.events = self.events, []
        return events


class Names:
    """Which of our block hashes stands for which of vLLM's; never two for one, nor one for two."""

    def __init__(self) -> None:
        self._ours: dict[int, int] = {}
        self._theirs: dict[int, int] = {}

    def translate(self, theirs, ours):
        """Their events as they are on the wire, with our hashes in place of theirs."""
        return [
            self._event(wire(event), wire(mine)) for event, mine in zip(theirs, ours, strict=True)
        ]

    def _event(self, theirs, ours):
        mine = ours.get("block_hashes", [])
        theirs = dict(theirs)
        for key in ("block_hashes", "parent_block_hash"):
            if theirs.get(key) is not None:
                names = theirs[key] if key == "block_hashes" else [theirs[key]]
                known = mine if key == "block_hashes" else [ours[key]]
                found = [self._name(*pair) for pair in zip(names, known, strict=True)]
                theirs[key] = found if key == "block_hashes" else found[0]
        return theirs

    def _name(self, their: int, our: int) -> int:
        same(self._theirs.setdefault(our, their), their)
        return self._ours.setdefault(their, our)


def wire(event):
    return msgspec.msgpack.decode(msgspec.msgpack.encode(event))


@dataclass
class Trial:
    """One random workload on one random engine, stepped in both."""

    rng: random.Random
    limits: Limits
    theirs: VllmScheduler
    ours: Scheduler
    requests: dict[str, Request] = field(default_factory=dict)
    names: dict[Request, str] = field(default_factory=dict)
    conversations: list[list[int]] = field(default_factory=list)
    hashes: Names = field(default_factory=Names)
    events: int = 0
    resets: int = 0

    def arrive(self) -> None:
        """Queue a request that continues, or begins like, something seen before."""
        rng = self.rng
        stem = rng.choice(self.conversations)
        # Half of the prompts repeat whole blocks only, where one token must be computed again.
        fresh = [rng.randrange(VOCABULARY) for _ in range(rng.choice([0, rng.randrange(60)]))]
        cut = rng.randrange(1, len(stem) + 1)
        prompt = stem[: rng.choice([cut, max(BLOCK, cut // BLOCK * BLOCK)])] + fresh
        wanted = rng.randrange(1, 50)
        if len(prompt) + wanted > min(1000, self.limits.context_len):
            return
        number = len(self.requests)
        salt = rng.choice([None, None, None, "salt"])
        self.theirs.add_request(
            VllmRequest(
                str(number),
                prompt_token_ids=list(prompt),
                sampling_params=SamplingParams(max_tokens=wanted, ignore_eos=True),
                pooling_params=None,
                block_hasher=HASHER,
                cache_salt=salt,
            )
        )
        request = Request(array("I", prompt), wanted, answer(number), None, salt)
        self.requests[str(number)] = request
        self.names[request] = str(number)
        self.ours.add(request)

    def abort_one(self) -> None:
        """Abort a random unfinished request while its step is running."""
        live = [name for name, request in self.requests.items() if request.finish is None]
        if live:
            name = self.rng.choice(live)
            self.theirs.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            self.ours.abort(self.requests[name])

    def step(self) -> bool:
        """Run one step in both and compare everything; False when there was nothing to do."""
        plan, step = self.theirs.schedule(), self.ours.schedule()
        same(plan.num_scheduled_tokens, {self.names[chunk.request]: chunk.size for chunk in step})
        for new in plan.scheduled_new_reqs:
            same(new.num_computed_tokens, self.requests[new.req_id].cached_tokens)
        if self.rng.random() < 0.03:
            self.abort_one()
        names = list(plan.num_scheduled_tokens)
        sampled = [self.sampled(name) for name in names]
        index = {name: position for position, name in enumerate(names)}
        output = ModelRunnerOutput(names, index, sampled_token_ids=sampled)
        self.theirs.update_from_output(plan, output)
        for done in self.ours.complete(step):
            if done.finish is not None:
                self.conversations = [*self.conversations[-7:], done.request.tokens.tolist()]
        queue = self.theirs.kv_cache_manager.block_pool.free_block_queue.get_all_free_blocks()
        same([block.block_id for block in queue], self.ours.pool.free_order())
        same(
            [r.request_id for r in self.theirs.waiting], [self.names[r] for r in self.ours.waiting]
        )
        self.compare_events()
        if not self.ours.busy and self.rng.random() < 0.3:
            self.resets += 1
            same(self.theirs.reset_prefix_cache(), self.ours.pool.reset())
        return bool(step)

    def compare_events(self) -> None:
        """What both would publish after this step."""
        theirs, ours = self.theirs.kv_event_publisher.take(), self.ours.log.take()
        same([type(event).__name__ for event in theirs], [type(event).__name__ for event in ours])
        same(self.hashes.translate(theirs, ours), [wire(event) for event in ours])
        self.events += len(ours)

    def sampled(self, name: str) -> list[int]:
        """What the model gives vLLM for a request in this step."""
        theirs = self.theirs.requests.get(name)
        if theirs is None or theirs.num_computed_tokens < theirs.num_tokens:
            return []
        return [generated(int(name), self.requests[name].generated)]


def same(theirs, ours) -> None:
    if theirs != ours:
        sys.exit(f"vLLM: {theirs}\nsimulator: {ours}")


def run(config, seed: int) -> dict[str, int]:
    """One trial; how much it compared."""
    rng = random.Random(seed)
    limits = Limits(
        block_size=BLOCK,
        num_gpu_blocks=rng.choice([20, 30, 45, 80]),
        max_num_batched_tokens=rng.choice([24, 60, 100, 400]),
        max_num_seqs=rng.choice([2, 4, 6]),
        max_model_len=2048,
    )
    ours = Scheduler(limits, EventLog(limits.block_size))
    trial = Trial(rng, limits, vllm_scheduler(config, limits), ours)
    trial.theirs.kv_event_publisher = Recorder()
    trial.conversations = [
        [rng.randrange(VOCABULARY) for _ in range(rng.randrange(10, 80))] for _ in range(4)
    ]
    steps = 0
    for number in range(STEPS):
        if rng.random() < 0.3 and number < STEPS * 3 // 4:
            trial.arrive()
        steps += trial.step()
    counts = trial.ours.counts
    return {
        "steps": steps,
        "requests": len(trial.requests),
        "preemptions": counts.preemptions,
        "hit_tokens": counts.prefix_hits,
        "events": trial.events,
        "resets": trial.resets,
    }


def main(model: str, trials: int) -> None:
    events = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    arguments = EngineArgs(model=model, max_model_len=2048, block_size=32, kv_events_config=events)
    config = arguments.create_engine_config()
    totals: dict[str, int] = {}
    for seed in range(trials):
        for name, number in run(config, seed).items():
            totals[name] = totals.get(name, 0) + number
    print(json.dumps(totals))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
