"""What one cache is predicted to save of a prompt."""

import msgspec


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """Tokens predicted to be cached, blocks found, seconds that the prefill would take."""

    cached: int
    matched: int
    seconds: float
