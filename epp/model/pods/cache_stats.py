"""What is believed of one endpoint's cache, for those who look on."""

import msgspec

from epp.model.endpoint import Endpoint


class CacheStats(msgspec.Struct, frozen=True):
    """One endpoint's cache: `capacity` and what is in use (`used`) in tokens, `blocks` findable.

    `trust`, in 0..1, is how far it did of late what was predicted. `engine` names the rules by
    which it is modelled; `live` says that the engine's own events correct it.
    """

    endpoint: Endpoint
    capacity: int
    used: int
    blocks: int
    trust: float
    engine: str
    live: bool
