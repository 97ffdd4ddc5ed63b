"""Continuous batching by the rules of vLLM v1 (`vllm/v1/core/sched/scheduler.py`, 0.32).

One step = `schedule()`, time passes somewhere else, `complete(step)`. Reads no clock, does no
I/O, knows no text beyond what a request's source yields.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from model_server.simulator.hashes import BlockHash, BlockHasher, root_hash
from model_server.simulator.kv_events import EventLog
from model_server.simulator.pool import BlockPool
from model_server.simulator.settings import Limits


class Finish(Enum):
    """Why a request ended; the values are vLLM's `finished_reason`."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Token(NamedTuple):
    """One generated token; `last` marks the end-of-sequence token, which has no text."""

    id: int
    text: str
    last: bool = False


@dataclass(slots=True, eq=False)
class Request:
    """One sequence: `tokens` is the prompt, to which generated tokens are appended.

    `max_tokens` 0 means a pooling request, finished when its prompt is computed.
    `cached_tokens` is the prefix hit at first admission, None before it.
    """

    tokens: "array[int]"
    max_tokens: int
    source: Iterator[Token]
    lora: str | None = None
    salt: str | None = None
    lora_path: str | None = None
    prompt_len: int = field(init=False)
    root: BlockHash = field(init=False)
    hashes: list[BlockHash] = field(default_factory=list, init=False)
    blocks: list[int] = field(default_factory=list, init=False)
    registered: int = field(default=0, init=False)
    computed: int = field(default=0, init=False)
    cached_tokens: int | None = field(default=None, init=False)
    finish: Finish | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ValueError("a prompt has at least one token")
        self.prompt_len = len(self.tokens)
        self.root = root_hash(self.lora, self.salt, self.lora_path)

    @property
    def generated(self) -> int:
        """Number of generated tokens so far."""
        return len(self.tokens) - self.prompt_len


class Chunk(NamedTuple):
    """`size` tokens of `request` to compute, the first at position `start`."""

    request: Request
    start: int
    size: int


class Sampled(NamedTuple):
    """What a step gave one request: a token's text, or the end, or both."""

    request: Request
    text: str
    first: bool
    finish: Finish | None


