"""Which engine a page is of, and the load that each engine's page says."""

import pytest

from epp.model.endpoint import Load
from epp.protocol.metrics.metric_names import ENGINES, SGLANG, VLLM
from epp.protocol.metrics.page import Page
from epp.protocol.steps import finish
from tests.adapters.vllm_page import vllm_page
from tests.protocol.metrics.reading import read, read_all


def engine_of(labels, text):
    """The engine that a page is read for."""
    return finish(Page(text).engine(labels))


def test_a_real_page():
    load = read(vllm_page(), at=5.0)
    assert (load.waiting, load.running, load.kv_usage) == (3, 7, 0.25)
    assert (load.block_size, load.num_blocks, load.spread) == (16, 1024, 1)
    assert load.capacity_tokens == 1023 * 16
    assert (load.engine, load.caching, load.spread) == ("vllm", True, 1.0)
    assert (load.cache_queries, load.cache_hits) == (0, 1)
    assert (load.match_unit, load.offload_tokens) == (None, None)
    assert load.started_at is not None
    assert load.started_at > 1e9
    assert load.counted
    assert load.at == 5.0
    assert load.max_adapters == 0


def test_engines_of_one_server_are_one_endpoint():
    load = read(vllm_page(engines=4), at=0)
    assert (load.waiting, load.running, load.kv_usage) == (12, 28, 0.25)
    assert (load.block_size, load.num_blocks, load.ranks) == (16, 4096, 4)
    assert load.capacity_tokens == (4096 - 4) * 16


def test_kv_usage_is_the_mean_of_the_engines():
    page = b'vllm:kv_cache_usage_perc{engine="0"} 1.0\nvllm:kv_cache_usage_perc{engine="1"} 0.5\n'
    assert read(page, at=0).kv_usage == 0.75


def lora(value, running="", waiting="", max_lora="4", engine="0"):
    return (
        f'vllm:lora_requests_info{{engine="{engine}",max_lora="{max_lora}",'
        f'running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"}} {value}\n'
    ).encode()


def test_the_newest_lora_series_counts():
    page = lora(1.795e9, "a,b", "c") + lora(1.796e9, "d, e", "", "2") + lora(1.794e9, "f")
    load = read(page, at=0)
    assert load.running_adapters == {"d", "e"}
    assert load.waiting_adapters == frozenset()
    assert load.max_adapters == 2


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("others", [0, 1, 3])
def test_a_lora_series_that_more_api_servers_have_set_is_not_newer_for_that(others, order):
    now = 1.796e9  # prometheus_client, `multiprocess_mode="sum"`: the servers' times are added
    series = [lora(now - 60 + others * (now - 90), "old"), lora(now, "new")]
    assert read(b"".join(series[::order]), at=0).running_adapters == {"new"}


def test_the_newest_lora_series_of_each_engine_count():
    page = lora(2, "a", "x") + lora(1, "b", engine="1") + lora(0, "c", engine="1")
    load = read(page, at=0)
    assert load.running_adapters == {"a", "b"}
    assert load.waiting_adapters == {"x"}


def test_adapter_names_are_unescaped():
    load = read(lora(1, r"a\"b\\c"), at=0)
    assert load.running_adapters == {'a"b\\c'}


def test_bad_lora_limit_is_none_at_all():
    assert read(lora(1, "a", max_lora="many"), at=0).max_adapters == 0


PAGES = {
    "sglang": (
        b'sglang:num_running_reqs{model_name="m"} 2.0\nsglang:token_usage{model_name="m"} 0.5\n'
        b'sglang:num_queue_reqs{model_name="m"} 1.0\n'
        b'sglang:cache_config_info{page_size="64",num_pages="100"} 1.0\n'
    ),
    "atom": (
        b"atom:requests_running 2.0\natom:requests_waiting 1.0\natom:kv_cache_usage_ratio 0.5\n"
        b'atom:cache_config_info{block_size="64",num_gpu_blocks="100"} 1.0\n'
    ),
    "trtllm-serve": (
        b"trtllm_num_requests_waiting 1\ntrtllm_num_requests_running 2\n"
        b"trtllm_kv_cache_utilization 0.5\ntrtllm_kv_cache_tokens_per_block 64\n"
        b"trtllm_kv_cache_max_blocks 100\n"
    ),
    "triton-tensorrt-llm": (
        b'nv_trt_llm_request_metrics{model="m",request_type="waiting"} 1\n'
        b'nv_trt_llm_request_metrics{model="m",request_type="scheduled"} 2\n'
        b'nv_trt_llm_request_metrics{model="m",request_type="max"} 77\n'
        b'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m"} 0.5\n'
        b'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="m"} 64\n'
        b'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m"} 100\n'
        b"nv_inference_exec_count 5\n"
    ),
}


@pytest.mark.parametrize("name", PAGES)
def test_engines_are_recognised_by_their_page(name):
    engine = engine_of({}, PAGES[name])
    assert engine is ENGINES[name]
    load = read(PAGES[name], at=3)
    assert load == Load(
        waiting=1,
        running=2,
        counted=True,
        kv_usage=0.5,
        engine=name,
        block_size=64,
        num_blocks=100,
        at=3,
    )
    assert load.capacity_tokens == 6400


