"""One request under way: what it asked for, where it is, what was believed when it was sent."""

from collections.abc import Sequence

from epp.model.blocks import Chain
from epp.model.pod import Pod, Stay
from epp.model.request import InferenceRequest, RequestId
from epp.model.ruler import Ruler


class Asked:
    """A request's prompts as blocks (`chains`) and tokens (`sizes`, by their `rulers`).

    `matches` holds, per prompt and slot, the blocks that were found when it was last asked.
    """

    __slots__ = ("blocks", "chains", "matches", "request_id", "rulers", "sizes", "tokens")

    def __init__(
        self, request_id: RequestId, chains: Sequence[Chain], rulers: Sequence[Ruler]
    ) -> None:
        self.request_id = request_id
        self.chains = chains
        self.matches: Sequence[Sequence[int]] = ()
        self.rulers = rulers
        self.sizes = [ruler.tokens(chain.size) for chain, ruler in zip(chains, rulers, strict=True)]
        self.tokens = sum(self.sizes)
        self.blocks = sum(len(chain.hashes) for chain in chains)


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
