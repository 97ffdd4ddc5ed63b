"""Chained block hashes over token ids. Knows nothing of blocks' whereabouts or of text."""

from array import array
from collections import OrderedDict
from hashlib import blake2b
from typing import NewType

BlockHash = NewType("BlockHash", bytes)

_DIGEST = 16
_SPAN_BLOCKS = 64


def root_hash(lora: str | None, salt: str | None, path: str | None = None) -> BlockHash:
    """Derive the parent of a first block: equal only for equal LoRA name, its path and cache salt.

    vLLM puts the LoRA into every block's extra keys and the salt into the first block's; since
    hashes are chained, both separate exactly the same sequences as a keyed root does.
    """
    return BlockHash(blake2b(repr((lora, path, salt)).encode(), digest_size=_DIGEST).digest())


class BlockHasher:
    """Extends hash chains; remembers long runs, because every turn repeats its conversation.

    Only full blocks have a hash. `memo_spans` bounds the memory: one span is 64 blocks.
    """

    def __init__(self, block_size: int, memo_spans: int = 2048) -> None:
        self.block_size = block_size
        self._memo_spans = memo_spans
        self._memo: OrderedDict[tuple[BlockHash, bytes], tuple[BlockHash, ...]] = OrderedDict()

    def extend(self, chain: list[BlockHash], root: BlockHash, tokens: "array[int]") -> None:
        """Append to `chain` the hashes of all full blocks of `tokens` that it lacks."""
        size = self.block_size
        full = len(tokens) // size
        if full <= len(chain):
            return
        data = tokens[len(chain) * size : full * size].tobytes()
        span = _SPAN_BLOCKS * size * tokens.itemsize
        parent = chain[-1] if chain else root
        for start in range(0, len(data), span):
            chain.extend(self._span(parent, data[start : start + span], tokens.itemsize))
            parent = chain[-1]

    def _span(self, parent: BlockHash, data: bytes, itemsize: int) -> tuple[BlockHash, ...]:
        stride = self.block_size * itemsize
        if len(data) < _SPAN_BLOCKS * stride:
            return _chain(parent, data, stride)
        key = (parent, data)
        known = self._memo.get(key)
        if known is None:
            known = self._memo[key] = _chain(parent, data, stride)
            if len(self._memo) > self._memo_spans:
                self._memo.popitem(last=False)
        else:
            self._memo.move_to_end(key)
        return known


def _chain(parent: BlockHash, data: bytes, stride: int) -> tuple[BlockHash, ...]:
    hashes: list[BlockHash] = []
    for start in range(0, len(data), stride):
        digest = blake2b(parent + data[start : start + stride], digest_size=_DIGEST).digest()
        parent = BlockHash(digest)
        hashes.append(parent)
    return tuple(hashes)
