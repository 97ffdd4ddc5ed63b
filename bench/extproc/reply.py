"""What a canned model server says: a response, a token stream, a page of metrics.

This file knows no sockets.
"""

import json
from collections.abc import Sequence

import msgspec

from bench.extproc.workload import MODEL

BLOCK_SIZE = 16
NUM_BLOCKS = 35_000
COMPLETION_TOKENS = 24


class Ask(msgspec.Struct, frozen=True):
    """The `x-bench` header: tokens of the prompt, its head, tokens of that head, the response."""

    prompt_tokens: int
    head: int
    head_tokens: int
    chunks: int
    interval: float

    @classmethod
    def parse(cls, head: bytes) -> "Ask":
        """Read it from a request's head; a request without it gets a short JSON response."""
        start = head.find(b"x-bench: ")
        if start < 0:
            return cls(0, 0, 0, 0, 0.0)
        prompt, number, shared, chunks, interval = head[start + 9 :].split(b"\r\n", 1)[0].split()
        return cls(int(prompt), int(number), int(shared), int(chunks), float(interval) / 1e3)


class PromptCache:
    """Which heads an engine of `NUM_BLOCKS` blocks still holds: LRU by tokens written since."""

    def __init__(self) -> None:
        self._written = 0
        self._last: dict[int, int] = {}

    def admit(self, ask: Ask) -> int:
        """Take a prompt in; the tokens of it that were cached."""
        last = self._last.get(ask.head)
        self._written += ask.prompt_tokens
        self._last[ask.head] = self._written
        if last is None or self._written - last > NUM_BLOCKS * BLOCK_SIZE:
            return 0
        return ask.head_tokens // BLOCK_SIZE * BLOCK_SIZE


def json_body(ask: Ask, cached: int) -> bytes:
    """A whole `chat.completion`."""
    message = {"role": "assistant", "content": "token " * COMPLETION_TOKENS}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = _usage(ask, cached, COMPLETION_TOKENS)
    return _completion("chat.completion", choices=[choice], usage=usage)


def json_response(ask: Ask, cached: int) -> bytes:
    """A whole `chat.completion`, headers included."""
    body = json_body(ask, cached)
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        % len(body)
        + body
    )


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def _event(delta: dict[str, str], finish: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: %b\n\n" % _completion("chat.completion.chunk", choices=[choice])


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _completion(kind: str, **more: object) -> bytes:
    said = {"id": "chatcmpl-bench", "object": kind, "created": 1_800_000_000, "model": MODEL}
    return json.dumps(said | more, separators=(",", ":")).encode()


_TOKEN = _event({"content": " token"}, None)
TOKEN = _http_chunk(_TOKEN)


def event_stream(ask: Ask, cached: int) -> list[bytes]:
    """A whole token stream, event by event; the usage and the end mark are in the last."""
    return [*(ask.chunks - 1) * [_TOKEN], _last_event(ask, cached)]


def stream_end(ask: Ask, cached: int) -> bytes:
    """The last write of a stream: a token, the usage, the end marks."""
    return _http_chunk(_last_event(ask, cached)) + b"0\r\n\r\n"


def _last_event(ask: Ask, cached: int) -> bytes:
    used = _usage(ask, cached, ask.chunks)
    usage = _completion("chat.completion.chunk", choices=[], usage=used)
    return _event({"content": " token"}, "stop") + b"data: %b\n\ndata: [DONE]\n\n" % usage


def _usage(ask: Ask, cached: int, generated: int) -> dict[str, object]:
    return {
        "prompt_tokens": ask.prompt_tokens,
        "total_tokens": ask.prompt_tokens + generated,
        "completion_tokens": generated,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


_HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_prefill_kv_computed_tokens",
    "request_max_num_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "iteration_tokens_total",
)
_COUNTERS = (
    "num_preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "external_prefix_cache_queries_total",
    "external_prefix_cache_hits_total",
    "prompt_tokens_cached_total",
)
_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20)


class MetricsPage:
    """A page of vLLM's families (sizes and names as its server prints them)."""

    def __init__(self) -> None:
        labels = f'engine="0",model_name="{MODEL}"'
        self._rest = "".join(_static_families(labels)).encode()
        self._gauges = (
            f"# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
            f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{{labels}}} %d\n"
            f"# HELP vllm:num_requests_waiting Number of requests waiting to be processed.\n"
            f"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{{{labels}}} 0.0\n"
            f"# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.\n"
            f"# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{{{labels}}} 0.25\n"
        ).encode()

    def response(self, running: int) -> bytes:
        """The page, headers included."""
        body = self._gauges % running + self._rest
        kind = b"text/plain; version=1.0.0; charset=utf-8"
        return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (
            kind,
            len(body),
            body,
        )


def _static_families(labels: str) -> Sequence[str]:
    info = (
        "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n"
        "# TYPE vllm:cache_config_info gauge\n"
        f'vllm:cache_config_info{{block_size="{BLOCK_SIZE}",cache_dtype="auto",engine="0",'
        f'enable_prefix_caching="True",gpu_memory_utilization="0.92",'
        f'num_gpu_blocks="{NUM_BLOCKS}",num_gpu_blocks_override="None",'
        'prefix_caching_hash_algo="sha256"} 1.0\n'
        "# HELP process_start_time_seconds Start time of the process since unix epoch.\n"
        "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.8e+09\n"
    )
    lines = [info]
    for name in _COUNTERS:
        lines.append(f"# HELP vllm:{name} Total.\n# TYPE vllm:{name} counter\n")
        lines.append(f"vllm:{name}{{{labels}}} 123456.0\n")
    for name in _HISTOGRAMS:
        lines.append(f"# HELP vllm:{name} Histogram.\n# TYPE vllm:{name} histogram\n")
        lines.extend(f'vllm:{name}_bucket{{{labels},le="{b}"}} 1234.0\n' for b in _BOUNDS)
        lines.append(f'vllm:{name}_bucket{{{labels},le="+Inf"}} 1234.0\n')
        lines.append(f"vllm:{name}_count{{{labels}}} 1234.0\nvllm:{name}_sum{{{labels}}} 567.8\n")
    return lines
