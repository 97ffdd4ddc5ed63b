"""Model servers' metrics pages as `Load`s. This file knows no transport and no pod.

A page of vLLM holds some seventy families in 20 to 60 KB, of which seven matter here, and it is
read once a second for every pod: the few lines wanted are found by substring search and nothing
else on the page is looked at. Names and labels of the engines are those that the incumbent maps.
"""

import functools
import math
import re
from collections.abc import Iterable, Mapping

import msgspec

from epp.model.endpoint import UNREPORTED, Load

ENGINE_LABELS = ("llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type")
"""Pod labels that name the engine, the current one first."""


class Metric(msgspec.Struct, frozen=True):
    """Where a number stands: the value of the family's samples, or of their label `label`.

    `where`, given, keeps only the samples that carry this label pair.
    """

    family: bytes
    label: bytes = b""
    where: tuple[bytes, bytes] | None = None


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """The names that one kind of model server gives to the parts of a `Load`."""

    name: str
    sign: bytes
    """What some line of every page of this engine starts with, and no other engine's page has."""
    waiting: Metric
    running: Metric
    kv_usage: Metric | None = None
    block_size: Metric | None = None
    num_blocks: Metric | None = None
    adapters: bytes = b""


VLLM = Engine(
    name="vllm",
    sign=b"vllm:",
    waiting=Metric(b"vllm:num_requests_waiting"),
    running=Metric(b"vllm:num_requests_running"),
    kv_usage=Metric(b"vllm:kv_cache_usage_perc"),
    block_size=Metric(b"vllm:cache_config_info", label=b"block_size"),
    num_blocks=Metric(b"vllm:cache_config_info", label=b"num_gpu_blocks"),
    adapters=b"vllm:lora_requests_info",
)
SGLANG = Engine(
    name="sglang",
    sign=b"sglang:",
    waiting=Metric(b"sglang:num_queue_reqs"),
    running=Metric(b"sglang:num_running_reqs"),
    kv_usage=Metric(b"sglang:token_usage"),
    block_size=Metric(b"sglang:cache_config_info", label=b"page_size"),
    num_blocks=Metric(b"sglang:cache_config_info", label=b"num_pages"),
)
TRTLLM_SERVE = Engine(
    name="trtllm-serve",
    sign=b"trtllm_",
    waiting=Metric(b"trtllm_num_requests_waiting"),
    running=Metric(b"trtllm_num_requests_running"),
    kv_usage=Metric(b"trtllm_kv_cache_utilization"),
    block_size=Metric(b"trtllm_kv_cache_tokens_per_block"),
    num_blocks=Metric(b"trtllm_kv_cache_max_blocks"),
)
_TRITON_REQUESTS = b"nv_trt_llm_request_metrics"
_TRITON_BLOCKS = b"nv_trt_llm_kv_cache_block_metrics"
TRITON_TRTLLM = Engine(
    name="triton-tensorrt-llm",
    sign=b"nv_trt_llm_",
    waiting=Metric(_TRITON_REQUESTS, where=(b"request_type", b"waiting")),
    running=Metric(_TRITON_REQUESTS, where=(b"request_type", b"scheduled")),
    kv_usage=Metric(_TRITON_BLOCKS, where=(b"kv_cache_block_type", b"fraction")),
    block_size=Metric(_TRITON_BLOCKS, where=(b"kv_cache_block_type", b"tokens_per")),
    num_blocks=Metric(_TRITON_BLOCKS, where=(b"kv_cache_block_type", b"max")),
)
TRITON = Engine(
    name="triton",
    sign=b"nv_inference_",
    waiting=Metric(b"nv_inference_pending_request_count"),
    running=Metric(b"nv_inference_exec_count"),
)
ENGINES: Mapping[str, Engine] = {
    engine.name: engine for engine in (VLLM, SGLANG, TRTLLM_SERVE, TRITON_TRTLLM, TRITON)
}
"""Every engine by the value of its pod label; a page is matched against them in this order."""

_STARTED = Metric(b"process_start_time_seconds")
_QUOTED = rb'(?:[^"\\\n]++|\\.)*+'
_LABEL = re.compile(rb'([A-Za-z_]\w*+)\s*+=\s*+"(' + _QUOTED + rb')"')
_REST = re.compile(rb'(?:\{((?:[^"}\n]++|"(?:[^"\\\n]++|\\.)*+")*+)\})?[ \t]+([^ \t\r\n]+)[^\n]*\n')
_ESCAPE = re.compile(rb"\\(.)")
_AFTER_NAME = frozenset(b"{ \t")

Sample = tuple[bytes, float]
"""Raw text between the braces (empty without any), and the value."""


def engine_of(labels: Mapping[str, str], page: bytes) -> Engine | None:
    """Tell the engine of a pod: from its labels, else from the names on its metrics page.

    None where neither says: the page then holds nothing that can be read.
    """
    for label in ENGINE_LABELS:
        if labels.get(label) in ENGINES:
            return ENGINES[labels[label]]
    signs = (engine for engine in ENGINES.values() if _has_line(page, engine.sign))
    return next(signs, None)


