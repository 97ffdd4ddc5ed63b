"""Dynamo's KV router in process: `SelectionService`, fed with KV events as workers send them.

It answers what it would pick of prompts as token ids, and needs neither etcd nor NATS.
"""

import asyncio
import json
import struct
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import zmq
from dynamo._core import SelectionService

WORKERS = 4
MODEL = "m"
BLOCK = 16
_SUBSCRIBED_SECONDS = 1.5
_POLL_SECONDS, _POLLS = 0.002, 2000


class _Events:
    """What a worker publishes: the blocks of a prompt that it has not had."""

    def __init__(self, context: "zmq.Context[Any]") -> None:
        self._socket = context.socket(zmq.PUB)
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.address = f"tcp://127.0.0.1:{port}"
        self._known: set[int] = set()
        self._number = 0

    def store(self, tokens: list[int]) -> int:
        """Publish them; return how many full blocks the prompt has."""
        hashes, last = [], 0
        for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
            last = hash((last, *tokens[at : at + BLOCK])) & (1 << 63) - 1
            hashes.append(last)
        known = sum(each in self._known for each in hashes)
        if known < len(hashes):
            self._known.update(hashes)
            parent = hashes[known - 1] if known else None
            fresh = tokens[known * BLOCK : len(hashes) * BLOCK]
            event = ["BlockStored", hashes[known:], parent, fresh, BLOCK, None]
            body = msgspec.msgpack.encode([time.time(), [event], 0])
            self._socket.send_multipart([b"", struct.pack(">q", self._number), body])
            self._number += 1
        return len(hashes)


async def picks(steps: list[dict[str, Any]]) -> list[int]:
    service, context = SelectionService(indexer_threads=1), zmq.Context()
    events = [_Events(context) for _ in range(WORKERS)]
    for number, each in enumerate(events):
        worker = {
            "worker_id": number,
            "model_name": MODEL,
            "block_size": BLOCK,
            "endpoint": f"http://127.0.0.1:{9000 + number}",
            "kv_events_endpoints": {0: each.address},
            "max_num_batched_tokens": 8192,
            "total_kv_blocks": 1_000_000,
        }
        await service.upsert_worker(worker)
    await asyncio.sleep(_SUBSCRIBED_SECONDS)
    picked = []
    for number, step in enumerate(steps):
        for each in step["begun"]:
            await service.prefill_complete(f"q{each}")
        for each in step["ended"]:
            await service.free_reservation(f"q{each}")
        asked = {"model_name": MODEL, "token_ids": step["tokens"]}
        chosen = await service.select_and_reserve({**asked, "selection_id": f"q{number}"})
        worker_id = chosen["worker_id"]
        await _known(service, asked, worker_id, events[worker_id].store(step["tokens"]))
        picked.append(worker_id)
    return picked


async def _known(
    service: SelectionService, asked: dict[str, Any], worker: int, blocks: int
) -> None:
    """Wait until the service has heard that a worker has a prompt."""
    for _ in range(_POLLS if blocks else 0):
        scores = await service.overlap_scores(asked)
        listed = scores.get("scores", scores.get("workers", []))
        if any(each.get("worker_id") == worker and _most(each) >= blocks for each in listed):
            return
        await asyncio.sleep(_POLL_SECONDS)
    if blocks:
        raise TimeoutError(f"the events of worker {worker} are not received")


def _most(scores: dict[str, Any]) -> float:
    """Return the largest count of a worker's scores, whose names differ by tier."""
    counts = (value for key, value in scores.items() if key != "worker_id")
    return max((each for each in counts if isinstance(each, int | float)), default=0)


if __name__ == "__main__":
    Path(sys.argv[-1]).write_text(json.dumps(asyncio.run(picks(json.load(sys.stdin)))))
