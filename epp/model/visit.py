"""One request under way: what it asked for, where it is, what was believed when it was sent."""

from collections.abc import Sequence

import msgspec

from epp.model.blocks import Chain
from epp.model.pod import Pod, Stay
from epp.model.prefill import PrefillModel
from epp.model.request import InferenceRequest, RequestId
from epp.model.ruler import Ruler


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """Tokens predicted to be cached, blocks found, seconds that the prefill would take."""

    cached: int
    matched: int
    seconds: float


class Asked:
    """A request's prompts as blocks (`chains`) and tokens (`sizes`, by their `rulers`).

    `finds` holds, per prompt and slot, the blocks that were found when it was last asked.
    """

    __slots__ = (
        "_estimates",
        "blocks",
        "chains",
        "finds",
        "request_id",
        "rulers",
        "sizes",
        "tokens",
    )

    def __init__(
        self, request_id: RequestId, chains: Sequence[Chain], rulers: Sequence[Ruler]
    ) -> None:
        self.request_id = request_id
        self.chains = chains
        self.rulers = rulers
        self.finds: Sequence[Sequence[int]] = ()
        self.sizes = [ruler.tokens(chain.size) for chain, ruler in zip(chains, rulers, strict=True)]
        self.tokens = sum(self.sizes)
        self.blocks = sum([len(chain.hashes) for chain in chains])
        self._estimates: dict[tuple[object, int, PrefillModel], Estimate] = {}

    def estimate(self, pod: Pod) -> Estimate:
        """Predict what a pod's cache saves; pods of one speed that hold as much share it."""
        slot, finds = pod.slot, self.finds
        found = finds[0][slot] if len(finds) == 1 else tuple([each[slot] for each in finds])
        key = (found, pod.engine_block, pod.prefill)
        known = self._estimates.get(key)
        if known is None:
            known = self._predict([each[slot] for each in finds], pod)
            self._estimates[key] = known
        return known

    def _predict(self, depths: Sequence[int], pod: Pod) -> Estimate:
        """Count hits in whole blocks of the engine's, and never all of a prompt."""
        if not self.tokens:
            return Estimate(0, 0, 0.0)
        block, cached = pod.engine_block, 0
        for depth, ruler, tokens in zip(depths, self.rulers, self.sizes, strict=True):
            if depth:
                cached += min(ruler.covered(depth), tokens - 1) // block * block
        seconds = pod.prefill.seconds(self.tokens - cached, cached)
        return Estimate(cached, sum(depths), seconds)


class Visit:
    """A request at a pod. `cached` tokens were predicted to hit; it met the pod idle or not."""

    __slots__ = ("asked", "cached", "met_idle", "pod", "request", "sent_at", "stays")

    pod: Pod

    def __init__(self, request: InferenceRequest, asked: Asked, sent_at: float) -> None:
        self.request = request
        self.asked = asked
        self.sent_at = sent_at
        self.cached = 0
        self.met_idle = False
        self.stays: Sequence[Stay] = ()

    def leave(self, generated: int, now: float, *, revoked: bool) -> None:
        """The request is over, or was never there (`revoked`)."""
        self.pod.ledger.end(self.request.id, now)
        self._release(generated, revoked=revoked)

    def fade(self, now: float) -> None:
        """Nothing more will be heard of the request: the clock pays for its prefill."""
        self.pod.ledger.unobserved(self.request.id)
        self._release(0, revoked=False)

    def _release(self, generated: int, *, revoked: bool) -> None:
        for stay in self.stays:
            self.pod.exit(stay, generated, revoked=revoked)
            generated = 0
        self.stays = ()
