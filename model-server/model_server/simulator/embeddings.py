"""The wording of /v1/embeddings: unit vectors that depend on the prompt alone."""

import base64
import math
import random
import struct
from typing import Any

from model_server.simulator.completions import Head
from model_server.simulator.scheduler import Request

_DIMENSIONS = 64


def whole_embeddings(head: Head, *, base64: bool) -> dict[str, Any]:
    """Word the body, one vector for each prompt."""
    data = [
        {
            "index": index,
            "object": "embedding",
            "embedding": _packed(vector) if base64 else vector,
        }
        for index, vector in enumerate(map(_vector, head.requests))
    ]
    return head.fields("list") | {"data": data, "usage": head.usage()}


def _vector(request: Request) -> list[float]:
    rng = random.Random(request.tokens.tobytes())
    values = [rng.gauss(0.0, 1.0) for _ in range(_DIMENSIONS)]
    norm = math.sqrt(sum(value * value for value in values))
    return [value / norm for value in values]


def _packed(vector: list[float]) -> str:
    """Little-endian float32 in base64, as OpenAI's client asks for by default."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
