"""The fixed mix: what is played, and how much of it."""

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import yaml

from bench.exchange.play import Phase, Play, Read
from bench.exchange.tape import Connection, Requests, overlapping
from bench.extproc.reply import MetricsPage, PromptCache
from bench.extproc.workload import Shape

SIZES = {"220k": 220 << 10, "20k": 20 << 10, "2k": 2 << 10}
"""The largest first: it fills the pods' caches, from which blocks are evicted from then on."""
CHUNKS = {"json": 0, "stream": 24}
ENDPOINTS, MANY = 10, 100
NUMBER = 60
"""Requests of each shape that are counted."""
_PORT = 9002
_FILLING, _WARMING = 110, 32
_LARGE = 64 << 10
"""Bodies above that are played a quarter as often."""
_STREAMS, _CHUNKS = 8, 50
_IDLE = 4
"""Seconds of doing nothing: each polls every endpoint once."""


def play(folder: Path, number: int, classes: int = 0) -> Play:
    """Return the mix, `number` requests of each shape, as played with the files in a folder.

    `classes` are made first.
    """
    endpoints, secret = folder / "endpoints.yaml", folder / "secret"
    secret.write_text("bench", encoding="utf-8")
    return Play(
        arguments=(
            *("serve", "--endpoints-file", str(endpoints), "--bind-address", "127.0.0.1"),
            *("--secure-serving=false", "--transport=native", "--log-format=json"),
            *("--hash-secret-file", str(secret)),
        ),
        endpoints_file=str(endpoints),
        endpoints=_endpoints(ENDPOINTS),
        port=_PORT,
        page=MetricsPage().response(0),
        phases=tuple(_phases(number)),
        classes=classes,
    )


def _endpoints(number: int) -> str:
    listed = [
        {"name": f"pod-{each}", "namespace": "bench", "address": f"10.1.0.{each}", "port": 8000}
        for each in range(number)
    ]
    return yaml.safe_dump({"endpoints": listed})


def _phases(number: int) -> Iterator[Phase]:
    connection = Connection()
    caches = [PromptCache() for _ in range(ENDPOINTS)]
    yield Phase(name="preface", reads=(connection.preface(),))
    filling = _FILLING
    for size, length in SIZES.items():
        for kind, chunks in CHUNKS.items():
            source = Requests(connection, Shape(size=length, chunks=chunks), caches)
            yield Phase(name="", reads=tuple(overlapping(source, filling)))
            filling = _WARMING
            times = number if length < _LARGE else number // 4
            counted = tuple(overlapping(source, times))
            yield Phase(name=f"{kind}_{size}", parts=times, reads=counted)
    shape = Shape(size=SIZES["2k"], chunks=_CHUNKS + 2)
    yield from _chunks(Requests(connection, shape, caches))
    yield Phase(name=f"idle_{ENDPOINTS}", parts=_IDLE, seconds=_IDLE)
    yield Phase(name=f"idle_{MANY}", parts=_IDLE, seconds=_IDLE, endpoints=_endpoints(MANY))


def _chunks(source: Requests) -> Iterator[Phase]:
    """Streams side by side: all that comes before their second chunk, 50 of each, the rest."""
    exchanges = list(islice(source, _STREAMS))
    begun = 2  # the response's headers, and the first chunk
    opening = chain.from_iterable((*each.request, *each.response[:begun]) for each in exchanges)
    yield Phase(name="", reads=tuple(opening))
    middles = [each.response[begun : begun + _CHUNKS] for each in exchanges]
    passing: tuple[Read, ...] = tuple(chain.from_iterable(zip(*middles, strict=True)))
    yield Phase(name="chunk", parts=len(passing), reads=passing)
    ends = chain.from_iterable(each.response[begun + _CHUNKS :] for each in exchanges)
    yield Phase(name="", reads=tuple(ends))
