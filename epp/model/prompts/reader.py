"""The reader of prompts: makes quotes of requests, and learns from responses.

It learns how many tokens texts have, and which generated blocks follow which prompts.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from math import gcd
from typing import Final

from epp.model.events import ResponseRepeated
from epp.model.learning.bounded import LONGEST_NAME
from epp.model.pods.pod import Pod
from epp.model.pods.sequence import SequenceState
from epp.model.prompts.block_hasher import TOKEN_BLOCK, BlockHasher
from epp.model.prompts.chain import Chain
from epp.model.prompts.generated import GeneratedBlocks, GeneratedIndex, generated_blocks
from epp.model.prompts.text_lengths import Kind, kind_of, scaled
from epp.model.prompts.token_estimator import TokenEstimator
from epp.model.prompts.token_offsets import TokenOffsets
from epp.model.quote import Quote
from epp.model.request import InferenceRequest, Prompt, Usage

_EXACT_ENOUGH: Final = 0.01
"""The error of an estimated length, as a share of it, up to which it is not corrected."""
_NEAR: Final = 0.15
"""The difference of a report, as a share, up to which it corrects the length of a prefix."""


class Prompts:
    """The lengths of prompts and the blocks generated after them.

    `hasher` hashes blocks; replicas share its secret. `generated` has the blocks that responses
    left in caches.
    """

    def __init__(self, hasher: BlockHasher) -> None:
        self.hasher = hasher
        self.generated = GeneratedIndex()
        self._estimator = TokenEstimator()

    def align_blocks(self, engine_blocks: Iterable[int]) -> None:
        """Set the block size of token ids to fit the engines' block sizes, in tokens."""
        # The greatest common divisor: every block of an engine then ends where one of ours does.
        self.hasher.token_block = max(TOKEN_BLOCK, gcd(*engine_blocks))

    def quote(
        self,
        request: InferenceRequest,
        now: float,
        learn: Callable[[ResponseRepeated, float], None],
    ) -> Quote:
        """Hash a request's prompts and estimate their lengths.

        `learn` is called with each response that a prompt repeats, before its length is estimated.
        """
        model, salt = request.target_model, request.cache_salt
        chains, token_offsets = [], []
        kind: Kind = "prose"
        for prompt in request.prompts:
            chain = self.hasher.chain(prompt, model, salt)
            if self.generated.may_repeat(chain):
                self._find_repeated(chain, prompt, model, now, learn)
            if not prompt.exact:
                kind = kind_of(prompt.data)
            chains.append(chain)
            token_offsets.append(self._estimator.offsets(chain, model, prompt.data, kind))
        return Quote(request, chains, token_offsets, kind)

    def _find_repeated(
        self,
        chain: Chain,
        prompt: Prompt,
        model: str,
        now: float,
        learn: Callable[[ResponseRepeated, float], None],
    ) -> None:
        rate = self._estimator.rate(model, "prose")
        for blocks, first, last in self.generated.repeated_in(chain, prompt, rate):
            if _pod_of(blocks) is None:
                self.generated.pop(blocks.anchor, blocks.request_id)
                continue
            if not chain.exact and not blocks.broken:
                self._estimator.record(chain.hashes[last - 1], blocks.computed)
            offsets = self._estimator.offsets(chain, model, prompt.data, kind_of(prompt.data))
            hashes, sizes = chain.hashes[first:last], offsets.sizes()[first:last]
            learn(ResponseRepeated(blocks.request_id, blocks.anchor, hashes, sizes), now)

    def assign_hashes(self, event: ResponseRepeated) -> None:
        """Give the blocks that a response left the hashes of the prompt that repeats them."""
        blocks = self.generated.pop(event.anchor, event.request_id)
        pod = None if blocks is None else _pod_of(blocks)
        if blocks is None or pod is None:
            return
        if not blocks.exact and not blocks.broken:
            self._estimator.record(event.hashes[-1], blocks.computed)
        sizes = _within(blocks, event.sizes, pod.engine_block)
        pod.scheduler.assign_hashes(blocks.lease, event.hashes, sizes)

    def learn_length(self, quote: Quote, prompt_tokens: int) -> TokenOffsets:
        """Learn the tokens of a quote's only prompt, 0 if unknown; return its lengths."""
        chain, offsets = quote.chains[0], quote.token_offsets[0]
        if chain.exact or not prompt_tokens:
            return offsets
        if len(quote.target_model) <= LONGEST_NAME:
            self._estimator.learn_error(quote.target_model, quote.kind, offsets, prompt_tokens)
            self._estimator.learn(quote.target_model, quote.kind, chain.size, prompt_tokens)
        whole = bool(chain.hashes) and chain.ends[-1] == chain.size
        if whole:
            self._estimator.record(chain.hashes[-1], prompt_tokens)
        if abs(prompt_tokens - offsets.total) <= offsets.total * _EXACT_ENOUGH:
            return offsets
        known = self._estimator.known_offsets(chain) if whole else None
        return known or TokenOffsets(
            prompt_tokens, scaled(offsets.ends, prompt_tokens, offsets.total)
        )

    def length_error(self, quote: Quote) -> float:
        """Return how wrong the estimated part of a quote's length is, as a share of it."""
        return self._estimator.error(quote.target_model, quote.kind)

    def least_context(self, quote: Quote, shortest: float) -> int:
        """Return the tokens of a request's context, at least; 0 where `shortest` has room for it.

        That is what is estimated, not the least.
        """
        if quote.tokens + (quote.max_tokens or 0) <= shortest:
            return 0
        return quote.least_context(self.length_error(quote))

    def learn_prefix(self, quote: Quote, blocks: int, tokens: int, block: int) -> None:
        """Learn that a cache served `tokens` where `blocks` leading blocks hit.

        Where a message ends there, and the server's count is near the estimate, it is the length
        of the prefix, but for the engine's last `block` tokens, of which half is assumed.
        """
        chain = quote.chains[0]
        if chain.exact or not 0 < blocks <= len(chain.ends) or not tokens:
            return
        estimated = quote.token_offsets[0].covered(blocks)
        near = abs(tokens - estimated) <= estimated * _NEAR + block
        if chain.ends[blocks - 1] in chain.marks[:-1] and near:
            self._estimator.record_at_most(chain.hashes[blocks - 1], tokens + block // 2)

    def remember_response(self, pod: Pod, sequence: SequenceState, usage: Usage) -> None:
        """Remember what a response left in a pod's cache."""
        if usage.prompt_tokens and usage.completion_tokens > 1:
            blocks = generated_blocks(pod, sequence, usage.prompt_tokens, usage.completion_tokens)
            if blocks is not None:
                self.generated.remember(blocks)

    def remember_broken(
        self, pod: Pod, sequence: SequenceState, generated: int, *, guessed: bool = False
    ) -> None:
        """Remember what a response left that ended after about `generated` tokens.

        It broke off, or it was not observed and that is a guess (`guessed`).
        """
        if generated > 1:
            prompt_tokens = sequence.offsets.total
            blocks = generated_blocks(
                pod, sequence, prompt_tokens, generated, broken=True, guessed=guessed
            )
            if blocks is not None:
                self.generated.remember(blocks)


def _pod_of(blocks: GeneratedBlocks) -> Pod | None:
    """Return the pod that still holds what a response left; None if the cache is gone."""
    pod = blocks.home[0] if blocks.home else None
    return pod if pod is not None and pod.scheduler.generation == blocks.generation else None


def _within(blocks: GeneratedBlocks, sizes: Sequence[int], block: int) -> list[int]:
    """Shorten blocks to what the engine holds of a response: whole blocks of its own."""
    held = max(0, blocks.computed // block * block - blocks.hashed)
    ends = [min(held, end) for end in accumulate(sizes)]
    return [end - start for start, end in pairwise((0, *ends))]
