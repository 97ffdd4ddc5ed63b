"""What responses left in caches: generated tokens, which nobody can name until they come back.

An engine keeps the blocks that it generated. The picker sees how many there are, not what is in
them. When a prompt continues an earlier one, with a message about as long as the response was,
then that message is the response: its blocks get their names from the prompt that quotes it.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from xxhash import xxh3_64_intdigest

from epp.model.kernels import HashSet
from epp.model.pods.pod import Pod
from epp.model.pods.sequence import SequenceState
from epp.model.prompts.block_hasher import BlockHash
from epp.model.prompts.chain import Chain
from epp.model.prompts.generated_blocks import GeneratedBlocks, QuotedBlocks
from epp.model.request import TOKEN_BYTES, Prompt, Usage

_ROOM: Final = 1 << 20
"""Blocks whose names are kept for tails: some 60 MB."""
_OVERHEAD: Final = 16
"""Blocks that a tail counts for besides."""
_MOST_ALIKE: Final = 8
_BROKEN_TOKENS: Final = 4
_SLACK_BYTES: Final = 48
_LEAST_BYTES: Final = 1
_MOST_BYTES: Final = 8
"""Bytes that a token of a generated text may have, less or more than its prompt's."""


def tail_of(
    pod: Pod, sequence: SequenceState, prompt: Prompt, usage: Usage, *, broken: bool = False
) -> GeneratedBlocks | None:
    """Note what a response left; None after a prompt without a full block, or never let in."""
    chain = sequence.chain
    if sequence.lease is None or not chain.hashes or sequence.cache is not pod.scheduler.cache:
        return None
    start = chain.ends[-1]
    return GeneratedBlocks(
        home=pod.home,
        generation=pod.scheduler.generation,
        lease=sequence.lease,
        anchor=chain.hashes[-1],
        blocks=len(chain.hashes),
        named=sequence.offsets.covered(len(chain.hashes)),
        size=chain.size,
        rest=chain.size - start,
        digest=digest(prompt, start, chain.size),
        prompt_tokens=usage.prompt_tokens,
        generated=usage.completion_tokens,
        broken=broken,
    )


class GeneratedIndex:
    """Tails by the last full block of their prompts; the oldest are forgotten for want of room.

    `room` is in blocks: a tail keeps the names of all that its request held.
    """

    def __init__(self, room: int = _ROOM) -> None:
        self._tails: OrderedDict[BlockHash, list[GeneratedBlocks]] = OrderedDict()
        self._anchors = HashSet()
        self._room = room

    def __len__(self) -> int:
        return len(self._tails)

    def leave(self, tail: GeneratedBlocks) -> None:
        """Remember what a response left."""
        alike = self._tails.get(tail.anchor)
        if alike is None:
            self._tails[tail.anchor] = alike = []
            self._anchors.add(tail.anchor)
        alike.append(tail)
        self._room -= _room_of(tail)
        while len(alike) > _MOST_ALIKE:
            self._room += _room_of(alike.pop(0))
        while self._room < 0:
            anchor, oldest = self._tails.popitem(last=False)
            self._anchors.discard(anchor)
            self._room += sum(map(_room_of, oldest))

    def touch(self, chain: Chain) -> bool:
        """Whether a prompt may quote anything."""
        return self._anchors.meets(chain.hashes)

    def claims(self, chain: Chain, prompt: Prompt, rate: float) -> list[QuotedBlocks]:
        """Return, and forget, what a prompt quotes; text of it is `rate` bytes a token."""
        found: list[QuotedBlocks] = []
        for position, block_hash in enumerate(chain.hashes):
            alike = self._tails.get(block_hash)
            if alike is not None:
                claims = list(_quoted(alike, chain, prompt, position + 1, rate))
                found += claims
                self._forget(block_hash, claims)
        return found

    def _forget(self, block_hash: BlockHash, claims: list[QuotedBlocks]) -> None:
        quoted = {id(claim.tail) for claim in claims}
        self._room += sum(_room_of(claim.tail) for claim in claims)
        left = [tail for tail in self._tails[block_hash] if id(tail) not in quoted]
        if left:
            self._tails[block_hash] = left
        else:
            del self._tails[block_hash]
            self._anchors.discard(block_hash)


def _room_of(tail: GeneratedBlocks) -> int:
    return tail.blocks + _OVERHEAD


def digest(prompt: Prompt, start: int, size: int) -> int:
    """Name the part of a prompt from `start` to `size`, in the prompt's unit."""
    unit = TOKEN_BYTES if prompt.exact else 1
    return xxh3_64_intdigest(memoryview(prompt.data)[start * unit : size * unit])


def _quoted(
    alike: list[GeneratedBlocks], chain: Chain, prompt: Prompt, first: int, rate: float
) -> Iterator[QuotedBlocks]:
    """Find the tails, of prompts that had `first` full blocks, that a longer prompt quotes."""
    start = chain.ends[first - 1]
    for tail in alike:
        if chain.size <= tail.size or (
            tail.rest and digest(prompt, start, tail.size) != tail.digest
        ):
            continue
        end = next((mark for mark in chain.marks if mark > tail.size), None)
        limit = _limit(tail, chain, end, rate)
        last = first
        while last < len(chain.ends) and chain.ends[last] <= limit:
            last += 1
        if last > first:
            yield QuotedBlocks(tail, first, last)


def _limit(tail: GeneratedBlocks, chain: Chain, end: int | None, rate: float) -> int:
    """Return where, in the prompt's unit, what was generated ends; 0 where it is not quoted.

    Of token ids, a message is the response if it is exactly as long: the response's last token
    ended it, or the template did where the response was cut off. One that broke off may have lost
    some on the way.
    """
    if chain.exact:
        slack = _BROKEN_TOKENS if tail.broken else 0
        if end is not None and not -slack <= end - tail.size - tail.generated <= 1 + slack:
            return 0
        return min(end or chain.size, tail.size + tail.generated) - 1
    if end is None:
        return tail.size + int((tail.generated - 1) * rate)
    size, tokens = end - tail.size, tail.generated
    alike = tokens * _LEAST_BYTES - _SLACK_BYTES <= size <= tokens * _MOST_BYTES + _SLACK_BYTES
    return end if alike else 0
