"""Cuts a prompt into blocks and chains their hashes.

Block boundaries depend on the position alone, so equal prefixes have equal blocks. They are 128
bytes apart at the start and grow with the position, sixteen to a doubling: a prompt of any
length has some hundred blocks, and a cut in the middle of one costs at most a sixteenth of the
prefix. One hash function names all blocks; its root is keyed by a secret of the deployment, so
that nobody outside can make two prompts collide.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from typing import NewType, cast

import msgspec
from xxhash import xxh3_64_intdigest

from epp.model.request import Prompt

BlockHash = NewType("BlockHash", int)
"""64 bits: a block and all that stands before it, under one model and salt."""

FIRST_BLOCK_BYTES = 128
_PER_DOUBLING = 16
_LONGEST = 1 << 31


def _grid() -> tuple[int, ...]:
    ends = []
    end = 0
    while end < _LONGEST:
        step = max(FIRST_BLOCK_BYTES, (1 << (end.bit_length() - 1)) // _PER_DOUBLING if end else 0)
        end += step
        ends.append(end)
    return tuple(ends)


BLOCK_ENDS = _grid()
"""Where blocks end, in bytes from the start of the prompt."""

_SLICES = tuple(map(slice, (0, *BLOCK_ENDS[:-1]), BLOCK_ENDS))


class Chain(msgspec.Struct, frozen=True):
    """The full blocks of one prompt.

    `size` is the prompt's length in bytes; `lookup` the number of leading blocks that a cache
    may serve: a prompt that ends with a block has its last block computed again (vLLM
    `get_computed_blocks`: at most `num_tokens - 1` tokens hit).
    """

    hashes: Sequence[BlockHash]
    size: int
    lookup: int
    exact: bool = False


def chain_hashes(data: bytes, root: int, count: int) -> list[BlockHash]:
    """Hash the first `count` blocks of `data`, each seeded with the hash before it."""
    hashes: list[int] = []
    parent = root
    for block in map(memoryview(data).__getitem__, _SLICES[:count]):
        parent = xxh3_64_intdigest(block, parent)
        hashes.append(parent)
    return cast("list[BlockHash]", hashes)  # naming each would cost more than hashing it


class BlockHasher:
    """Names the blocks of prompts. Replicas that are to agree share `secret` (up to 64 bytes)."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def chain(self, prompt: Prompt, model: str, cache_salt: str) -> Chain:
        """Cut and hash a prompt; the model's name tells LoRA adapters apart."""
        size = len(prompt.data)
        root = self._root(model, cache_salt, exact=prompt.exact)
        count = bisect_right(BLOCK_ENDS, size)
        return Chain(
            chain_hashes(prompt.data, root, count),
            size,
            bisect_left(BLOCK_ENDS, size),
            prompt.exact,
        )

    def _root(self, model: str, cache_salt: str, *, exact: bool) -> int:
        name = msgspec.msgpack.encode((model, cache_salt, exact))
        return int.from_bytes(blake2b(name, digest_size=8, key=self._secret).digest(), "little")
