"""Names and labels of the metrics of each kind of model server.

They are the ones that llm-d-router maps, others that pages of vLLM 0.32 and SGLang 0.5 have, and
those of servers that llm-d-router does not know.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

from epp.model.endpoint import VLLM as VLLM_NAME

ENGINE_LABELS = ("llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type")
"""Pod labels that name the engine; the first one is current, the others deprecated."""


MAX_VALUE = 1e15
"""Larger values of any metric are ignored: the counters of years are smaller."""
_MAX_REQUESTS = 1e9


class Metric(msgspec.Struct, frozen=True, eq=False):
    """A number on a page: the value of a family's samples, or of their label `label`.

    Only samples with all pairs of label and value of `where` count. Values beyond `least` and
    `most` are ignored.
    """

    family: bytes
    label: bytes = b""
    where: tuple[tuple[bytes, bytes], ...] = ()
    rare: bool = False
    """Whether some pages of this engine lack the family."""
    most: float = MAX_VALUE
    least: float = 0.0

    def __str__(self) -> str:
        pairs = self.label or b",".join(label + b"=" + value for label, value in self.where)
        return (self.family + (b"{" + pairs + b"}" if pairs else b"")).decode()


class EngineMetrics(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The metrics of one kind of model server from which a `Load` is read.

    Of a tuple of metrics the first one on the page counts.
    """

    name: str
    """The engine's name."""
    signs: tuple[bytes, ...]
    """Prefixes: some line of each page of this engine has one, and none of another engine's."""
    foreign: bytes = b""
    """A prefix of lines of another engine whose pages have signs of this one; may be empty."""
    rank: bytes = b""
    """The label of the data-parallel rank."""
    adds: bool = False
    """Whether requests and blocks of one rank add up (of several models), or repeat (of workers).

    Of several used shares, and sizes of blocks, the greatest counts.
    """
    waiting: Metric | None = None
    """Requests that wait."""
    running: Metric | None = None
    """Requests that run; None: only those that this picker sent are known."""
    awake: Metric | None = None
    """1, or 0 while the engine sleeps."""
    emptied: tuple[Metric, ...] = ()
    """Any of them is 1 while the engine sleeps and its cache is empty."""
    kv_usage: tuple[Metric, ...] = ()
    """The used share of the KV cache."""
    block_size: tuple[Metric, ...] = ()
    """Tokens of a block."""
    num_blocks: tuple[Metric, ...] = ()
    """Blocks of the cache."""
    whole_server: bool = False
    """Whether each rank's sample of `num_blocks` is the sum of all ranks."""
    max_tokens: Metric | None = None
    """Tokens of the cache."""
    longest: tuple[Metric, Metric] | None = None
    """How many requests of the greatest length fit in one rank, and their tokens in all."""
    caching: Metric | None = None
    """Whether prefix caching is on."""
    match_unit: tuple[Metric, ...] = ()
    """Tokens that hits end at a multiple of, if not of the block."""
    offload_tokens: Metric | None = None
    """Tokens of the second cache tier."""
    offload_blocks: Metric | None = None
    """Blocks of the second cache tier."""
    offload_signs: tuple[Metric, ...] = ()
    """Metrics that are present if there is a second cache tier, and do not give its tokens."""
    cache_queries: Metric | None = None
    """Tokens that were looked up in the cache."""
    cache_hits: Metric | None = None
    """Those of them that were found."""
    adapters: Metric | None = None
    """The LoRA adapters that are loaded, as labels."""
    attributes: tuple[tuple[str, Metric], ...] = ()
    """Metrics that go into `Load.attributes`, under their keys."""


def requests(family: bytes, *where: tuple[bytes, bytes]) -> Metric:
    """Return a metric whose values are numbers of requests."""
    return Metric(family, where=where, most=_MAX_REQUESTS)