def test_of_several_models_requests_and_blocks_add_up_but_no_shares_nor_sizes():
    # triton-inference-server/tensorrtllm_backend, "Speculative Decoding": a draft model beside it
    page = PAGES["triton-tensorrt-llm"]
    lines = sorted((*page.splitlines(), *page.replace(b'"m"', b'"draft"').splitlines()))
    load = read(b"\n".join((*lines, b"")), at=3)
    assert (load.waiting, load.running, load.kv_usage) == (2, 4, 0.5)
    assert (load.block_size, load.num_blocks, load.capacity_tokens) == (64, 200, 12_800)


def test_triton_reports_requests_that_wait_only():
    # Its `nv_inference_exec_count` is of type counter: executions since the start.
    page = b"nv_inference_pending_request_count 4\nnv_inference_exec_count 5\n"
    assert read(page, at=0) == Load(waiting=4, engine="triton", at=0)


def test_triton_is_not_vllm_though_its_backend_has_names_of_vllm():
    # triton-inference-server/vllm_backend `src/utils/metrics.py`
    page = (
        b'vllm:prompt_tokens_total{model="m",version="1"} 10\n'
        b'vllm:time_to_first_token_seconds_count{model="m",version="1"} 1\n'
        b'nv_inference_pending_request_count{model="m",version="1"} 4\n'
    )
    for text in (page, b"\n".join(reversed(page.splitlines())) + b"\n"):
        assert read(text, at=0) == Load(waiting=4, engine="triton", at=0)


LLAMA_CPP = b"llamacpp:requests_processing 4\nllamacpp:requests_deferred 46\n"
TGI = b"tgi_batch_current_size 4\ntgi_queue_size 46\n"
LMDEPLOY = b"""lmdeploy:num_requests_running{engine="0",model_name="m"} 1.0
lmdeploy:num_requests_running{engine="1",model_name="m"} 3.0
lmdeploy:num_requests_waiting{engine="0",model_name="m"} 40.0
lmdeploy:num_requests_waiting{engine="1",model_name="m"} 6.0
lmdeploy:gpu_cache_usage_perc{engine="0",model_name="m"} 0.75
lmdeploy:gpu_cache_usage_perc{engine="1",model_name="m"} 0.25
"""
NIM = b"""num_requests_running{model_name="m"} 4.0
num_requests_waiting{model_name="m"} 46.0
num_request_max{model_name="m"} 2048.0
gpu_cache_usage_perc{model_name="m"} 0.5
"""
MINDIE = b"""num_requests_running{model_name="m"} 4
num_requests_waiting{model_name="m"} 46
npu_cache_usage_perc{model_name="m"} 0.5
cpu_cache_usage_perc{model_name="m"} 0
"""
NIM_2 = b"""num_request_max{model_name="m"} 1024.0
vllm:num_requests_running{engine="0"} 4
vllm:num_requests_waiting{engine="0"} 46
vllm:kv_cache_usage_perc{engine="0"} 0.5
"""
VLLM_0_6 = b"""vllm:num_requests_running{model_name="m"} 4.0
vllm:num_requests_swapped{model_name="m"} 0.0
vllm:num_requests_waiting{model_name="m"} 46.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
"""
VLLM_0_9 = b"""vllm:num_requests_running{engine="0"} 4
vllm:num_requests_waiting{engine="0"} 46
vllm:gpu_cache_usage_perc{engine="0"} 0.1
vllm:kv_cache_usage_perc{engine="0"} 0.5
"""


@pytest.mark.parametrize(
    ("name", "page", "usage"),
    [
        ("llama.cpp", LLAMA_CPP, 0.0),
        ("llama.cpp", LLAMA_CPP + b"llamacpp:kv_cache_usage_ratio 0.5\n", 0.5),
        ("tgi", TGI, 0.0),
        ("lmdeploy", LMDEPLOY, 0.5),
        ("nim", NIM, 0.5),
        ("nim", MINDIE, 0.5),
        ("vllm", NIM_2, 0.5),
        ("vllm", VLLM_0_6, 0.5),
        ("vllm", VLLM_0_9, 0.5),
    ],
)
def test_the_load_of_servers_that_do_not_report_their_cache(name, page, usage):
    assert engine_of({}, page) is ENGINES[name]
    for labels in (None, name):
        load = read(page, engine=labels)
        assert (load.waiting, load.running, load.kv_usage) == (46, 4, usage)
        assert (load.engine, load.counted, load.capacity_tokens) == (name, True, None)


def test_the_usage_of_an_old_vllm_is_read_on_each_of_its_pages():
    text = "# HELP\nvllm:num_requests_running 1\nvllm:gpu_cache_usage_perc 0.%02d\n"
    loads, _ = read_all(*((text % number).encode() for number in range(20)))
    assert [each.kv_usage for each in loads] == [number / 100 for number in range(20)]


@pytest.mark.parametrize(
    ("labels", "page", "engine"),
    [
        ({"llm-d.ai/engine-type": "sglang"}, b"vllm:x 1\n", SGLANG),
        ({"inference.networking.k8s.io/engine-type": "sglang"}, b"", SGLANG),
        ({"llm-d.ai/engine-type": "what"}, b"x\nvllm:x 1\n", VLLM),
        ({}, b"vllm:x 1\n", VLLM),
        ({}, b"# vllm:x\nfoo 1\n", None),
    ],
)
def test_the_label_decides_before_the_page(labels, page, engine):
    assert engine_of(labels, page) is engine
