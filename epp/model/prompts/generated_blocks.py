"""What a response left in a cache, and that a prompt quotes it."""

import msgspec

from epp.model.caches.lease import Lease
from epp.model.pods.pod import Pod
from epp.model.prompts.block_hasher import BlockHash


class GeneratedBlocks(msgspec.Struct, frozen=True, eq=False):
    """What one response left at one endpoint, as unhashed blocks of `lease`.

    They are in the cache of this `generation`, if the endpoint is still there: `home` has it.
    Its prompt was `size` long in the unit of its chain: `blocks` full ones, `named` tokens in
    all, the last of them `anchor`, and `rest` (as `digest`) after these. `prompt_tokens` and
    `generated` tokens were counted by the server, or where the response broke off (`broken`)
    guessed from what had been streamed.
    """

    home: list[Pod]
    generation: int
    lease: Lease
    anchor: BlockHash
    blocks: int
    named: int
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


class QuotedBlocks(msgspec.Struct, frozen=True):
    """That blocks `first` to `last` (excluded) of a prompt are what a response left."""

    tail: GeneratedBlocks
    first: int
    last: int
