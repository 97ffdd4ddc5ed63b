"""A metrics page as vLLM writes it, made by the library that vLLM makes it with."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
LATENCIES = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
HISTOGRAMS = 20
COUNTERS = 30


def vllm_page(
    *, waiting: float = 3, running: float = 7, kv_usage: float = 0.25, engines: int = 1
) -> bytes:
    """Seventy-odd families, some 40 KB with one engine, the wanted ones among them."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    labels = [{"engine": str(number), "model_name": MODEL} for number in range(engines)]
    _gauge(registry, "vllm:num_requests_running", running, labels)
    _gauge(registry, "vllm:num_requests_waiting", waiting, labels)
    reasons = [{**label, "reason": reason} for label in labels for reason in ("capacity", "lora")]
    _gauge(registry, "vllm:num_requests_waiting_by_reason", 1000, reasons)
    _gauge(registry, "vllm:kv_cache_usage_perc", kv_usage, labels)
    names = ["prefix_cache_queries", "prefix_cache_hits"]
    for number, name in enumerate(names + [f"some_{n}_tokens" for n in range(COUNTERS)]):
        counter = Counter(f"vllm:{name}", "x", list(labels[0]), registry=registry)
        for label in labels:
            counter.labels(**label).inc(number)
    for number in range(HISTOGRAMS):
        histogram = Histogram(
            f"vllm:some_{number}_time_seconds",
            "A histogram of something, in seconds.",
            list(labels[0]),
            registry=registry,
            buckets=LATENCIES,
        )
        for label in labels:
            histogram.labels(**label).observe(number / 7)
    cache = {"block_size": "16", "cache_dtype": "auto", "enable_prefix_caching": "True"}
    cache |= {f"some_setting_{number}": "None" for number in range(25)}
    # The blocks of all engines together, but the tokens of each (vLLM 0.32, core_client.py).
    cache |= {"num_gpu_blocks": str(1024 * engines), "kv_cache_size_tokens": "16384"}
    cache |= {"kv_cache_max_concurrency": "4.0", "prefix_match_unit": "None"}
    _gauge(registry, "vllm:cache_config_info", 1, [{**label, **cache} for label in labels])
    return generate_latest(registry)


def _gauge(
    registry: CollectorRegistry, name: str, value: float, labels: list[dict[str, str]]
) -> None:
    gauge = Gauge(name, f"What {name} means.", list(labels[0]), registry=registry)
    for label in labels:
        gauge.labels(**label).set(value)
