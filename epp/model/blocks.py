"""Cuts a prompt into blocks and chains their hashes.

Where blocks end depends on nothing that comes after, so equal prefixes have equal blocks.

Token ids are cut as the engine cuts them, every `token_block` tokens. Text is cut where a message
of the conversation ends, and on a grid in between: 128 bytes apart at the start, growing with the
position, sixteen to a doubling. A prompt of any length has some hundred blocks; a cut within a
message costs at most a sixteenth of the prefix, one between messages nothing.

One hash function names all blocks; its root is keyed by a secret of the deployment, so that
nobody outside can make two prompts collide.
"""

from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from typing import NewType, cast

import msgspec
from xxhash import xxh3_64_intdigest

from epp.model.request import TOKEN_BYTES, Prompt

BlockHash = NewType("BlockHash", int)
"""64 bits: a block and all that stands before it, under one model and salt."""

FIRST_BLOCK_BYTES = 128
TOKEN_BLOCK = 16
"""Tokens of a block where no engine has said: vLLM's default on GPUs."""

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
"""Where blocks of text end, in bytes from the start of the prompt, messages aside."""


class Chain(msgspec.Struct, frozen=True):
    """The full blocks of one prompt, in its own unit: bytes of text, or tokens where `exact`.

    Block i ends at `ends[i]`; the prompt is `size` long; `marks` are the ends of its messages.
    `lookup` is the number of leading blocks that a cache may serve: of token ids, one that ends
    with the prompt is computed again (vLLM `get_computed_blocks`: at most `num_tokens - 1` tokens
    hit); text is followed by what the chat template adds.
    """

    hashes: Sequence[BlockHash]
    ends: Sequence[int]
    size: int
    lookup: int
    exact: bool = False
    marks: Sequence[int] = ()


class BlockHasher:
    """Names the blocks of prompts. Replicas that are to agree share `secret` (up to 64 bytes).

    `token_block` is the length of blocks of token ids, in tokens.
    """

    def __init__(self, secret: bytes, token_block: int = TOKEN_BLOCK) -> None:
        self._secret = secret
        self.token_block = token_block

    def chain(self, prompt: Prompt, model: str, cache_salt: str) -> Chain:
        """Cut and hash a prompt; the model's name tells LoRA adapters apart."""
        root = self.root(model, cache_salt, exact=prompt.exact)
        if not prompt.exact:
            ends = _cuts(len(prompt.data), prompt.marks)
            hashes = self.extend(root, prompt.data, ends)
            return Chain(hashes, ends, len(prompt.data), len(ends), marks=prompt.marks)
        size, block = len(prompt.data) // TOKEN_BYTES, self.token_block
        ends = range(block, size + 1, block)
        hashes = self.extend(root, prompt.data, ends, TOKEN_BYTES)
        lookup = max(0, size - 1) // block
        return Chain(hashes, ends, size, lookup, exact=True, marks=prompt.marks)

    @staticmethod
    def extend(parent: int, data: bytes, ends: Sequence[int], unit: int = 1) -> Sequence[BlockHash]:
        """Hash the blocks of `data` up to each of `ends`, each seeded with the hash before it.

        Ends count from the start of `data`, in `unit` bytes.
        """
        hashes: list[int] = []
        view, start = memoryview(data), 0
        for end in ends:
            parent = xxh3_64_intdigest(view[start * unit : end * unit], parent)
            hashes.append(parent)
            start = end
        return cast("list[BlockHash]", hashes)  # naming each would cost more than hashing it

    def root(self, model: str, cache_salt: str, *, exact: bool) -> int:
        """Return what a chain's first block is seeded with."""
        name = msgspec.msgpack.encode((model, cache_salt, exact))
        return int.from_bytes(blake2b(name, digest_size=8, key=self._secret).digest(), "little")


def _cuts(size: int, marks: Sequence[int]) -> Sequence[int]:
    """Return where blocks of a text end: at the ends of its messages, and on the grid."""
    grid = BLOCK_ENDS[: bisect_right(BLOCK_ENDS, size)]
    return sorted({*grid, *marks}) if marks else grid