# vLLM 0.32 `v1/metrics/loggers.py`: the fields of `CacheConfig` are labels of one gauge.
_CONFIG = b"vllm:cache_config_info"
_SLEEP = b"vllm:engine_sleep_state"
VLLM = EngineMetrics(
    name=VLLM_NAME,
    signs=(b"vllm:",),
    # Triton `vllm_backend/src/utils/metrics.py`: no load and no cache, but others of these names.
    foreign=b"nv_inference_",
    rank=b"engine",
    waiting=requests(b"vllm:num_requests_waiting"),
    running=requests(b"vllm:num_requests_running"),
    # vLLM `v1/metrics/loggers.py`, `record_sleep_state`; a pause (level 0) keeps the cache.
    awake=Metric(_SLEEP, where=((b"sleep_state", b"awake"),), rare=True),
    emptied=(
        Metric(_SLEEP, where=((b"sleep_state", b"weights_offloaded"),), rare=True),
        Metric(_SLEEP, where=((b"sleep_state", b"discard_all"),), rare=True),
    ),
    kv_usage=(
        Metric(b"vllm:kv_cache_usage_perc"),
        Metric(b"vllm:gpu_cache_usage_perc", rare=True),  # before 0.10
    ),
    block_size=(Metric(_CONFIG, b"effective_attention_block_size"), Metric(_CONFIG, b"block_size")),
    num_blocks=(Metric(_CONFIG, b"num_gpu_blocks"),),
    whole_server=True,  # vLLM `v1/engine/core_client.py` exports the sum for every engine
    longest=(
        Metric(_CONFIG, b"kv_cache_max_concurrency"),
        Metric(_CONFIG, b"kv_cache_size_tokens"),
    ),
    caching=Metric(_CONFIG, b"enable_prefix_caching"),
    match_unit=(
        Metric(_CONFIG, b"cache_hit_alignment_tokens"),
        Metric(_CONFIG, b"prefix_match_unit"),
    ),
    # vLLM 0.33 `v1/kv_offload/cpu/common.py`; the gauge appears with the engine's first step.
    offload_tokens=Metric(b"vllm:kv_offload_config_info", b"cpu_kv_cache_size_tokens", rare=True),
    offload_blocks=Metric(b"vllm:simple_kv_offload_info", b"capacity_blocks", rare=True),
    offload_signs=(
        Metric(_CONFIG, b"kv_offloading_size"),
        Metric(b"vllm:kv_offload_store_bytes_total", rare=True),
        Metric(b"vllm:kv_offload_total_bytes_total", rare=True),  # deprecated in 0.32
    ),
    cache_queries=Metric(b"vllm:prefix_cache_queries_total", rare=True),
    cache_hits=Metric(b"vllm:prefix_cache_hits_total", rare=True),
    adapters=Metric(b"vllm:lora_requests_info", rare=True),
)
SGLANG = EngineMetrics(
    name="sglang",
    signs=(b"sglang:",),
    rank=b"dp_rank",
    waiting=requests(b"sglang:num_queue_reqs"),
    running=requests(b"sglang:num_running_reqs"),
    kv_usage=(Metric(b"sglang:token_usage"),),
    block_size=(Metric(b"sglang:page_size"), Metric(b"sglang:cache_config_info", b"page_size")),
    num_blocks=(Metric(b"sglang:num_pages"), Metric(b"sglang:cache_config_info", b"num_pages")),
    max_tokens=Metric(b"sglang:max_total_num_tokens"),
    offload_tokens=Metric(b"sglang:hicache_host_total_tokens", rare=True),
    cache_queries=Metric(b"sglang:prompt_tokens_total", rare=True),
)
# AMD's ATOM adds up its data-parallel ranks itself.
ATOM = EngineMetrics(
    name="atom",
    signs=(b"atom:",),
    waiting=requests(b"atom:requests_waiting"),
    running=requests(b"atom:requests_running"),
    kv_usage=(Metric(b"atom:kv_cache_usage_ratio"),),
    block_size=(Metric(b"atom:cache_config_info", b"block_size"),),
    num_blocks=(Metric(b"atom:cache_config_info", b"num_gpu_blocks"),),
)
TRTLLM_SERVE = EngineMetrics(
    name="trtllm-serve",
    signs=(b"trtllm_",),
    waiting=requests(b"trtllm_num_requests_waiting"),
    running=requests(b"trtllm_num_requests_running"),
    kv_usage=(Metric(b"trtllm_kv_cache_utilization"),),
    block_size=(Metric(b"trtllm_kv_cache_tokens_per_block"),),
    num_blocks=(Metric(b"trtllm_kv_cache_max_blocks"),),
)
_TRITON_REQUESTS = b"nv_trt_llm_request_metrics"
_TRITON_BLOCKS = b"nv_trt_llm_kv_cache_block_metrics"
TRITON_TRTLLM = EngineMetrics(
    name="triton-tensorrt-llm",
    signs=(b"nv_trt_llm_",),
    adds=True,
    waiting=requests(_TRITON_REQUESTS, (b"request_type", b"waiting")),
    running=requests(_TRITON_REQUESTS, (b"request_type", b"scheduled")),
    kv_usage=(Metric(_TRITON_BLOCKS, where=((b"kv_cache_block_type", b"fraction"),)),),
    block_size=(Metric(_TRITON_BLOCKS, where=((b"kv_cache_block_type", b"tokens_per"),)),),
    num_blocks=(Metric(_TRITON_BLOCKS, where=((b"kv_cache_block_type", b"max"),)),),
)
TRITON = EngineMetrics(
    name="triton",
    signs=(b"nv_inference_",),
    adds=True,
    # llm-d-router takes `nv_inference_exec_count` for `running`, which counts since the start.
    waiting=requests(b"nv_inference_pending_request_count"),
)
# llama.cpp `tools/server`: what is deferred waits for a slot.
LLAMA_CPP = EngineMetrics(
    name="llama.cpp",
    signs=(b"llamacpp:",),
    waiting=requests(b"llamacpp:requests_deferred"),
    running=requests(b"llamacpp:requests_processing"),
    kv_usage=(Metric(b"llamacpp:kv_cache_usage_ratio", rare=True),),  # until July 2025
    cache_queries=Metric(b"llamacpp:prompt_tokens_total", rare=True),
)
TGI = EngineMetrics(
    name="tgi",
    signs=(b"tgi_",),
    waiting=requests(b"tgi_queue_size"),
    running=requests(b"tgi_batch_current_size"),
)
LMDEPLOY = EngineMetrics(
    name="lmdeploy",
    signs=(b"lmdeploy:",),
    rank=b"engine",
    waiting=requests(b"lmdeploy:num_requests_waiting"),
    running=requests(b"lmdeploy:num_requests_running"),
    kv_usage=(Metric(b"lmdeploy:gpu_cache_usage_perc"),),
    cache_queries=Metric(b"lmdeploy:prompt_tokens_total", rare=True),
)
# NVIDIA NIM 1, and MindIE; NIM 2 has vLLM's names, and is found as vLLM.
NIM = EngineMetrics(
    name="nim",
    signs=(b"num_requests_running",),
    waiting=requests(b"num_requests_waiting"),
    running=requests(b"num_requests_running"),
    kv_usage=(Metric(b"gpu_cache_usage_perc"), Metric(b"npu_cache_usage_perc", rare=True)),
)
STARTED = Metric(b"process_start_time_seconds", rare=True)

