"""What held blocks take, and how long the index stands still as it grows. A process of its own.

`python -m bench.index.memory`, with WARMPICK_NATIVE=off for the sources; prints one JSON object.
"""

import gc
import os
import sys
import time

import msgspec

from bench.accounting import resident_mb
from bench.index.pooled import BLOCK, Pooled, chain
from epp.model.prefix_index.index import PrefixIndex

ENDPOINTS, BLOCKS, PROMPT = 100, 35_000, 500


class Filled(msgspec.Struct, frozen=True):
    """`curve` is blocks held and bytes a block as an index and its pools fill up.

    `stall_ms` is the CPU time of the slowest prompt of 500 blocks, its pool's part included.
    """

    curve: list[tuple[int, float]]
    rss_mb: float
    bytes_per_block: float
    stall_ms: float


def measure() -> Filled:
    """Fill pools, all with different prompts: no block is held twice, which costs most."""
    sizes = [BLOCK] * PROMPT
    chain(0, PROMPT)
    gc.collect()
    before = resident_mb(os.getpid())
    index = PrefixIndex()
    pools = [Pooled(index, BLOCKS) for _ in range(ENDPOINTS)]
    slowest, curve = 0.0, []
    for turn in range(BLOCKS // PROMPT):
        for number, pool in enumerate(pools):
            names = chain(turn * ENDPOINTS + number, PROMPT)
            started = time.thread_time()
            pool.serve(names, sizes)
            slowest = max(slowest, time.thread_time() - started)
        curve.append((index.held, _bytes(before, index)))
    gc.collect()
    if index.held != ENDPOINTS * BLOCKS:
        raise ValueError(f"{index.held} blocks are held")
    return Filled(curve, resident_mb(os.getpid()), _bytes(before, index), slowest * 1e3)


def _bytes(before: float, index: PrefixIndex) -> float:
    return (resident_mb(os.getpid()) - before) * 1e6 / index.held


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(measure()).decode() + "\n")
