"""One request under way: what it asked for, where it is, what was believed when it was sent."""

from collections.abc import Sequence
from math import inf
from typing import Final

from epp.model.estimate import Estimate
from epp.model.learning.output_lengths import OutputLengths
from epp.model.learning.prefill import Speed
from epp.model.pods.pod import Pod
from epp.model.pods.sequence import SequenceState
from epp.model.pods.unobserved import UnobservedRequest
from epp.model.prefix_index import Slot
from epp.model.prompts.chain import Chain
from epp.model.prompts.token_offsets import TokenOffsets
from epp.model.request import InferenceRequest

_MIN_LEARNED_TOKENS: Final = 64


class PrefixLookup:
    """A request's prompts as blocks (`chains`) and in tokens (`measures`).

    `finds` holds, per prompt and slot, the blocks that were found when it was last asked.
    """

    __slots__ = (
        "_estimates",
        "blocks",
        "chains",
        "finds",
        "request",
        "token_offsets",
        "tokens",
    )

    def __init__(
        self,
        request: InferenceRequest,
        chains: Sequence[Chain],
        token_offsets: Sequence[TokenOffsets],
    ) -> None:
        self.request = request
        self.chains = chains
        self.token_offsets = token_offsets
        self.finds: Sequence[Sequence[int]] = ()
        self.tokens = sum([offsets.total for offsets in token_offsets])
        self.blocks = sum([len(chain.hashes) for chain in chains])
        self._estimates: dict[tuple[object, Speed], Estimate] = {}

    def estimate(self, slot: Slot, speed: Speed) -> Estimate:
        """Predict what a cache saves; endpoints of one speed that hold as much share it."""
        finds = self.finds
        depths = [each[slot] for each in finds]
        key = (depths[0] if len(finds) == 1 else tuple(depths), speed)
        known = self._estimates.get(key)
        if known is None:
            known = self._estimates[key] = self._predict(depths, speed)
        return known

    def estimates(self, places: Sequence[tuple[Slot, Speed]]) -> list[Estimate]:
        """Predict what each of several caches saves."""
        if len(self.finds) != 1:
            return [self.estimate(slot, speed) for slot, speed in places]
        found, known = self.finds[0], self._estimates
        estimates: list[Estimate] = []
        for slot, speed in places:
            depth = found[slot]
            key = (depth, speed)
            estimate = known.get(key)
            if estimate is None:
                estimate = known[key] = self._predict([depth], speed)
            estimates.append(estimate)
        return estimates

    def discounted(self, estimate: Estimate, cached: int, speed: Speed) -> Estimate:
        """Count on `cached` tokens only, of those that were predicted."""
        seconds = speed.prefill.seconds(self.tokens - cached, cached)
        return Estimate(cached, estimate.matched, seconds)

    def _predict(self, depths: Sequence[int], speed: Speed) -> Estimate:
        """Count hits in whole blocks of the engine's, and never all of a prompt."""
        if not self.tokens:
            return Estimate(0, 0, 0.0)
        unit, cached = speed.unit, 0
        for position, depth in enumerate(depths):
            offsets = self.token_offsets[position]
            if depth and unit:
                cached += min(offsets.covered(depth), offsets.total - 1) // unit * unit
        return Estimate(cached, sum(depths), speed.prefill.seconds(self.tokens - cached, cached))


class InFlightRequest:
    """A request at a pod.

    `cached` tokens in `found` blocks were predicted to hit; it met the pod idle or not. Its first
    token came at `began`, None while none was seen.
    """

    __slots__ = (
        "began",
        "cached",
        "found",
        "lookup",
        "met_idle",
        "pod",
        "request",
        "sent_at",
        "sequences",
    )

    pod: Pod

    def __init__(self, request: InferenceRequest, lookup: PrefixLookup, sent_at: float) -> None:
        self.request = request
        self.lookup = lookup
        self.sent_at = sent_at
        self.cached = 0
        self.found = 0
        self.met_idle = False
        self.began: float | None = None
        self.sequences: Sequence[SequenceState] = ()

    def first_token(self, now: float) -> None:
        """The prefill is over, and tells how long one takes where it had the pod for itself."""
        self.began = now
        pod, uncached = self.pod, self.lookup.tokens - self.cached
        pod.ledger.first_token(self.request.id, now)
        if self.met_idle and uncached >= _MIN_LEARNED_TOKENS:
            pod.prefill.learn(uncached, self.cached, now - self.sent_at)

    def progress(self, prompt_tokens: int, generated: int) -> None:
        """Take in how far the request is; the last token that was sampled is not computed."""
        if len(self.sequences) == 1 and generated > 0:
            sequence = self.sequences[0]
            prompt = prompt_tokens or sequence.offsets.total
            self.pod.progress(sequence, prompt + generated - 1)

    def leave(self, now: float, *, revoked: bool) -> None:
        """The request is over, or was never there (`revoked`)."""
        self.pod.ledger.end(self.request.id, now)
        for sequence in self.sequences:
            self.pod.exit(sequence, now, revoked=revoked)
        self.sequences = ()

    def fade(self, answers: OutputLengths, now: float) -> UnobservedRequest:
        """Nothing more will be seen of the request: guess how it goes on."""
        request, pod = self.request, self.pod
        pod.ledger.unobserved(request.id)
        return UnobservedRequest(
            id=request.id,
            place=pod.endpoint.id,
            since=now,
            began=now + pod.ledger.owed(now) if self.began is None else self.began,
            seconds_per_token=answers.seconds_per_token(pod.prefill),
            length=answers.length(request),
            most=inf if request.max_tokens is None else request.max_tokens,
        )

    def end(self, answers: OutputLengths, tokens: int, now: float) -> None:
        """The whole answer was seen, all `tokens` of it: those that are not are like it."""
        answers.ended(self.request, tokens)
        if self.began is not None:
            answers.timed(self.pod.prefill, tokens, now - self.began)
