"""Generated blocks in caches, whose hashes are unknown until a prompt repeats the response.

An engine keeps the blocks that it generated (vLLM caches blocks of output like those of prompts).
The picker sees the number of tokens, but not the tokens. If a prompt continues an earlier one with
a message about as long as the response was, that message is taken for the response, and its blocks
get their hashes from this prompt.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from mypy_extensions import mypyc_attr

from epp.model.prompts.block_hasher import digest
from epp.model.prompts.block_hashes import BlockHashes
from epp.model.prompts.chain import Chain
from epp.model.prompts.hashing import BlockHash
from epp.model.request import TOKEN_BYTES, Prompt, RequestId

_ROOM: Final = 1 << 20
"""Blocks of prompts for which responses are remembered: some 60 MB."""
_OVERHEAD: Final = 16
"""Blocks that each response counts for besides its prompt's."""
_MAX_PER_ANCHOR: Final = 8
"""Responses that are remembered for one last full block."""
_BROKEN_TOKENS: Final = 4
"""Tokens by which the count of a response that broke off may be wrong."""
_GUESSED: Final = 4
"""The factor by which the guessed length of an unobserved response may be wrong."""
_MIN_BYTES: Final = 1
_MAX_BYTES: Final = 8
"""Bytes that a token of a generated text has on average, at least and at most."""
_SLACK_BYTES: Final = 48
"""Bytes by which a whole message may exceed these bounds."""


