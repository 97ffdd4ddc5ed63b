"""How long a step takes: the cost model of the routing study. Knows only sizes."""

from collections.abc import Iterable

from model_server.simulator.scheduler import Chunk
from model_server.simulator.settings import Speed


def step_seconds(step: Iterable[Chunk], speed: Speed) -> float:
    """Duration of one engine step in seconds.

    A chunk is decode when it computes one generated token; everything else, a preempted
    request's recomputation included, is prefill.
    """
    prefill = attended = decoding = context = 0
    for request, start, size in step:
        if size == 1 and start >= request.prompt_len:
            decoding += 1
            context += start
        else:
            prefill += size
            attended += size * (2 * start + size)
    nanoseconds = (
        speed.step_ms * 1e6
        + speed.prefill_us_per_token * 1e3 * prefill
        + speed.attention_ns * attended / 2
        + speed.decode_us_per_seq * 1e3 * decoding
        + speed.decode_ns_per_context_token * context
    )
    return nanoseconds * 1e-9 / speed.factor
