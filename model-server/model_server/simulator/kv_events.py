"""What changes in the KV cache, as the events that vLLM 0.32 publishes.

Knows no sockets. Names, order and defaults of fields are those of `vllm/distributed/kv_events.py`;
values at their default are left out on the wire, as there.
"""

from array import array
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from model_server.simulator.hashes import BlockHash

MEDIUM = "GPU"
GROUP = 0
KIND = "full_attention"
_INT_HASH = (1 << 64) - 1


class BlockStored(msgspec.Struct, omit_defaults=True, tag=True):
    """Consecutive blocks that became findable; `extra_keys` has an entry a block."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(msgspec.Struct, omit_defaults=True, tag=True):
    """One copy of a block was evicted; vLLM sends an event for each."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, omit_defaults=True, tag=True):
    """The prefix cache was reset."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    """What one step changed; `ts` in Unix seconds."""

    ts: float
    events: Sequence[Event]
    data_parallel_rank: int | None = None


class Sequenced(Protocol):
    """What an event tells of the request that filled its blocks."""

    @property
    def tokens(self) -> "array[int]":
        """Prompt and generated tokens."""

    @property
    def hashes(self) -> list[BlockHash]:
        """The hashes of all full blocks."""

    @property
    def lora(self) -> str | None:
        """The adapter's name."""

    @property
    def salt(self) -> str | None:
        """The cache salt."""


class EventLog:
    """Events since the last `take`, in the order in which they happened.

    `loras` are the adapters, whose ids are their places from 1 on.
    """

    def __init__(self, block_size: int, loras: Sequence[str] = ()) -> None:
        self._block_size = block_size
        self._lora_ids = {name: number for number, name in enumerate(loras, 1)}
        self._events: list[Event] = []

    def _lora_id(self, name: str | None) -> int | None:
        """Return an adapter's number; one loaded while the server runs gets the next."""
        if name is None:
            return None
        return self._lora_ids.setdefault(name, len(self._lora_ids) + 1)

    def stored(self, request: Sequenced, first: int, end: int) -> None:
        """Blocks `first` up to, not including, `end` of a request are findable."""
        size = self._block_size
        self._events.append(
            BlockStored(
                block_hashes=[int_hash(each) for each in request.hashes[first:end]],
                parent_block_hash=int_hash(request.hashes[first - 1]) if first else None,
                token_ids=request.tokens[first * size : end * size].tolist(),
                block_size=size,
                lora_id=self._lora_id(request.lora),
                medium=MEDIUM,
                lora_name=request.lora,
                extra_keys=[_extra_keys(request, index) for index in range(first, end)],
                group_idx=GROUP,
                kv_cache_spec_kind=KIND,
            )
        )

    def removed(self, block_hash: BlockHash) -> None:
        """One copy of a block is gone."""
        self._events.append(BlockRemoved([int_hash(block_hash)], MEDIUM, GROUP))

    def cleared(self) -> None:
        """Everything is gone."""
        self._events.append(AllBlocksCleared())

    def take(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events


def int_hash(block_hash: BlockHash) -> int:
    """Name a block as events do: by the low 64 bits of its digest (vLLM's default)."""
    return int.from_bytes(block_hash, "big") & _INT_HASH


def _extra_keys(request: Sequenced, index: int) -> tuple[str, ...] | None:
    """The adapter's name in every block, the salt in the first one."""
    salt = request.salt if index == 0 else None
    return tuple(key for key in (request.lora, salt) if key) or None
