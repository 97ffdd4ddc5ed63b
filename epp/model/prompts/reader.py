"""Reads prompts as the fleet's caches see them: as blocks, and in tokens.

It learns from what servers report of prompts: how long they were, and what was generated after
them.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from math import gcd
from typing import Final

from epp.model.kernels import kind_of, scaled
from epp.model.pods.in_flight import PrefixLookup
from epp.model.pods.pod import Pod
from epp.model.pods.sequence import SequenceState
from epp.model.prompts.block_hasher import TOKEN_BLOCK, BlockHasher
from epp.model.prompts.chain import Chain
from epp.model.prompts.generated import GeneratedIndex, tail_of
from epp.model.prompts.generated_blocks import GeneratedBlocks
from epp.model.prompts.token_estimator import TokenEstimator
from epp.model.prompts.token_offsets import TokenOffsets
from epp.model.request import InferenceRequest, Prompt, Usage


class Prompts:
    """What is known of prompts. `hasher` names blocks; replicas share its secret."""

    def __init__(self, hasher: BlockHasher) -> None:
        self.hasher = hasher
        self._estimator = TokenEstimator()
        self._tails = GeneratedIndex()

    def fit(self, engine_blocks: Iterable[int]) -> None:
        """Cut token ids into blocks that fit the engines', given in tokens."""
        self.hasher.token_block = max(TOKEN_BLOCK, gcd(*engine_blocks))

    def read(self, request: InferenceRequest) -> PrefixLookup:
        """Hash and measure a request's prompts; responses that they quote get their names."""
        model, salt, estimator = request.target_model, request.cache_salt, self._estimator
        chains, token_offsets = [], []
        for prompt in request.prompts:
            chain = self.hasher.chain(prompt, model, salt)
            if self._tails.touch(chain):
                self._name_quoted(chain, prompt, model)
            chains.append(chain)
            token_offsets.append(estimator.offsets(chain, model, prompt.data))
        return PrefixLookup(request, chains, token_offsets)

    def _name_quoted(self, chain: Chain, prompt: Prompt, model: str) -> None:
        rate = self._estimator.rate(model, "prose")
        for claim in self._tails.claims(chain, prompt, rate):
            tail, first, last = claim.tail, claim.first, claim.last
            pod = tail.home[0] if tail.home else None
            if pod is None or pod.scheduler.generation != tail.generation:
                continue
            if not chain.exact:
                self._estimator.pin(chain.hashes[last - 1], tail.computed)
            sizes = self._estimator.offsets(chain, model, prompt.data).sizes()[first:last]
            sizes = _within(tail, sizes, pod.engine_block)
            pod.scheduler.assign_hashes(tail.lease, chain.hashes[first:last], sizes)

    def learn(self, request: InferenceRequest, lookup: PrefixLookup, usage: Usage) -> TokenOffsets:
        """Take in how long a request's only prompt was, and measure it anew."""
        chain, offsets, total = lookup.chains[0], lookup.token_offsets[0], usage.prompt_tokens
        if chain.exact or not total:
            return offsets
        model, text = request.target_model, request.prompts[0].data
        self._estimator.learn(model, kind_of(text), chain.size, total)
        if chain.hashes and chain.ends[-1] == chain.size:
            self._estimator.pin(chain.hashes[-1], total)
        if abs(total - offsets.total) <= offsets.total * _EXACT_ENOUGH:
            return offsets
        if chain.hashes and chain.ends[-1] == chain.size:
            return self._estimator.offsets(chain, model, text)
        return TokenOffsets(total, scaled(offsets.ends, total, offsets.total))

    def learn_prefix(self, lookup: PrefixLookup, blocks: int, tokens: int, block: int) -> None:
        """Take in that a cache served `tokens` where `blocks` leading blocks were found.

        Where a message ends there, and the server's count is near what was believed, it tells
        how long the prefix is, but for the engine's last `block`, of which half is assumed.
        """
        chain = lookup.chains[0]
        if chain.exact or not 0 < blocks <= len(chain.ends) or not tokens:
            return
        believed = lookup.token_offsets[0].covered(blocks)
        near = abs(tokens - believed) <= believed * _NEAR + block
        if chain.ends[blocks - 1] in chain.marks[:-1] and near:
            self._estimator.pin_at_most(chain.hashes[blocks - 1], tokens + block // 2)

    def remember(
        self, request: InferenceRequest, pod: Pod, sequence: SequenceState, usage: Usage
    ) -> None:
        """Take note of what a response left in a cache."""
        if usage.prompt_tokens and usage.completion_tokens > 1:
            self._leave(tail_of(pod, sequence, request.prompts[0], usage))

    def remember_broken(
        self, request: InferenceRequest, pod: Pod, sequence: SequenceState, generated: int
    ) -> None:
        """Take note of what a response left that broke off, as far as it was seen."""
        if generated > 1:
            guess = Usage(sequence.offsets.total, generated)
            self._leave(tail_of(pod, sequence, request.prompts[0], guess, broken=True))

    def _leave(self, tail: GeneratedBlocks | None) -> None:
        if tail is not None:
            self._tails.leave(tail)


def _within(tail: GeneratedBlocks, sizes: Sequence[int], block: int) -> list[int]:
    """Shorten blocks to what the engine holds of a response: whole blocks of its own."""
    held = max(0, tail.computed // block * block - tail.named)
    ends = [min(held, end) for end in accumulate(sizes)]
    return [end - start for start, end in pairwise((0, *ends))]


_EXACT_ENOUGH: Final = 0.01
"""How far off, as a share, a prompt's length may be without being booked anew."""
_NEAR: Final = 0.15
"""How far off, as a share, a report may be that corrects the length of a prefix."""
