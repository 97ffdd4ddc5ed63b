"""How fast hashes are made, chains matched and changes applied. A process of its own.

`python -m bench.index.speed`, with WARMPICK_NATIVE=off for the sources; prints one JSON object.
"""

import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle

import msgspec

from bench.index.pooled import BLOCK, Pooled, chain
from epp.model.prefix_index.index import PrefixIndex
from epp.model.prompts.hashing import BlockHash, text_chain

SIZES_KB = (2, 20, 220, 400)
FLEETS = (10, 100, 1000)
ENDPOINTS, BLOCKS, CHAIN = 32, 10_240, 512
_DEPTHS = (512,) * 10 + (256,) * 10 + (128,) * 20 + (0,) * 10
"""Blocks that an endpoint holds of each of fifty conversations: 10,240 together."""
_CONVERSATIONS = 1280
"""Those that come and go: an endpoint holds one in 64 of them."""
_MESSAGES = 20
_SECONDS = 0.4


def measure() -> dict[str, float]:
    """Measure everything, in CPU seconds of this thread."""
    found = {f"hash_us_{size}kb": _hash_us(size * 1000) for size in SIZES_KB}
    index = _fleet(ENDPOINTS)
    found["matches_per_s"] = _matches(index)
    for slot in range(ENDPOINTS):
        index.mark(slot, closed=False)  # type: ignore[arg-type]  # as the index gave it
    found["walks_per_s"] = _matches(index)
    for endpoints in FLEETS:
        found[f"matches_per_s_{endpoints}"] = _matches(_fleet(endpoints))
    found["blocks_applied_per_s"] = _applied()
    found["blocks_served_per_s"] = _served()
    return found


def per_call(call: Callable[[], object]) -> float:
    """Return the CPU seconds that a call takes, over a stretch of calls."""
    call()
    count, spent = 0, 0.0
    while spent < _SECONDS:
        batch = max(1, count)
        started = time.thread_time()
        for _ in range(batch):
            call()
        spent += time.thread_time() - started
        count += batch
    return spent / count


def _hash_us(size: int) -> float:
    text = random.Random(size).randbytes(size)
    marks = tuple(size * (turn + 1) // _MESSAGES for turn in range(_MESSAGES))
    return per_call(lambda: text_chain(7, text, marks)) * 1e6


def _fleet(endpoints: int) -> PrefixIndex:
    """Fill an index: every endpoint holds conversations to several depths."""
    index, rng = PrefixIndex(), random.Random(1)
    conversations = [chain(number, CHAIN) for number in range(len(_DEPTHS))]
    for _ in range(endpoints):
        slot = index.add_slot()
        index.mark(slot, closed=True)
        for conversation, depth in zip(
            conversations, rng.sample(_DEPTHS, len(_DEPTHS)), strict=True
        ):
            index.add(slot, conversation[:depth])
    if index.held != endpoints * BLOCKS:
        raise ValueError(f"{index.held} blocks are held")
    return index


def _matches(index: PrefixIndex) -> float:
    asked = cycle([chain(number, CHAIN) for number in range(len(_DEPTHS))])
    return 1 / per_call(lambda: index.match(next(asked)))


def _turns() -> Iterator[tuple[int, Sequence[BlockHash]]]:
    """Give every endpoint in its turn another conversation, without end."""
    rng = random.Random(2)
    conversations = [chain(number, CHAIN) for number in range(_CONVERSATIONS)]
    orders = [cycle(rng.sample(conversations, _CONVERSATIONS)) for _ in range(ENDPOINTS)]
    while True:
        for endpoint, order in enumerate(orders):
            yield endpoint, next(order)


def _applied() -> float:
    """Let full endpoints lose one conversation for every one that comes: blocks a second."""
    index, turns = PrefixIndex(), _turns()
    slots = [index.add_slot() for _ in range(ENDPOINTS)]
    held: list[deque[Sequence[BlockHash]]] = [deque() for _ in slots]
    for _ in range(ENDPOINTS * BLOCKS // CHAIN):
        endpoint, comes = next(turns)
        index.add(slots[endpoint], comes)
        held[endpoint].append(comes)

    def change() -> None:
        endpoint, comes = next(turns)
        index.remove(slots[endpoint], held[endpoint].popleft())
        index.add(slots[endpoint], comes)
        held[endpoint].append(comes)

    return 2 * CHAIN / per_call(change)


def _served() -> float:
    """Let prompts into full pools, and the index follow: blocks of prompts a second."""
    index, turns, sizes = PrefixIndex(), _turns(), [BLOCK] * CHAIN
    pools = [Pooled(index, BLOCKS) for _ in range(ENDPOINTS)]

    def serve() -> None:
        endpoint, comes = next(turns)
        pools[endpoint].serve(comes, sizes)

    for _ in range(ENDPOINTS * BLOCKS // CHAIN):
        serve()
    return CHAIN / per_call(serve)


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(measure()).decode() + "\n")
