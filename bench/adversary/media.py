"""Attacks by the media of prompts of token ids: what they ask to be computed, many times over."""

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from bench.adversary.attack import Attack
from bench.adversary.bodies import MB, strike
from tests.adapters.ext_proc_peer import BUFFERED, DUPLEX

GENERATE = "/inference/v1/generate"
_HASH = "0123456789abcdef"


def generate(ids: int, hashes: int, places: Sequence[tuple[int, int]], modalities: int) -> bytes:
    """A request with this many ids, modalities, hashes of each, and `(offset, length)` of each."""
    names = [f"m{number}" for number in range(modalities)]
    stands = [{"offset": offset, "length": length} for offset, length in places]
    features = {
        "mm_hashes": dict.fromkeys(names, [_HASH] * hashes),
        "mm_placeholders": dict.fromkeys(names, stands),
    }
    return msgspec.json.encode({"model": "m", "token_ids": [1] * ids, "features": features})


def _bodies() -> dict[str, bytes]:
    return {
        "whole-again": generate(50_000, 250, [(0, 50_000)] * 250, 12),
        "whole-of-millions": generate(1_000_000, 250, [(0, 1_000_000)] * 250, 40),
        "modalities": generate(100_000, 1, [(0, 100_000)], 50_000),
        "one-token-each": generate(200_000, 200_000, [(at, 1) for at in range(200_000)], 1),
        "backwards": generate(50_000, 250, [(50_000 - at, at) for at in range(250)], 100),
        "beyond": generate(1_000, 250, [(1 << 62, 1 << 62), (-1, 5), (5, -1)] * 80, 20),
        "hashes-alone": generate(10, 61 * MB // (len(_HASH) + 3), [(0, 10)], 1),
        "places-alone": generate(10, 1, [(0, 10)] * (61 * MB // 27), 1),
    }


def attacks() -> Iterator[Attack]:
    """Each whole and in pieces."""
    for name, data in _bodies().items():
        for how, mode in (("pieces", DUPLEX), ("whole", BUFFERED)):
            made = partial(strike, path=GENERATE, data=data, mode=mode)
            yield Attack(name=f"media-{name}-{how}", group="bodies", strike=made, seconds=30)
