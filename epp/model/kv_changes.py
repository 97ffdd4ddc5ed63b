"""Changes of an engine's KV cache, as vLLM's KV events or other replicas report them.

They mirror vLLM 0.32 `vllm/distributed/kv_events.py` without the wire format, which
`epp.protocol.kvevents.batches` reads.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NewType

import msgspec

from epp.model.endpoint import EndpointId
from epp.model.prompts.hashing import BlockHash

EngineHash = NewType("EngineHash", int)
"""The engine's own hash of a block: 64 bits, unsigned; the last 8 bytes of a longer digest."""


class Medium(Enum):
    """The kind of memory that an engine keeps a block in (vLLM `medium`)."""

    GPU = "gpu"  # also if the event names none
    CPU = "cpu"  # host memory, with offloading
    OTHER = "other"  # disks, and stores that pods share


class BlocksStored(msgspec.Struct, frozen=True, gc=False):
    """Consecutive blocks that the engine holds (vLLM `BlockStored`)."""

    hashes: Sequence[EngineHash]
    """The engine's hashes of the blocks."""
    parent: EngineHash | None
    """The block before them; None at the start of a sequence."""
    tokens: bytes
    """The token ids of all of them, four little-endian bytes each; empty if unknown."""
    size: int
    """Tokens of each block; 0 if the event has hashes only."""
    model: str = ""
    """The LoRA adapter's name, or the base model's; empty if unknown.

    For an adapter of unknown name: a name that no request has."""
    salt: str = ""
    """The sequence's cache salt, known at its start only."""
    content: Sequence[bytes] = ()
    """What else was hashed into each block (images, embeddings), b"" for nothing.

    Empty if the blocks differ from all others by their tokens alone."""
    medium: Medium = Medium.GPU
    """The tier that holds them."""
    group: int | None = None
    """The KV cache group of a hybrid model."""
    full: bool = True
    """Whether a hit needs this group's blocks from the start of the sequence on."""


class BlocksRemoved(msgspec.Struct, frozen=True, gc=False):
    """One copy of each of these blocks is evicted (vLLM `BlockRemoved`).

    Other copies may still serve hits.
    """

    hashes: Sequence[EngineHash]
    medium: Medium = Medium.GPU
    group: int | None = None


class Cleared(Enum):
    """The reason why earlier changes no longer count."""

    ENGINE = "engine"  # the engine reported an emptied cache (vLLM `AllBlocksCleared`)
    RESTART = "restart"  # the engine restarted, with an empty cache
    GAP = "gap"  # changes were missed: most of what was stored may be there still


class BlocksCleared(msgspec.Struct, frozen=True, gc=False):
    """Nothing that was stored before counts any more."""

    reason: Cleared = Cleared.ENGINE


Change = BlocksStored | BlocksRemoved | BlocksCleared


class CacheChanged(msgspec.Struct, frozen=True):
    """Changes of the cache of an endpoint's engine, in their order."""

    endpoint_id: EndpointId
    changes: Sequence[Change]


class CacheFeedUp(msgspec.Struct, frozen=True):
    """From now on, changes of an endpoint's cache are followed.

    `complete` if the cache was empty at the start, so that all its blocks are known. The event
    comes again when `complete` changes.
    """

    endpoint_id: EndpointId
    complete: bool = False


class CacheFeedLost(msgspec.Struct, frozen=True):
    """Changes of an endpoint's cache can no longer be followed, or never could.

    Earlier changes are out of date from then on. `reason` is prose, for the log.
    """

    endpoint_id: EndpointId
    reason: str


class CacheCopied(msgspec.Struct, frozen=True):
    """Blocks that another replica believes to be in an endpoint's cache, or no longer in it.

    `hashes` with their `sizes` in tokens are in it, the last to be evicted first; `gone` are not.
    `closed`: each block has all its predecessors (`CacheModel.closed`).
    """

    endpoint_id: EndpointId
    hashes: Sequence[BlockHash] = ()
    sizes: Sequence[int] = ()
    gone: Sequence[BlockHash] = ()
    closed: bool = False


class CacheCleared(msgspec.Struct, frozen=True):
    """An endpoint's engine has emptied its cache, as reported by a program that knows.

    What requests hold stays. Nothing changes while the engine's own KV events are followed.
    """

    endpoint_id: EndpointId


CacheNews = CacheChanged | CacheCleared | CacheCopied | CacheFeedUp | CacheFeedLost
"""Events of an endpoint's cache."""
