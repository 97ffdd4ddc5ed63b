"""What responses left in caches: generated tokens, which nobody can name until they come back.

An engine keeps the blocks that it generated. The picker sees how many there are, not what is in
them. When a prompt continues an earlier one, with a message about as long as the response was,
then that message is the response: its blocks get their names from the prompt that quotes it.
"""

from collections import OrderedDict
from collections.abc import Iterator

import msgspec
from xxhash import xxh3_64_intdigest

from epp.model.blocks import BlockHash, Chain
from epp.model.pod import Pod
from epp.model.request import TOKEN_BYTES, Prompt, Usage
from epp.model.stay import Stay

_MOST = 1 << 16
_MOST_ALIKE = 8
_BROKEN_TOKENS = 4
_SLACK_BYTES = 48
_LEAST_BYTES, _MOST_BYTES = 1, 8
"""Bytes that a token of a generated text may have, less or more than its prompt's."""


class Tail(msgspec.Struct, frozen=True, eq=False):
    """What one response left at one endpoint.

    Its prompt was `size` long in the unit of its chain, of which `rest` (as `digest`) came after
    the last full block; `prompt_tokens` and `generated` tokens were counted by the server, or
    where the response broke off (`broken`) guessed from what had been streamed.
    """

    pod: Pod
    stay: Stay
    size: int
    rest: int
    digest: int
    prompt_tokens: int
    generated: int
    broken: bool

    @property
    def computed(self) -> int:
        """Tokens in the cache: all but the one that was sampled last."""
        return self.prompt_tokens + self.generated - 1


def tail_of(pod: Pod, stay: Stay, prompt: Prompt, usage: Usage, *, broken: bool = False) -> Tail:
    """Note what a response left after a prompt of at least one full block."""
    chain = stay.chain
    start = chain.ends[-1]
    return Tail(
        pod,
        stay,
        chain.size,
        chain.size - start,
        digest(prompt, start, chain.size),
        usage.prompt_tokens,
        usage.completion_tokens,
        broken,
    )


class Claim(msgspec.Struct, frozen=True):
    """That blocks `first` to `last` (excluded) of a prompt are what a response left."""

    tail: Tail
    first: int
    last: int


class Tails:
    """Tails by the last full block of their prompts, the oldest forgotten first."""

    def __init__(self) -> None:
        self._tails: OrderedDict[BlockHash, list[Tail]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tails)

    def leave(self, tail: Tail) -> None:
        """Remember what a response left."""
        anchor = tail.stay.chain.hashes[-1]
        alike = self._tails.setdefault(anchor, [])
        alike.append(tail)
        del alike[:-_MOST_ALIKE]
        if len(self._tails) > _MOST:
            self._tails.popitem(last=False)

    def touch(self, chain: Chain) -> bool:
        """Whether a prompt may quote anything."""
        return not self._tails.keys().isdisjoint(chain.hashes)

    def claims(self, chain: Chain, prompt: Prompt, rate: float) -> list[Claim]:
        """Return, and forget, what a prompt quotes; text of it is `rate` bytes a token."""
        found: list[Claim] = []
        for position, block_hash in enumerate(chain.hashes):
            alike = self._tails.get(block_hash)
            if alike is not None:
                claims = list(_quoted(alike, chain, prompt, position + 1, rate))
                found += claims
                self._forget(block_hash, claims)
        return found

    def _forget(self, block_hash: BlockHash, claims: list[Claim]) -> None:
        quoted = {id(claim.tail) for claim in claims}
        left = [tail for tail in self._tails[block_hash] if id(tail) not in quoted]
        if left:
            self._tails[block_hash] = left
        else:
            del self._tails[block_hash]


def digest(prompt: Prompt, start: int, size: int) -> int:
    """Name the part of a prompt from `start` to `size`, in the prompt's unit."""
    unit = TOKEN_BYTES if prompt.exact else 1
    return xxh3_64_intdigest(memoryview(prompt.data)[start * unit : size * unit])


def _quoted(
    alike: list[Tail], chain: Chain, prompt: Prompt, first: int, rate: float
) -> Iterator[Claim]:
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
            yield Claim(tail, first, last)


def _limit(tail: Tail, chain: Chain, end: int | None, rate: float) -> int:
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
