"""The reader of prompts: measures them in blocks and tokens, and learns from responses.

It learns how many tokens texts have, and which generated blocks follow which prompts.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from math import gcd
from typing import Final

from epp.model.learning.bounded import LONGEST_NAME
from epp.model.prompts.block_hasher import TOKEN_BLOCK, BlockHasher
from epp.model.prompts.chain import Chain
from epp.model.prompts.generated import GeneratedBlocks, GeneratedIndex
from epp.model.prompts.repeated import ResponseRepeated
from epp.model.prompts.text_lengths import Kind, kind_of, scaled
from epp.model.prompts.token_estimator import TokenEstimator
from epp.model.prompts.token_offsets import TokenOffsets
from epp.model.request import InferenceRequest, Prompt

_EXACT_ENOUGH: Final = 0.01
"""The relative error of an estimated length up to which it is not corrected."""
_NEAR: Final = 0.15
"""The difference of a report, as a share, up to which it corrects the length of a prefix."""

Learn = Callable[[ResponseRepeated, float], None]
"""Called with an event and the time."""


class Prompts:
    """The lengths of prompts (`estimator`) and the blocks `generated` after them, in caches.

    `hasher` hashes blocks; replicas share its secret.
    """

    def __init__(self, hasher: BlockHasher) -> None:
        self.hasher = hasher
        self.generated = GeneratedIndex()
        self.estimator = TokenEstimator()
        self._aligned = hasher.configured

    def align_blocks(self, engine_blocks: Iterable[int]) -> bool:
        """Set the block size of token ids to fit the engines' block sizes, in tokens.

        Keeps the current block size, or the configured one, if that fits, since everything learned
        is stored by its blocks. Returns whether it changed.
        """
        before = self.hasher.token_block
        if self._aligned and not any(block % before for block in engine_blocks):
            return False
        # The greatest common divisor, so that every block of an engine ends where one of ours does.
        self._aligned, self.hasher.token_block = True, max(TOKEN_BLOCK, gcd(*engine_blocks))
        return self.hasher.token_block != before

    def read(
        self, request: InferenceRequest, now: float, learn: Learn
    ) -> tuple[tuple[Chain, ...], tuple[TokenOffsets, ...], Kind]:
        """Return the blocks and the estimated lengths of a request's prompts, and their kind.

        `learn` is called with each response that a prompt repeats, before its length is estimated.
        """
        model, salt = request.target_model, request.cache_salt
        skips = request.skip_reading_prefix_cache
        chains: list[Chain] = []
        token_offsets: list[TokenOffsets] = []
        kind: Kind = "prose"
        for prompt in request.prompts:
            chain = self.hasher.chain(prompt, model, salt, skip_reading_prefix_cache=skips)
            if self.generated.may_repeat(chain):
                self._find_repeated(chain, prompt, model, now, learn)
            if not prompt.exact:
                kind = _kind_of(prompt)
            chains.append(chain)
            token_offsets.append(self.estimator.offsets(chain, model, prompt.data, kind))
        return tuple(chains), tuple(token_offsets), kind

    def _find_repeated(
        self, chain: Chain, prompt: Prompt, model: str, now: float, learn: Learn
    ) -> None:
        rate = self.estimator.rate(model, "prose")
        for blocks, first, last in self.generated.repeated_in(chain, prompt, rate):
            if not chain.exact and not blocks.broken:
                self.estimator.prefixes.record(chain.hashes[last - 1], blocks.computed)
            offsets = self.estimator.offsets(chain, model, prompt.data, _kind_of(prompt))
            hashes, sizes = chain.hashes[first:last], offsets.sizes()[first:last]
            learn(ResponseRepeated(blocks.request_id, blocks.anchor, hashes, sizes), now)

    def assign_hashes(self, event: ResponseRepeated) -> None:
        """Give the blocks that a response left the hashes of the prompt that repeats them."""
        blocks = self.generated.pop(event.anchor, event.request_id)
        if blocks is None or blocks.output.gone:
            return
        if not blocks.exact and not blocks.broken:
            self.estimator.prefixes.record(event.hashes[-1], blocks.computed)
        output = blocks.output
        output.assign_hashes(event.hashes, _within(blocks, event.sizes, output.engine_block))

    def learn_length(
        self, chain: Chain, offsets: TokenOffsets, prompt_tokens: int, model: str, kind: Kind
    ) -> TokenOffsets:
        """Learn a prompt's number of tokens, 0 if unknown; return its offsets, corrected."""
        if chain.exact or not prompt_tokens:
            return offsets
        if len(model) <= LONGEST_NAME:
            self.estimator.learn_error(model, kind, offsets, prompt_tokens)
            self.estimator.learn(model, kind, chain.size, prompt_tokens)
        whole = bool(chain.hashes) and chain.ends[-1] == chain.size
        if whole:
            self.estimator.prefixes.record(chain.hashes[-1], prompt_tokens)
        if abs(prompt_tokens - offsets.total) <= offsets.total * _EXACT_ENOUGH:
            return offsets
        if whole:
            return self.estimator.known_offsets(chain)
        return TokenOffsets(prompt_tokens, scaled(offsets.ends, prompt_tokens, offsets.total))

    def learn_prefix(
        self, chain: Chain, offsets: TokenOffsets, blocks: int, tokens: int, block: int
    ) -> None:
        """Learn that a cache served `tokens` of a prompt if `blocks` leading blocks hit.

        Hits are whole blocks of `block` tokens, so the prefix is up to `block` longer: half is
        added. Nothing is learned unless a message ends there and `tokens` is near the greatest
        known length, or the estimate if none is known.
        """
        if chain.exact or not blocks or not tokens:
            return
        if chain.ends[blocks - 1] not in chain.marks[:-1]:
            return
        last = chain.hashes[blocks - 1]
        known = self.estimator.prefixes.most(last)
        length = offsets.covered(blocks) if known < 0 else known
        if abs(tokens - length) <= length * _NEAR + block:
            self.estimator.prefixes.record_at_most(last, tokens + block // 2)


def _kind_of(prompt: Prompt) -> Kind:
    return "media" if prompt.multimodal else kind_of(prompt.data)


def _within(blocks: GeneratedBlocks, sizes: Sequence[int], block: int) -> list[int]:
    """Shorten blocks to what the engine holds of a response, which is whole blocks of its own."""
    held = max(0, blocks.computed // block * block - blocks.hashed)
    ends = [min(held, end) for end in accumulate(sizes)]
    return [end - start for start, end in pairwise((0, *ends))]
