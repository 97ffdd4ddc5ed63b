"""The engine's metrics under vLLM 0.32's names, labels and types. Knows no HTTP."""

import time
from dataclasses import dataclass
from math import ceil

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest

from model_server.simulator.scheduler import Counts, Finish
from model_server.simulator.settings import Settings

_TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TPOT_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)


@dataclass(frozen=True, slots=True)
class Load:
    """The engine's state after its latest step, which is when vLLM publishes it too."""

    running: int = 0
    waiting: int = 0
    usage: float = 0.0
    running_loras: str = ""
    waiting_loras: str = ""


@dataclass(frozen=True, slots=True)
class Timing:
    """One finished request; seconds since its arrival, `first_token` None without any token."""

    finish: Finish
    generated: int
    first_token: float | None
    total: float


class Metrics:
    """A registry of its own, so that several engines fit in one process."""

    def __init__(self, settings: Settings) -> None:
        self._registry = CollectorRegistry()
        self._labels = {"model_name": settings.served_model_name, "engine": "0"}
        self._settings = settings
        self.load = Load()
        ProcessCollector(registry=self._registry)
        self._cache_config()
        self._running = self._gauge("num_requests_running", "Requests in the running batch.")
        self._waiting = self._gauge("num_requests_waiting", "Requests that wait for admission.")
        self._usage = self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 1 = all.")
        self._queries = self._counter("prefix_cache_queries", "Prompt tokens looked up.")
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens found in the cache.")
        self._preemptions = self._counter("num_preemptions", "Requests preempted.")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens of started answers.")
        self._generation = self._counter("generation_tokens", "Tokens generated.")
        self._lag = Counter("sim:lag_seconds", "Time lost to a slow host.", registry=self._registry)
        self._success = self._finished()
        self._ttft = self._histogram("time_to_first_token_seconds", _TTFT_BUCKETS)
        self._e2e = self._histogram("e2e_request_latency_seconds", _LATENCY_BUCKETS)
        self._tpot = self._histogram("request_time_per_output_token_seconds", _TPOT_BUCKETS)
        self._lora_info = Gauge(
            "vllm:lora_requests_info",
            "Adapters in use; the value is the unix time, the newest series counts.",
            ["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
            registry=self._registry if settings.lora_modules or settings.runtime_loras else None,
        )
        self._seen = Counts()

    def publish(self, load: Load, counts: Counts) -> None:
        """Take over the engine's state after a step."""
        self.load = load
        seen = self._seen
        if counts != seen:
            self._queries.inc(counts.prefix_queries - seen.prefix_queries)
            self._hits.inc(counts.prefix_hits - seen.prefix_hits)
            self._preemptions.inc(counts.preemptions - seen.preemptions)
            self._seen = Counts(counts.prefix_queries, counts.prefix_hits, counts.preemptions)
        if self._settings.lora_modules or self._settings.runtime_loras:
            info = self._lora_info.labels(
                str(self._settings.limits.max_loras), load.running_loras, load.waiting_loras
            )
            info.set(time.time())

    def generated(self, tokens: int, prompt_tokens: int) -> None:
        """Count a step's new tokens, and the prompts of requests that got their first one."""
        self._generation.inc(tokens)
        if prompt_tokens:
            self._prompt.inc(prompt_tokens)

    def lagged(self, seconds: float) -> None:
        """Count time by which the host was too slow for the simulated engine."""
        self._lag.inc(seconds)

    def first_token(self, seconds: float) -> None:
        """Observe a request's time to first token."""
        self._ttft.observe(seconds)

    def finished(self, timing: Timing) -> None:
        """Observe a finished request. Aborted ones are not counted, as in vLLM."""
        if timing.finish is Finish.ABORT:
            return
        self._success[timing.finish].inc()
        self._e2e.observe(timing.total)
        if timing.first_token is not None and timing.generated > 1:
            decoding = timing.total - timing.first_token
            self._tpot.observe(decoding / (timing.generated - 1))

    def render(self) -> bytes:
        """Write the Prometheus text."""
        self._running.set(self.load.running)
        self._waiting.set(self.load.waiting)
        self._usage.set(self.load.usage)
        return generate_latest(self._registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        family = Gauge(f"vllm:{name}", text, list(self._labels), registry=self._registry)
        return family.labels(**self._labels)

    def _counter(self, name: str, text: str) -> Counter:
        family = Counter(f"vllm:{name}", text, list(self._labels), registry=self._registry)
        return family.labels(**self._labels)

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(
            f"vllm:{name}",
            f"Histogram of {name}.",
            list(self._labels),
            buckets=buckets,
            registry=self._registry,
        )
        return family.labels(**self._labels)

    def _finished(self) -> dict[Finish, Counter]:
        names = [*self._labels, "finished_reason"]
        family = Counter(
            "vllm:request_success", "Finished requests.", names, registry=self._registry
        )
        return {
            reason: family.labels(**self._labels, finished_reason=reason.value) for reason in Finish
        }

    def _cache_config(self) -> None:
        limits = self._settings.limits
        longest = min(limits.max_model_len, limits.num_gpu_blocks * limits.block_size)
        fit = limits.num_gpu_blocks / ceil(longest / limits.block_size)
        labels = {
            "block_size": str(limits.block_size),
            "cache_dtype": "auto",
            "cache_hit_alignment_tokens": "None",
            "effective_attention_block_size": str(limits.block_size),
            "enable_prefix_caching": "True",
            "engine": "0",
            "gpu_memory_utilization": "0.92",
            "hash_block_size": "None",
            "kv_cache_max_concurrency": str(fit),
            "kv_cache_size_tokens": str(int(fit * longest)),
            "kv_offloading_size": "None",
            "num_gpu_blocks": str(limits.num_gpu_blocks),
            "num_gpu_blocks_override": str(limits.num_gpu_blocks),
            "prefix_cache_retention_interval": "0",
            "prefix_caching_hash_algo": "blake2b",
            "prefix_match_unit": "None",
            "sliding_window": "None",
            "user_specified_block_size": "True",
        }
        family = Gauge(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            list(labels),
            registry=self._registry,
        )
        family.labels(**labels).set(1)
