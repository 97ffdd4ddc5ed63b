"""Chains of block hashes to measure with, as the product's own hasher gives them."""

from collections.abc import Sequence

from epp.model.prompts.hashing import BlockHash, extend

BLOCK = 16
"""Tokens of a block."""
_TOKEN_BYTES = 4


def chain(number: int, blocks: int) -> Sequence[BlockHash]:
    """Return the hashes of a conversation's blocks; another number, another conversation."""
    ids = bytes(blocks * BLOCK * _TOKEN_BYTES)
    return extend(number, ids, range(BLOCK, blocks * BLOCK + 1, BLOCK), _TOKEN_BYTES)
