"""Chat completions of a given size: unique prompts that share 32 heads, the same work whoever
serves it.
"""

import random
from collections.abc import Iterator
from itertools import count

import msgspec

HEADS = 32
HEAD_SHARE = 0.25
BYTES_PER_TOKEN = 4
MODEL = "bench-model"

_PROSE = (
    "attention block cache decode engine fleet gradient head index journal kernel latency "
    "memory network oracle prefix queue request scheduler token update vector weight the of and "
    "to in is that for with as on by an are from this which at be"
)
_WORDS = tuple(_PROSE.split())
_WORDS_PER_LINE = 14


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for.

    `size` is the body in bytes. `chunks` 0 asks for one JSON response, N for an SSE response of N
    writes, `interval_ms` apart.
    """

    size: int
    chunks: int = 0
    interval_ms: float = 0.0


def prose(length: int, seed: int) -> bytes:
    r"""Words in lines as they stand in a JSON string (a line ends in `\n`): `length` bytes."""
    rng = random.Random(seed)
    text = bytearray()
    while len(text) < length:
        text += " ".join(rng.choices(_WORDS, k=_WORDS_PER_LINE)).encode() + b"\\n"
    del text[length:]
    if text.endswith(b"\\"):
        text[-1:] = b"."
    return bytes(text)


def requests(shape: Shape, *, host: str, salt: str) -> Iterator[tuple[bytes, ...]]:
    """HTTP/1.1 requests of that shape without end, each as buffers to write one after another.

    Every 32nd request shares a head (a quarter of the prompt); behind it stands a number that no
    other request has, so that nothing from there on is ever seen twice. `salt` (of a fixed
    length) keeps several generators apart.
    """
    opening = f'{{"model":"{MODEL}","messages":[{{"role":"system","content":"'.encode()
    between = b'"},{"role":"user","content":"'
    stream = b"true" if shape.chunks else b"false"
    closing = b'"}],"max_tokens":256,"temperature":0,"stream":' + stream + b"}"
    width = len(salt) + 12
    room = shape.size - len(opening) - len(between) - len(closing) - width
    if room < HEADS:
        raise ValueError(f"a body of {shape.size} bytes has no room for a prompt")
    head_length = int(room * HEAD_SHARE)
    tail = prose(room - head_length, seed=HEADS) + closing
    heads = tuple(
        _http_head(shape, host, head, head_length)
        + opening
        + prose(head_length, seed=head)
        + between
        for head in range(HEADS)
    )
    for number in count():
        yield heads[number % HEADS], f"{salt}-{number:010d} ".encode(), tail


def _http_head(shape: Shape, host: str, head: int, head_length: int) -> bytes:
    """The request line and headers. `x-bench` tells the canned backend what to answer."""
    prompt, shared = shape.size // BYTES_PER_TOKEN, head_length // BYTES_PER_TOKEN
    return (
        "POST /v1/chat/completions HTTP/1.1\r\n"
        f"host: {host}\r\n"
        "user-agent: warmpick-bench\r\n"
        "accept: */*\r\n"
        "content-type: application/json\r\n"
        f"content-length: {shape.size}\r\n"
        f"x-bench: {prompt} {head} {shared} {shape.chunks} {shape.interval_ms:g}\r\n"
        "\r\n"
    ).encode()
