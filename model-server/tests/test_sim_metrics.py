"""What the simulator reports about itself."""

import pytest
from model_server.simulator.settings import Limits
from prometheus_client.parser import text_string_to_metric_families

from .simulated import chat, events, post, samples, serving, value


async def test_metrics_have_vllms_names_types_and_labels():
    async with serving(limits=Limits(num_gpu_blocks=100)) as (_, client):
        await events(client, "/v1/chat/completions", chat("hi", max_tokens=7))
        async with client.get("/metrics") as response:
            text = await response.text()
        assert await value(client, "prompt_tokens_total") == 4
        assert await value(client, "generation_tokens_total") == 7
        assert await value(client, "num_preemptions_total") == 0
        assert await value(client, "request_success_total", finished_reason="length") == 1
        assert await value(client, "time_to_first_token_seconds_count") == 1
        assert await value(client, "e2e_request_latency_seconds_count") == 1
        found = await samples(client)
    types = {family.name: family.type for family in text_string_to_metric_families(text)}
    expected = {
        "vllm:num_requests_waiting": "gauge",
        "vllm:prefix_cache_hits": "counter",
        "vllm:time_to_first_token_seconds": "histogram",
    }
    assert expected.items() <= types.items()
    assert "vllm:lora_requests_info" not in types
    assert found["process_start_time_seconds", ()] > 0
    config = next(dict(key[1]) for key in found if key[0] == "vllm:cache_config_info")
    assert (config["block_size"], config["num_gpu_blocks"]) == ("16", "100")
    # As `get_kv_cache_capacity` counts: one request of the greatest length fits, 1,600 tokens.
    said = (config["kv_cache_max_concurrency"], config["kv_cache_size_tokens"])
    assert said == ("1.0", "1600")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("JSON", 'JSON {"named_metrics": {"num_requests_waiting": 0.0, "kv_cache_usage_perc": '),
        ("text", "TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc="),
        ("BIN", None),
        (None, None),
    ],
)
async def test_orca_is_sent_when_asked_for(wanted, expected):
    headers = {"endpoint-load-metrics-format": wanted} if wanted else {}
    async with serving() as (_, client):
        _, got, _ = await post(client, "/v1/completions", {"prompt": "hi"}, **headers)
    report = got.get("endpoint-load-metrics")
    assert report is None if expected is None else report.startswith(expected)
