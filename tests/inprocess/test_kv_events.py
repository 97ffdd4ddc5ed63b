"""KV events of a picker that starts: what the pages say of blocks and names is known first."""

import asyncio
import contextlib
import json

import pytest
from aiohttp import web

from epp.adapters.kvevents.publishers import PORT_LABEL, REPLAY_PORT_LABEL
from epp.inprocess import open_picker
from tests.adapters.tokens.folders import byte_level, write
from tests.adapters.zmq_publisher import ZmqPublisher
from tests.kvpublisher import stored
from tests.tasks import until

PAGE = b"""vllm:num_requests_running 0.0
vllm:num_requests_waiting 0.0
vllm:cache_config_info{block_size="64",num_gpu_blocks="1000"} 1.0
"""
TOKENS = list(range(256))
# Three blocks of 64 tokens are twelve of the picker's.
HELD = 'warmpick_endpoint_cache_blocks{name="default",model_server_endpoint="pod-0"} 12.0'


def models(*names):
    """A list as vLLM's `show_available_models` makes it, of one model."""
    cards = [{"id": name, "root": "org/model", "max_model_len": 4096} for name in names]
    return {"object": "list", "data": cards}


@contextlib.asynccontextmanager
async def busy_server(shown):
    """A server that shows its pages once `shown` is set."""

    async def page(request):
        await shown.wait()
        if request.path == "/metrics":
            return web.Response(body=PAGE)
        return web.json_response(models("llama", "base"))

    app = web.Application()
    app.router.add_get("/{path:.*}", page)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        shown.set()
        await runner.cleanup()


def configuration(folder):
    kinds = ("metrics-data-source", "models-data-source")
    extractors = ("core-metrics-extractor", "models-data-extractor")
    return {
        "plugins": [
            {"type": "least-ttft-picker"},
            {"type": "precise-prefix-cache-producer"},
            {"type": "token-producer", "parameters": {"tokenizer": str(folder)}},
            *({"type": kind} for kind in (*kinds, *extractors)),
        ],
        "dataLayer": {
            "sources": [
                {"pluginRef": source, "extractors": [{"pluginRef": extractor}]}
                for source, extractor in zip(kinds, extractors, strict=True)
            ]
        },
    }


@pytest.mark.parametrize("model", ["llama", "base"])
async def test_blocks_stored_before_the_first_pages_are_found_by_each_name(tmp_path, model):
    shown = asyncio.Event()
    config = json.dumps(configuration(write(tmp_path / "m", byte_level())))
    async with ZmqPublisher().open() as publisher, busy_server(shown) as port:
        # Events are of the model `base`, which the list has as another name of `llama`.
        await publisher.publish(stored([1, 2, 3], tokens=TOKENS[:192], size=64))
        labels = {PORT_LABEL: str(publisher.port), REPLAY_PORT_LABEL: str(publisher.again)}
        server = {"name": "pod-0", "address": "127.0.0.1", "port": port, "labels": labels}
        async with open_picker(server, config_text=config) as picker:
            shown.set()
            await until(lambda: HELD in picker.metrics())
            body = {"model": model, "prompt": TOKENS, "max_tokens": 1}
            async with picker.pick(body, path="/v1/completions") as pick:
                assert pick.decision.predicted_cached_tokens == 192
            # As llm-d's guide finds out whether the router sees the engine's tokens.
            assert "\nllm_d_epp_kv_cache_index_max_pod_hit_count_total 12.0\n" in picker.metrics()
            assert "\nllm_d_epp_kv_cache_index_admissions_total 3.0\n" in picker.metrics()
