"""What an engine says of its KV cache, as frozen values, and the events that carry it.

This file knows no wire format: `epp.protocol.kvevents.batches` reads those.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NewType

import msgspec

from epp.model.endpoint import EndpointId

EngineHash = NewType("EngineHash", int)
"""The engine's own name of a block: 64 bits, unsigned; the last 8 bytes of a longer digest."""


class Medium(Enum):
    """Where an engine keeps a block."""

    GPU = "gpu"  # what the scheduler looks up first; also where the engine named nothing
    CPU = "cpu"  # the host's memory, on offloading
    OTHER = "other"  # disks, stores that pods share


class BlocksStored(msgspec.Struct, frozen=True, gc=False):
    """Consecutive blocks of `size` tokens each, kept from now on.

    They follow the block `parent`, None at the start of a sequence. `tokens` holds four
    little-endian bytes a token id for all of them; it is empty, and `size` 0, where the engine
    names blocks only. `model` is the adapter's name, or the base model's, "" where unknown.
    `salt` is the sequence's cache salt, known at its start only. `content` holds, per block, what
    besides tokens went into it (images, embeddings), b"" where nothing did; it is empty where
    nothing did in any. `group` is the KV cache group of a hybrid model; `full` says that hits
    need this group's blocks from the start of the sequence on.
    """

    hashes: Sequence[EngineHash]
    parent: EngineHash | None
    tokens: bytes
    size: int
    model: str = ""
    salt: str = ""
    content: Sequence[bytes] = ()
    medium: Medium = Medium.GPU
    group: int | None = None
    full: bool = True


class BlocksRemoved(msgspec.Struct, frozen=True, gc=False):
    """One copy of each of these blocks is gone; other copies may serve hits still."""

    hashes: Sequence[EngineHash]
    medium: Medium = Medium.GPU
    group: int | None = None


class Cleared(Enum):
    """Why nothing that was said before holds any more."""

    ENGINE = "engine"  # it emptied its cache and said so
    RESTART = "restart"  # it began anew, with an empty cache
    GAP = "gap"  # changes were missed: what it holds is unknown, most of it may be there still


class BlocksCleared(msgspec.Struct, frozen=True, gc=False):
    """Forget everything that was stored before."""

    reason: Cleared = Cleared.ENGINE


Change = BlocksStored | BlocksRemoved | BlocksCleared


class CacheChanged(msgspec.Struct, frozen=True):
    """An endpoint's engine changed its cache, in this order."""

    endpoint_id: EndpointId
    changes: Sequence[Change]


class CacheFeedUp(msgspec.Struct, frozen=True):
    """Changes of an endpoint's cache are followed from here on.

    `complete`: from an empty cache on, so that what was told is all there is. It may be told
    again, whenever that changes.
    """

    endpoint_id: EndpointId
    complete: bool = False


class CacheFeedLost(msgspec.Struct, frozen=True):
    """Changes of an endpoint's cache can no longer be followed, or never could; `reason` is prose.

    What was told before is out of date from now on.
    """

    endpoint_id: EndpointId
    reason: str