class CachedOutput(Protocol):
    """The blocks of one response in the cache of the endpoint that generated it."""

    @property
    def gone(self) -> bool:
        """Whether the cache is gone."""

    @property
    def engine_block(self) -> int:
        """The size of the engine's blocks, in tokens."""

    def assign_hashes(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """Give hashes to the blocks, of `sizes` tokens, from the first one on."""


@mypyc_attr(free_list_len=1, acyclic=True)
class GeneratedBlocks:
    """The blocks without hashes that one response left at one endpoint."""

    def __init__(  # noqa: PLR0913, PLR0917 (one fact each)
        self,
        request_id: RequestId,
        chain: Chain,
        hashed: int,
        output: CachedOutput,
        prompt_tokens: int,
        generated: int,
        *,
        broken: bool = False,
        guessed: bool = False,
    ) -> None:
        self.request_id: Final = request_id
        self.output: Final = output
        """The blocks."""
        self.anchor: Final = chain.hashes[-1]
        """The hash of the last full block of its prompt."""
        self.blocks: Final = len(chain.hashes)
        """How many full blocks the prompt has."""
        self.hashed: Final = hashed
        """How many tokens these blocks have."""
        self.exact: Final = chain.exact
        """Whether the prompt came as tokens; else lengths are in bytes of text."""
        self.size: Final = chain.size
        """The length of the prompt."""
        self.rest: Final = chain.size - chain.ends[-1]
        """The length of the prompt after its last full block."""
        self.rest_digest: Final = chain.rest_digest
        """A hash of the rest."""
        self.prompt_tokens: Final = prompt_tokens
        """The prompt's tokens, as the server counted them or as guessed."""
        self.generated: Final = generated
        """The response's tokens, counted or guessed likewise."""
        self.broken: Final = broken
        """Whether the response broke off, so that its tokens are guessed from what was streamed."""
        self.guessed: Final = guessed
        """Whether its tokens are guessed from the time that it took; then it is also `broken`."""

    @property
    def computed(self) -> int:
        """Tokens in the cache: all except the last sampled one."""
        return self.prompt_tokens + self.generated - 1


class GeneratedIndex:
    """Responses by the last full block of their prompts, the oldest first.

    `room` is in blocks of prompts: a lease keeps the keys of all blocks that its request held.
    """

    def __init__(self, room: int = _ROOM) -> None:
        self._by_anchor: OrderedDict[BlockHash, list[GeneratedBlocks]] = OrderedDict()
        self._anchors = BlockHashes()
        self._room = room

    def remember(self, blocks: GeneratedBlocks) -> None:
        """Add the blocks that a response left; drop the oldest entries if there is no room."""
        same_anchor = self._by_anchor.get(blocks.anchor)
        if same_anchor is None:
            self._by_anchor[blocks.anchor] = same_anchor = []
            self._anchors.add((blocks.anchor,))
        same_anchor.append(blocks)
        self._room -= _room_of(blocks)
        while len(same_anchor) > _MAX_PER_ANCHOR:
            self._room += _room_of(same_anchor.pop(0))
        while self._room < 0:
            anchor, oldest = self._by_anchor.popitem(last=False)
            self._anchors.remove((anchor,))
            self._room += sum(map(_room_of, oldest))

    def may_repeat(self, chain: Chain) -> bool:
        """Return whether a prompt continues one whose response is remembered."""
        return self._anchors.last(chain.hashes) > 0

    def repeated_in(
        self, chain: Chain, prompt: Prompt, rate: float
    ) -> list[tuple[GeneratedBlocks, int, int]]:
        """Return the responses that a prompt repeats, each with the blocks `first:last` of it.

        Text has `rate` bytes a token.
        """
        found: list[tuple[GeneratedBlocks, int, int]] = []
        for position, block_hash in enumerate(chain.hashes):
            same_anchor = self._by_anchor.get(block_hash)
            if same_anchor is not None:
                found += _repeated(same_anchor, chain, prompt, position + 1, rate)
        return found

    def pop(self, anchor: BlockHash, request_id: RequestId) -> GeneratedBlocks | None:
        """Remove and return the blocks that a request's response left; None if unknown."""
        same_anchor = self._by_anchor.get(anchor, [])
        for position, blocks in enumerate(same_anchor):
            if blocks.request_id == request_id:
                del same_anchor[position]
                self._room += _room_of(blocks)
                if not same_anchor:
                    del self._by_anchor[anchor]
                    self._anchors.remove((anchor,))
                return blocks
        return None


def _room_of(blocks: GeneratedBlocks) -> int:
    return blocks.blocks + _OVERHEAD


def _repeated(
    same_anchor: list[GeneratedBlocks], chain: Chain, prompt: Prompt, first: int, rate: float
) -> Iterator[tuple[GeneratedBlocks, int, int]]:
    """Find the responses that a prompt repeats, among those to prompts of `first` full blocks."""
    start, unit = chain.ends[first - 1], TOKEN_BYTES if prompt.exact else 1
    for blocks in same_anchor:
        size = blocks.size
        if chain.size <= size or (
            blocks.rest and digest(prompt.data, start, size, unit) != blocks.rest_digest
        ):
            continue
        end = next((mark for mark in chain.marks if mark > size), None)
        limit = _limit(blocks, chain, end, rate)
        last = first
        while last < len(chain.ends) and chain.ends[last] <= limit:
            last += 1
        if last > first:
            yield blocks, first, last


def _limit(blocks: GeneratedBlocks, chain: Chain, end: int | None, rate: float) -> int:
    """Return where the response ends in the prompt, in its unit; 0 if it is not repeated.

    In token ids, a message is the response if it has exactly the same length: the response's last
    token ended it, or the template did if the response was cut off. A response that broke off may
    have lost some tokens on the way, and the length of an unobserved response is a guess.
    """
    size, generated = blocks.size, blocks.generated
    if chain.exact:
        slack = _BROKEN_TOKENS if blocks.broken else 0
        times = _GUESSED if blocks.guessed else 1
        least, most = generated // times - slack, generated * times + 1 + slack
        if end is not None and not least <= end - size <= most:
            return 0
        return min(end or chain.size, size + generated) - 1
    if end is None:
        return size + int((generated - 1) * rate)
    least, most = generated * _MIN_BYTES - _SLACK_BYTES, generated * _MAX_BYTES + _SLACK_BYTES
    return end if least <= end - size <= most else 0
