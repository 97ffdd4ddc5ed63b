"""One request under way: what it asked for, where it is, what was believed when it was sent."""

from collections.abc import Sequence

from epp.model.blocks import Chain
from epp.model.pod import Pod, Stay
from epp.model.prefill import PrefillModel
from epp.model.prefixindex import Slot
from epp.model.request import InferenceRequest, RequestId
from epp.model.ruler import Ruler


class Asked:
    """A request's prompts as blocks (`chains`) and tokens (`sizes`, by their `rulers`).

    `matches` holds, per prompt and slot, the blocks that were found when it was last asked;
    `estimates` what was made of that (cached tokens, seconds), by find, block size and model.
    """

    __slots__ = (
        "blocks",
        "chains",
        "estimates",
        "matches",
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
        self.matches: Sequence[Sequence[int]] = ()
        self.estimates: dict[tuple[tuple[int, ...], int, PrefillModel], tuple[int, float]] = {}
        self.rulers = rulers
        self.sizes = [ruler.tokens(chain.size) for chain, ruler in zip(chains, rulers, strict=True)]
        self.tokens = sum(self.sizes)
        self.blocks = sum(len(chain.hashes) for chain in chains)

    def depths(self, slot: Slot) -> tuple[int, ...]:
        """Return how many leading blocks of each prompt the endpoint in a slot holds."""
        return tuple([match[slot] for match in self.matches])

    def cached_tokens(self, depths: tuple[int, ...], engine_block: int) -> int:
        """Predict hits: whole blocks of the engine's, and never all of a prompt."""
        total = 0
        for depth, ruler, tokens in zip(depths, self.rulers, self.sizes, strict=True):
            if depth:
                total += min(ruler.covered(depth), tokens - 1) // engine_block * engine_block
        return total


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