def parse_metrics(
    page: bytes, at: float, previous: Load = UNREPORTED, engine: Engine | None = None
) -> Load:
    """Read the `Load` off a metrics page scraped at `at`; `engine` None means: tell by the page.

    Never raises. What the page does not hold as a finite, non-negative number (family missing,
    NaN, ±Inf, garbage, a last line without its newline) keeps the value of `previous`.
    A server that runs several engines (data parallelism) is one endpoint: waiting, running and
    num_blocks are summed; kv_usage is their mean, which for pools of one size is the used share
    of the sum, where the maximum would call the server full while its other engines are empty.
    """
    engine = engine or engine_of({}, page)
    if engine is None:
        return msgspec.structs.replace(previous, at=at)
    families: dict[bytes, list[Sample]] = {}

    def numbers(metric: Metric | None) -> list[float]:
        if metric is None:
            return []
        if metric.family not in families:
            families[metric.family] = _samples(page, metric.family)
        return list(_numbers(metric, families[metric.family]))

    waiting, running = numbers(engine.waiting), numbers(engine.running)
    usage, sizes = numbers(engine.kv_usage), numbers(engine.block_size)
    blocks, started = numbers(engine.num_blocks), numbers(_STARTED)
    running_adapters, waiting_adapters, max_adapters = _adapters(page, engine, previous)
    return Load(
        waiting=sum(waiting) if waiting else previous.waiting,
        running=sum(running) if running else previous.running,
        kv_usage=min(1.0, sum(usage) / len(usage)) if usage else previous.kv_usage,
        running_adapters=running_adapters,
        waiting_adapters=waiting_adapters,
        max_adapters=max_adapters,
        block_size=int(sizes[0]) or previous.block_size if sizes else previous.block_size,
        num_blocks=int(sum(blocks)) or previous.num_blocks if blocks else previous.num_blocks,
        started_at=min(started) if started else previous.started_at,
        at=at,
    )


def _has_line(page: bytes, start: bytes) -> bool:
    return page.startswith(start) or b"\n" + start in page


def _samples(page: bytes, family: bytes) -> list[Sample]:
    """Collect a family's samples, which the format keeps together, up to the first bad line."""
    found: list[Sample] = []
    start = _first_line(page, family)
    while start >= 0:
        line = _REST.match(page, start + len(family))
        if line is None:
            break
        found.append((line[1] or b"", _float(line[2])))
        start = line.end() if _starts(page, line.end(), family) else -1
    return found


def _first_line(page: bytes, family: bytes) -> int:
    """Find where the family's first sample starts; -1 where it has none."""
    if _starts(page, 0, family):
        return 0
    needle = b"\n" + family
    start = page.find(needle)
    while start >= 0 and not _starts(page, start + 1, family):
        start = page.find(needle, start + 1)
    return start + 1 if start >= 0 else -1


def _starts(page: bytes, at: int, family: bytes) -> bool:
    """Whether a sample of exactly this family (not of one it is a prefix of) starts at `at`."""
    end = at + len(family)
    return page.startswith(family, at) and end < len(page) and page[end] in _AFTER_NAME


def _numbers(metric: Metric, samples: Iterable[Sample]) -> Iterable[float]:
    for labels, value in samples:
        if metric.where and _label(labels, metric.where[0]) != metric.where[1]:
            continue
        number = _float(_label(labels, metric.label)) if metric.label else value
        if 0 <= number < math.inf:
            yield number


@functools.cache
def _label_pattern(name: bytes) -> re.Pattern[bytes]:
    """Match from the first label on, so that no text inside a value is taken for a label."""
    others = rb'(?:[A-Za-z_]\w*+\s*+=\s*+"' + _QUOTED + rb'"\s*+,\s*+)*?'
    return re.compile(others + re.escape(name) + rb'\s*+=\s*+"(' + _QUOTED + rb')"')


def _label(labels: bytes, name: bytes) -> bytes:
    """Read one label's value; empty where the sample has no such label."""
    found = _label_pattern(name).match(labels)
    return _unescape(found[1]) if found else b""


def _adapters(
    page: bytes, engine: Engine, previous: Load
) -> tuple[frozenset[str], frozenset[str], int]:
    """Read running, waiting and maximum number of LoRA adapters.

    vLLM leaves the series of past states on the page and gives each its Unix time as value: the
    newest of each engine counts.
    """
    newest: dict[bytes, tuple[float, dict[bytes, bytes]]] = {}
    for raw, value in _samples(page, engine.adapters) if engine.adapters else ():
        labels = _labels(raw)
        number = labels.get(b"engine", b"")
        if math.isfinite(value) and value >= newest.get(number, (-math.inf,))[0]:
            newest[number] = (value, labels)
    if not newest:
        return previous.running_adapters, previous.waiting_adapters, previous.max_adapters
    states = [labels for _, labels in newest.values()]
    limits = [_float(labels.get(b"max_lora", b"")) for labels in states]
    return (
        _names(states, b"running_lora_adapters"),
        _names(states, b"waiting_lora_adapters"),
        int(max((limit for limit in limits if 0 <= limit < math.inf), default=0)),
    )


def _names(states: Iterable[Mapping[bytes, bytes]], label: bytes) -> frozenset[str]:
    joined = (state.get(label, b"").decode("utf-8", "replace").split(",") for state in states)
    return frozenset(name.strip() for names in joined for name in names if name.strip())


def _labels(raw: bytes) -> dict[bytes, bytes]:
    return {name: _unescape(value) for name, value in _LABEL.findall(raw)}


def _unescape(value: bytes) -> bytes:
    if b"\\" not in value:
        return value
    return _ESCAPE.sub(lambda match: b"\n" if match[1] == b"n" else match[1], value)


def _float(text: bytes) -> float:
    """Read a number of the exposition format; NaN where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
