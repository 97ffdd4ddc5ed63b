"""The targets `body_work` and `page_work`: what is read costs what its bytes are worth, no more.

A fuzzer that only looks for exceptions finds no input that is slow. These repeat what the bytes
choose, and compare the CPU time and the memory of it with those of a quarter of it.
"""

import gc
import time
import tracemalloc
from contextlib import suppress

from epp.errors import MalformedRequest
from epp.model.endpoint import Endpoint
from epp.model.request import Api
from epp.protocol.bodies.body import Body
from epp.protocol.metrics.metrics_reader import MetricsReader
from epp.protocol.metrics.page import Page

SMALL, TIMES = 80 << 10, 4  # bodies up to 64 KiB need not be searched for too many values
NOISE_S = 0.03
FEW_BYTES = 1 << 20
"""Up to it objects may be built of a body; the smallest, `[],`, take seventy times their bytes."""
OBJECT_FACTOR = 80
FACTOR = 4
PIECE = 64 << 10

_BODIES = (
    (Api.COMPLETIONS, b'{"model":"m","prompt":[', b'""]}'),
    (Api.COMPLETIONS, b'{"model":"m","prompt":[', b"[1]]}"),
    (Api.COMPLETIONS, b'{"model":"m","prompt":"', b'"}'),
    (Api.COMPLETIONS, b'{"model":"m","prompt":"x","x":[', b"1]}"),
    (Api.EMBEDDINGS, b'{"model":"m","input":[', b'""]}'),
    (Api.RESPONSES, b'{"model":"m","input":[', b"{}]}"),
    (Api.CHAT, b'{"model":"m","messages":[', b"{}]}"),
    (Api.CHAT, b'{"model":"m","messages":[{"role":"\\u0061"},', b"{}]}"),
    (Api.CHAT, b'{"model":"m","messages":[{"role":"a","role":"b"},', b"{}]}"),
    (Api.CHAT, b'{"model":"m","messages":[],"messages":[', b"{}]}"),
    (Api.CHAT, b'{"model":"m","messages":[{"role":"user","content":[', b"{}]}]}"),
    (Api.CHAT, b'{"model":"m","messages":[{"role":"user","content":"', b'"}]}'),
    (Api.CHAT, b'{"model":"m","messages":[{}],"tools":[', b"{}]}"),
    (Api.CHAT, b'{"model":"m",', b'"messages":[]}'),
)
"""What is repeated goes between."""
_PARTS = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b" ", b"\n", b"a", b"9", b"-", b"e", b"."),
    *(b'"",', b'"a",', b"1,", b"99999,", b"null,", b"true,", b"{},", b"[],", b"[1],", b"[[]],"),
    *(b"\\u0061", b"\\ud800", b"\\n", b"\xc3\xa9", b"\xff", b"\x00"),
    *(b'"model":"m",', b'"role":"user",', b'"content":"",', b'"a":1,', b'"r\\u006fle":"a",'),
    *(b'{"role":"user","content":"hi"},', b'{"type":"text","text":"a"},', b'"prompt":', b'"x":'),
    b'{"type":"image_url","image_url":{"url":"x"}},',
)
_ITEMS = tuple(part for part in _PARTS if part.endswith(b","))
_NAMES = (
    *(
        b"",
        b"# TYPE ",
        b"vllm:num_requests_waiting",
        b"vllm:cache_config_info",
        b"sglang:token_usage",
    ),
    *(b"vllm:lora_requests_info", b"vllm:kv_cache_usage_perc", b"vllm:num_requests_running{"),
)
_LABELS = (
    *(b"{", b"}", b'"', b"\\", b"=", b",", b" ", b"\n", b"\r", b"\t", b"a", b"1", b".", b"e", b"-"),
    *(b'a="', b'a="b",', b'engine="0"', b'running_lora_adapters="', b"} 1\n", b" NaN\n", b"+Inf"),
    *(b'block_size="16",num_gpu_blocks="9"', b"vllm:num_requests_waiting", b"\xff", b"\x00"),
)


def _some(choices, parts):
    return b"".join(choices.one_of(parts) for _ in range(choices.below(5)))


def _made(opening, item, closing):
    """An input of any size."""
    return lambda size: opening + item * (size // len(item)) + closing


def _cost(read, data):
    best = float("inf")
    gc.disable()  # a collection costs what all of the tests' objects cost
    try:
        for _ in range(3):
            began = time.thread_time()
            read(data)
            best = min(best, time.thread_time() - began)
    finally:
        gc.enable()
    return best


def _memory(read, data):
    tracemalloc.start()  # what was there before is not counted
    try:
        read(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def cost_of_a_byte_is_constant(read, make):
    """Four times the input costs at most eight times as much."""
    small, large = make(SMALL), make(TIMES * SMALL)
    once, more = _cost(read, small), _cost(read, large)
    assert more <= 2 * TIMES * once + NOISE_S, (once, more, small[:200])


def memory_is_bounded(read, data):
    """Of what is read no more is made than `FACTOR` times its bytes, or those of a short one."""
    most = _memory(read, data)
    bound = OBJECT_FACTOR if len(data) <= FEW_BYTES else FACTOR
    assert most <= bound * len(data) + FEW_BYTES, (most, len(data), data[:200])


def body(choices):
    """What `Body` does with a body, in pieces as they come."""
    api, opening, closing = choices.one_of(_BODIES)
    item = choices.one_of(_ITEMS)
    if choices.below(4) == 0:
        opening += _some(choices, _PARTS)
        item, closing = _some(choices, _PARTS) or b",", _some(choices, _PARTS)
    return lambda data: _read_body(api, data), _made(opening, item, closing)


def _read_body(api, data):
    read = Body(api)
    for at in range(0, len(data), PIECE):
        read.feed(data[at : at + PIECE])
    with suppress(MalformedRequest):
        read.parse()


def page(choices):
    """What is read of a page, by an endpoint that has read none before."""
    opening = choices.one_of(_NAMES) + _some(choices, _LABELS)
    item = choices.one_of((b"", *_NAMES)) + _some(choices, _LABELS) or b" "
    return _read_page, _made(opening, item, _some(choices, _LABELS))


def _read_page(data):
    MetricsReader(Endpoint("default", "a", "10.0.0.1", 8000)).read(Page(data), at=1.0)
