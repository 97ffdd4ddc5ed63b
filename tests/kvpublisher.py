"""A publisher of KV events as vLLM has one, without sockets: its batches, its cache, its replay."""

from collections import Counter
from itertools import chain, count, pairwise
from typing import NamedTuple

import msgspec

from epp.model.kv_changes import BlocksRemoved, BlocksStored, Change
from epp.protocol.kvevents.batches import UnreadableBatch, open_batch

TOPIC = b"kv@pod-0@base"
END = (2**64 - 1).to_bytes(8, "big")
_clock = count(1)


def stored(hashes, parent=None, tokens=None, size=16, **more):
    """A `BlockStored` event as vLLM 0.32 sends it."""
    ids = list(range(len(hashes) * size)) if tokens is None else list(tokens)
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": ids,
        "block_size": size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(hashes),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    } | more


def removed(*hashes, **more):
    return {
        "type": "BlockRemoved",
        "block_hashes": list(hashes),
        "medium": "GPU",
        "group_idx": 0,
    } | more


CLEARED = {"type": "AllBlocksCleared"}


def payload(*events, rank=0):
    """A batch; no two are equal, as each has its time."""
    return msgspec.msgpack.encode([float(next(_clock)), events, rank])


class WholeBatch(NamedTuple):
    """What a batch says, of all its parts; `parts` are the changes of each."""

    changes: list[Change]
    parts: list[list[Change]]
    rank: int | None
    unknown: int
    malformed: int


def read_batch(body, model=""):
    """Read all parts of a batch; an `UnreadableBatch` if one of them cannot be."""
    batch = open_batch(body, model)
    if isinstance(batch, UnreadableBatch):
        return batch
    parts = []
    while not batch.over:
        parts.append(list(batch.next_part()))
    if batch.problem:
        return UnreadableBatch(batch.problem)
    changes = [*chain.from_iterable(parts)]
    return WholeBatch(changes, parts, batch.rank, batch.unknown, batch.malformed)


def frames(number, body, topic=TOPIC):
    return [topic, number.to_bytes(8, "big"), body]


class Publisher:
    """`cache` counts the copies of every block that the engine holds."""

    def __init__(self):
        self.cache: Counter[int] = Counter()
        self.batches = []

    def publish(self, *events):
        """The frames of the next batch."""
        for event in events:
            if event["type"] == "BlockStored":
                self.cache.update(event["block_hashes"])
            elif event["type"] == "BlockRemoved":
                self.cache -= Counter(event["block_hashes"])
            else:
                self.cache.clear()
        self.batches.append(payload(*events))
        return frames(len(self.batches) - 1, self.batches[-1])

    def replay(self, start, kept=10_000):
        """What it sends again, of the last `kept` batches, as a DEALER gets it."""
        numbered = list(enumerate(self.batches))[-kept:] if kept else []
        again = [[b"", *frames(number, body)] for number, body in numbered if number >= start]
        return [*again, [b"", b"", END, b""]]

    def restart(self):
        self.cache.clear()
        self.batches.clear()


def believe(cache, changes):
    """Apply changes to a count of copies."""
    for change in changes:
        if isinstance(change, BlocksStored):
            cache.update(change.hashes)
        elif isinstance(change, BlocksRemoved):
            cache.subtract({name: 1 for name in change.hashes if cache[name]})
        else:
            cache.clear()
    return cache


def chained(hashes, **more):
    """One event for each block, each the successor of the one before it."""
    first, *_ = hashes
    return [stored([first], **more), *(stored([b], parent=a, **more) for a, b in pairwise(hashes))]