@dataclass(slots=True)
class Counts:
    """Running totals since the start; tokens, counted at first admission only."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0


class Scheduler:
    """Decides what each engine step computes, and owns the block pool.

    `log` records changes of the cache.
    """

    def __init__(self, limits: Limits, log: EventLog | None = None) -> None:
        self.limits = limits
        self.log = log
        self.pool = BlockPool(limits.num_gpu_blocks, log)
        self.hasher = BlockHasher(limits.block_size)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.counts = Counts()

    @property
    def busy(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        """Queue a request; it holds no block before its admission.

        Raises `ValueError` if it could never fit the pool.
        """
        if len(request.tokens) + max(0, request.max_tokens - 1) > self.limits.context_len:
            raise ValueError("the request is longer than the pool or the model allows")
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """End a request at once; its blocks are freed and stay cached. Harmless if it has ended."""
        if request.finish is not None:
            return
        request.finish = Finish.ABORT
        if request in self.running:
            self.running.remove(request)
            self._release(request)
        else:
            self.waiting.remove(request)

    def schedule(self) -> list[Chunk]:
        """Choose the next step's work: running requests first, then the waiting queue in order."""
        step: list[Chunk] = []
        budget = self.limits.max_num_batched_tokens
        preemptions = self.counts.preemptions
        budget = self._continue_running(step, budget)
        if preemptions == self.counts.preemptions:
            self._admit(step, budget)
        return step

    def complete(self, step: list[Chunk]) -> list[Sampled]:
        """Apply a computed step; requests whose whole sequence is computed sample a token."""
        sampled: list[Sampled] = []
        ended = False
        for request, start, size in step:
            if request.finish is not None:
                continue
            request.computed = start + size
            if request.computed == len(request.tokens):
                output = self._sample(request)
                sampled.append(output)
                ended = ended or output.finish is not None
        if ended:
            self.running = [request for request in self.running if request.finish is None]
        return sampled

    def _continue_running(self, step: list[Chunk], budget: int) -> int:
        index = 0
        while index < len(self.running) and budget:
            request = self.running[index]
            count = min(len(request.tokens) - request.computed, budget)
            if not self._make_room(request, request.computed + count):
                break
            step.append(self._chunk(request, count))
            budget -= count
            index += 1
        return budget

    def _make_room(self, request: Request, upto: int) -> bool:
        """Preempt from the end of the running list until `request` can hold `upto` tokens."""
        need = -(-upto // self.limits.block_size) - len(request.blocks)
        while need > self.pool.free_count:
            victim = self.running.pop()
            self._release(victim)
            victim.computed = 0
            self.waiting.appendleft(victim)
            self.counts.preemptions += 1
            if victim is request:
                return False
        return True

    def _admit(self, step: list[Chunk], budget: int) -> None:
        deferred: list[Request] = []
        loras = {chunk.request.lora for chunk in step} - {None}
        while self.waiting and budget and len(self.running) < self.limits.max_num_seqs:
            request = self.waiting[0]
            if request.lora and request.lora not in loras and len(loras) >= self.limits.max_loras:
                deferred.append(self.waiting.popleft())
                continue
            if not self._start(request):
                break
            self.waiting.popleft()
            self.running.append(request)
            if request.lora:
                loras.add(request.lora)
            count = min(len(request.tokens) - request.computed, budget)
            step.append(self._chunk(request, count))
            budget -= count
        self.waiting.extendleft(reversed(deferred))

    def _start(self, request: Request) -> bool:
        """Look up the cached prefix and hold it, if the whole sequence fits the free blocks."""
        size = self.limits.block_size
        total = len(request.tokens)
        self.hasher.extend(request.hashes, request.root, request.tokens)
        # At least one token is always computed: its logits are needed.
        hits = self.pool.longest_run(request.hashes, (total - 1) // size)
        need = -(-total // size) - len(hits)
        if need > self.pool.free_count - self.pool.free_among(hits):
            return False
        self.pool.touch(hits)
        request.blocks = hits
        request.registered = len(hits)
        request.computed = len(hits) * size
        if request.cached_tokens is None:
            request.cached_tokens = request.computed
            self.counts.prefix_queries += total
            self.counts.prefix_hits += request.computed
        return True

    def _chunk(self, request: Request, count: int) -> Chunk:
        """Allocate the blocks of the next `count` tokens and register those that become full."""
        size = self.limits.block_size
        upto = request.computed + count
        need = -(-upto // size) - len(request.blocks)
        if need > 0:
            request.blocks += self.pool.allocate(need)
        full = upto // size
        if full > request.registered:
            self.hasher.extend(request.hashes, request.root, request.tokens)
            for index in range(request.registered, full):
                self.pool.register(request.blocks[index], request.hashes[index])
            if self.log is not None:
                self.log.stored(request, request.registered, full)
            request.registered = full
        return Chunk(request, request.computed, count)

    def _sample(self, request: Request) -> Sampled:
        if not request.max_tokens:
            return self._end(request, Sampled(request, "", first=True, finish=Finish.STOP))
        first = not request.generated
        token = next(request.source)
        request.tokens.append(token.id)
        if token.last:
            return self._end(request, Sampled(request, token.text, first, Finish.STOP))
        if request.generated == request.max_tokens:
            return self._end(request, Sampled(request, token.text, first, Finish.LENGTH))
        return Sampled(request, token.text, first, None)

    def _end(self, request: Request, output: Sampled) -> Sampled:
        request.finish = output.finish
        self._release(request)
        return output

    def _release(self, request: Request) -> None:
        self.pool.free(request.blocks)
        request.blocks = []
        request.registered = 0


def loras(requests: Iterable[Request]) -> set[str]:
    """Names of the adapters that `requests` use."""
    return {request.lora for request in requests if request.lora}