RUNNING_ADAPTERS, WAITING_ADAPTERS = b"running_lora_adapters", b"waiting_lora_adapters"
MAX_ADAPTERS = b"max_lora"
"""Labels of the family of `adapters`."""


@lru_cache(maxsize=64)
def configuration_of(engine: EngineMetrics) -> tuple[Metric, ...]:
    """Return the metrics that change only with the engine's configuration."""
    return _metrics(
        *(engine.block_size, engine.num_blocks, engine.max_tokens, engine.longest),
        *(engine.caching, engine.match_unit),
    )


@lru_cache(maxsize=64)
def polled(engine: EngineMetrics) -> tuple[Metric, ...]:
    """Return the metrics that are read on every page: of KV usage the newest name.

    What is only asked for while the engine sleeps is not among them.
    """
    return _metrics(
        *(engine.waiting, engine.running, engine.kv_usage[:1], engine.awake),
        *(engine.offload_tokens, engine.offload_blocks),
        *(engine.cache_queries, engine.cache_hits, engine.adapters, STARTED),
        *(metric for _, metric in engine.attributes),
    )


def _metrics(*fields: Metric | tuple[Metric, ...] | None) -> tuple[Metric, ...]:
    """Return the metrics of fields, each once."""
    listed = (field if isinstance(field, tuple) else (field,) for field in fields)
    return tuple(dict.fromkeys(each for field in listed for each in field if each is not None))


class EngineCatalog:
    """The engines whose pages are read, in the order in which a page is matched.

    An endpoint's engine is the one that the first of its `labels` present names. `read_labels`
    are the labels of all samples that are read.
    """

    def __init__(
        self, engines: Iterable[EngineMetrics], labels: tuple[str, ...] = ENGINE_LABELS
    ) -> None:
        self.engines: Mapping[str, EngineMetrics] = {each.name: each for each in engines}
        self.labels = labels
        metrics = [
            metric
            for engine in self.engines.values()
            for metric in (*configuration_of(engine), *polled(engine), *engine.offload_signs)
        ]
        self.read_labels = frozenset(
            (
                *(RUNNING_ADAPTERS, WAITING_ADAPTERS, MAX_ADAPTERS),
                *(engine.rank for engine in self.engines.values()),
                *(metric.label for metric in metrics),
                *(label for metric in metrics for label, _ in metric.where),
            )
        )

    def named(self, labels: Mapping[str, str]) -> EngineMetrics | None:
        """Return the engine that an endpoint's labels name; None if they name none."""
        for label in self.labels:
            if found := self.engines.get(labels.get(label, "")):
                return found
        return None


BUILT_IN_ENGINES = EngineCatalog(
    (*(VLLM, SGLANG, ATOM, TRTLLM_SERVE, TRITON_TRTLLM, TRITON), *(LLAMA_CPP, TGI, LMDEPLOY, NIM))
)
"""The engines that need no configuration."""

ENGINES = BUILT_IN_ENGINES.engines
"""Those by the value of their pod label."""
