"""The contract between a run and its engines: jobs, loads and notices."""

from collections.abc import Callable, Sequence
from enum import Enum
from math import nan
from typing import NamedTuple

import msgspec

from epp.model.caches.contract import Lease
from epp.model.prompts.hashing import BlockHash
from epp.replay.traffic.calls import Runs, tokens_in


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine may hold and compute; names and defaults are vLLM's.

    `num_gpu_blocks` counts the null block too. `max_model_len` is cut to what the pool can hold.
    `max_loras` adapters may run at once; 0: any number.
    """

    block_size: int = 16
    num_gpu_blocks: int = 100_001
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    max_model_len: int = 1 << 20
    enable_prefix_caching: bool = True
    max_loras: int = 0

    @property
    def capacity(self) -> int:
        """The tokens that the pool can hold."""
        return (self.num_gpu_blocks - 1) * self.block_size

    @property
    def context(self) -> int:
        """The longest prompt and response together, in tokens."""
        return min(self.max_model_len, self.capacity)


class EngineLoad(NamedTuple):
    """The metrics page: requests that wait and that run, the share of blocks in use.

    The adapters of both are there if the engine limits them (`max_loras`).
    """

    waiting: int = 0
    running: int = 0
    usage: float = 0.0
    running_adapters: frozenset[str] = frozenset()
    waiting_adapters: frozenset[str] = frozenset()


NO_LEASE = Lease(0, 0, 0)
"""That of a request that is not admitted: it holds nothing."""


class Job(msgspec.Struct, eq=False):
    """One request at one engine, which ends it after the response."""

    number: int
    """The run's own number of it."""
    prompt: Runs
    """The tokens of the prompt, as runs."""
    response: Runs
    """The tokens that it will generate."""
    adapter: str = ""
    """The name of a LoRA adapter."""
    transferred: bool = False
    """Whether the prompt's blocks come from another engine, so that none of it is computed."""
    cached: int = -1
    """Prompt tokens that were cached when it was first scheduled; -1 before."""
    scheduled_at: float = nan
    """When it was first scheduled; NaN before."""
    computed: int = 0
    """Tokens that are computed so far."""
    generated: int = 0
    """Tokens of the response so far."""
    preempted: int = 0
    """How often it was preempted."""
    reported: int = 0
    """Generated tokens at the last notice to the listener."""
    keys: Sequence[BlockHash] = ()
    """The hashes of the full blocks that there will be."""
    lease: Lease = NO_LEASE
    """What it holds of the cache."""
    prompt_tokens: int = 0
    """The length of the prompt."""
    response_tokens: int = 0
    """The length of the response."""

    def __post_init__(self) -> None:
        self.prompt_tokens = tokens_in(self.prompt)
        self.response_tokens = tokens_in(self.response)


class Progress(Enum):
    """What an engine reports of a job."""

    FIRST = "its first token is there"
    SOME = "a number of further tokens are there"
    LAST = "its last token is there; comes after FIRST, at the same time if there is one token"
    LOST = "the engine died with it"


Listener = Callable[[Job, Progress], None]
"""Called with each job and its progress, at the time at which that is reached."""
