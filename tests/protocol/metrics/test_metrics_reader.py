import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epp.model.endpoint import UNREPORTED, Endpoint, Load
from epp.protocol.metrics.metric_names import ENGINES, SGLANG, VLLM
from epp.protocol.metrics.metrics_reader import MetricsReader
from epp.protocol.metrics.page import Page, PageBefore
from epp.protocol.steps import finish
from tests.adapters.vllm_page import vllm_page

PREVIOUS = Load(
    waiting=91,
    running=92,
    counted=True,
    kv_usage=0.93,
    running_adapters=frozenset({"old"}),
    waiting_adapters=frozenset({"older"}),
    max_adapters=9,
    engine="vllm",
    ranks=2,
    block_size=94,
    num_blocks=95,
    spread=1.5,
    caching=False,
    match_unit=98,
    sliding_window=99,
    offload_tokens=100,
    cache_queries=101,
    cache_hits=102,
    started_at=96,
    at=97,
)


def read(text, at=0.0, previous=UNREPORTED, engine=None, **endpoint):
    """Read one page of an endpoint; `engine` as its label says."""
    labels = {"llm-d.ai/engine-type": engine} if engine else {}
    of = Endpoint("default", "a", "10.0.0.1", 8000, labels=labels, **endpoint)
    return MetricsReader(of, previous).read(Page(text), at).load


def engine_of(labels, text):
    """The engine that a page is read for."""
    return finish(Page(text).engine(labels))


def lora(value, running="", waiting="", max_lora="4", engine="0"):
    return (
        f'vllm:lora_requests_info{{engine="{engine}",max_lora="{max_lora}",'
        f'running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"}} {value}\n'
    ).encode()


def test_a_real_page():
    load = read(vllm_page(), at=5.0)
    assert (load.waiting, load.running, load.kv_usage) == (3, 7, 0.25)
    assert (load.block_size, load.num_blocks, load.spread) == (16, 1024, 1)
    assert load.capacity_tokens == 1023 * 16
    assert (load.engine, load.caching, load.spread) == ("vllm", True, 1.0)
    assert (load.cache_queries, load.cache_hits) == (0, 1)
    assert (load.match_unit, load.sliding_window, load.offload_tokens) == (None, None, None)
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


def sleep_page(awake, weights_offloaded=0, discard_all=0, engine=0):
    """The lines of `record_sleep_state` in vLLM 0.33 `v1/metrics/loggers.py`."""
    states = {"awake": awake, "weights_offloaded": weights_offloaded, "discard_all": discard_all}
    lines = (
        f'vllm:engine_sleep_state{{engine="{engine}",model_name="m",sleep_state="{state}"}} {value}'
        for state, value in states.items()
    )
    return "".join(f"{line}.0\n" for line in lines).encode()


@pytest.mark.parametrize(
    ("page", "rank", "expected"),
    [
        (sleep_page(1), None, (True, False)),
        (sleep_page(0), None, (False, False)),  # `/sleep?level=0`: a pause
        (sleep_page(0, weights_offloaded=1), None, (False, True)),
        (sleep_page(0, discard_all=1), None, (False, True)),
        (sleep_page(1, engine=0) + sleep_page(0, engine=1), None, (True, False)),
        (sleep_page(1, engine=0) + sleep_page(0, engine=1), 1, (False, False)),
        (sleep_page(1, engine=0) + sleep_page(0, engine=1), 0, (True, False)),
        (b"vllm:num_requests_waiting 3\n", None, (True, False)),
    ],
)
def test_an_engine_says_that_it_sleeps(page, rank, expected):
    load = read(b"vllm:num_requests_running 0\n" + page, rank=rank)
    assert (load.awake, load.emptied) == expected


def test_an_engine_wakes():
    reader = MetricsReader(Endpoint("default", "a", "10.0.0.1", 8000))
    before = PageBefore()
    said = [
        reader.read(Page(b"vllm:num_requests_running 0\n" + page, before), at).load.awake
        for at, page in enumerate((sleep_page(1), sleep_page(0), sleep_page(0), sleep_page(1)))
    ]
    assert said == [True, False, False, True]


def read_all(*pages, apart=1.0):
    """Read pages of one server, the same distance apart; return the loads and all warnings."""
    reader = MetricsReader(Endpoint("default", "a", "10.0.0.1", 8000))
    before = PageBefore()
    readings = [reader.read(Page(page, before), at * apart) for at, page in enumerate(pages)]
    return [each.load for each in readings], [text for each in readings for text in each.warnings]


def served(tokens, *, more=b"", waiting=b"vllm:num_requests_waiting 8\n"):
    """A page of a vLLM that has computed that many prompt tokens."""
    counts = waiting + b"vllm:num_requests_running 12\nvllm:kv_cache_usage_perc 0.5\n"
    return counts + b"vllm:prefix_cache_queries_total %d\n" % tokens + more


RENAMED = b"vllm:kv_cache_usage_perc 0.5\nvllm:prefix_cache_queries_total %d\n"


def test_counts_that_stay_away_do_not_count():
    loads, warnings = read_all(served(5), RENAMED % 6, RENAMED % 7, RENAMED % 8, served(9))
    assert [each.waiting for each in loads] == [8, 8, 0, 0, 8]
    assert [each.running for each in loads] == [12, 12, 0, 0, 12]
    assert len(warnings) == 2
    assert all("requests of other senders do not count" in each for each in warnings)


def test_a_page_may_lack_counts_until_the_first_prompt():
    loads, warnings = read_all(*[RENAMED % 0] * 3)
    assert [each.waiting for each in loads] == [0, 0, 0]
    assert warnings == []


def test_values_that_are_stale_do_not_count():
    nan = served(5).replace(b" 8\n", b" NaN\n").replace(b" 12\n", b" NaN\n")
    nan = nan.replace(b" 0.5\n", b" NaN\n")
    loads, _ = read_all(served(5), nan, nan, nan)
    assert (loads[-1].waiting, loads[-1].running, loads[-1].kv_usage) == (0, 0, 0)


def test_a_share_that_is_a_percentage_does_not_count():
    pages = [b"vllm:kv_cache_usage_perc %g\n" % value for value in (0, 0.7, 40, 0.7, 1.2)]
    loads, warnings = read_all(*pages)
    assert [each.kv_usage for each in loads] == [0, 0.7, 0, 0, 0]
    assert warnings == ["vllm:kv_cache_usage_perc is 40, which is ignored"]


def test_an_engine_that_uses_a_little_more_than_all_is_full():
    loads, warnings = read_all(b"sglang:token_usage 1.02\n", b"sglang:token_usage 0.99\n")
    assert [each.kv_usage for each in loads] == [1, 0.99]
    assert warnings == []


def test_behind_the_address_of_a_service_each_process_starts_once():
    pages = [
        served(tokens, more=b"process_start_time_seconds %d\n" % started)
        for tokens, started in ((50, 100), (7, 300), (51, 100), (8, 300), (90, 200), (52, 100))
    ]
    loads, warnings = read_all(*pages)
    assert [each.started_at for each in loads] == [100, 300, 300, 300, 200, 200]
    assert len(warnings) == 1
    assert "several processes" in warnings[0]


@pytest.mark.parametrize(
    ("tokens", "apart", "mixed"),
    [
        ((50, 7, 51, 8, 52), 1.0, True),
        ((50, 7, 20, 40), 1.0, False),  # it was restarted
        ((50, 7, 60, 80), 11.0, False),  # and then had as much to do again
        ((50, 50, 60, 60), 1.0, False),
    ],
)
def test_a_counter_of_several_processes_is_none(tokens, apart, mixed):
    loads, warnings = read_all(*map(served, tokens), apart=apart)
    assert loads[-1].cache_queries == (None if mixed else tokens[-1])
    assert len(warnings) == mixed


def test_an_engine_that_crashes_early_is_not_several():
    """Its counter may soon be as high again, but for a while it does not answer."""
    reader, before = MetricsReader(Endpoint("default", "a", "10.0.0.1", 8000)), PageBefore()
    for start in range(0, 90, 30):
        for at, tokens in enumerate((7, 500, 8000)):
            reading = reader.read(Page(served(tokens), before), start + at)
            assert (reading.load.cache_queries, reading.warnings) == (tokens, ())
        reader.reset_engine()


@pytest.mark.parametrize("off", [-2, -0.4, 0, 1e-3, 1, 2])
def test_a_start_time_may_be_computed_anew(off):
    more = b"process_start_time_seconds %s\n"
    pages = [served(5, more=more % str(1.8e9 + each).encode()) for each in (0, off, 0, off)]
    loads, warnings = read_all(*pages)
    assert {each.started_at for each in loads} == {1.8e9}
    assert warnings == []


@pytest.mark.parametrize(
    "page", [b"vllm:num_requests_running 0\n", b"sglang:num_running_reqs 0\n", b"other 0\n"]
)
def test_an_engine_in_the_place_of_one_that_slept_is_awake(page):
    reader = MetricsReader(Endpoint("default", "a", "10.0.0.1", 8000))
    asleep = b"vllm:num_requests_running 0\n" + sleep_page(0)
    assert not reader.read(Page(asleep), 0.0).load.awake
    reader.reset_engine()
    assert reader.read(Page(page), 1.0).load.awake


@pytest.mark.parametrize("started", [5, None])
def test_of_a_process_before_only_the_load_is_kept(started):
    """It was restarted without adapters, without a second tier, and for another model."""
    reader = MetricsReader(Endpoint("default", "a", "10.0.0.1", 8000), PREVIOUS)
    page = b"vllm:num_requests_waiting 3\nvllm:num_requests_running 1\n"
    page += b'vllm:cache_config_info{block_size="32",num_gpu_blocks="50"} 1\n'
    now = {"waiting": 3, "running": 1, "block_size": 32, "num_blocks": 50, "ranks": 1, "at": 1}
    if started is None:
        assert reader.read(Page(page), 1).load == replace(PREVIOUS, **now)
    else:
        page += b"process_start_time_seconds %d\n" % started
        others = {"engine": "vllm", "kv_usage": 0.93, "counted": True, "started_at": started}
        assert reader.read(Page(page), 1).load == replace(UNREPORTED, **now, **others)


@pytest.mark.parametrize(
    ("page", "field", "value"),
    [
        (b"vllm:num_requests_waiting 3\n", "waiting", 3),
        (b"vllm:num_requests_waiting{} 3\n", "waiting", 3),
        (b"vllm:num_requests_waiting  3.5e1 1700000000000\n", "waiting", 35),
        (b"vllm:num_requests_waiting\t3\r\n", "waiting", 3),
        (b"# a comment\n\nvllm:num_requests_running 2.0\n", "running", 2),
        (b'vllm:num_requests_waiting{a="} 9\\" 8",b="\\\\"} 3\n', "waiting", 3),
        (b"vllm:num_requests_waiting_by_reason 8\nvllm:num_requests_waiting 3\n", "waiting", 3),
        (b"# HELP vllm:num_requests_waiting 8\nvllm:num_requests_waiting 3\n", "waiting", 3),
        (b"vllm:num_requests_waiting NaN\nvllm:num_requests_waiting 3\n", "waiting", 3),
        (b"vllm:kv_cache_usage_perc 1.0000002\n", "kv_usage", 1.0),
        (b'vllm:cache_config_info{x="block_size=\\"7\\"",block_size="32"} 1\n', "block_size", 32),
        (b'vllm:cache_config_info{x=",block_size=",block_size="32"} 1\n', "block_size", 32),
        (b"vllm:num_requests_waiting 1\nprocess_start_time_seconds 1.7e+09\n", "started_at", 1.7e9),
    ],
)
def test_lines(page, field, value):
    assert getattr(read(page, at=0, previous=PREVIOUS), field) == value


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"\n",
        b"<html>502 Bad Gateway</html>",
        b"vllm:other 3\n",
        b"vllm:num_requests_waiting 3",
        b"vllm:num_requests_waiting",
        b"vllm:num_requests_waiting\n",
        b"vllm:num_requests_waiting {\n",
        b'vllm:num_requests_waiting{engine="0} 3\n',
        b"vllm:num_requests_waiting NaN\nvllm:num_requests_running -1\n",
        b"vllm:num_requests_waiting +Inf\nvllm:kv_cache_usage_perc -Inf\n",
        b"vllm:num_requests_waiting three\n",
        b"vllm:num_requests_waiting \xff\xfe\n",
        b'vllm:cache_config_info{block_size="None",num_gpu_blocks="None"} 1.0\n',
        b'vllm:cache_config_info{block_size="0",num_gpu_blocks="0"} 1.0\n',
        b'vllm:lora_requests_info{max_lora="2"} NaN\n',
        b"x\nprocess_start_time_seconds NaN\nvllm:\n",
    ],
)
def test_absent_or_unusable_values_keep_the_previous_one(page):
    load = read(page, at=1, previous=PREVIOUS)
    assert load == replace(PREVIOUS, counted=False, at=1)


@pytest.mark.parametrize(
    ("page", "counted"),
    [
        (b"vllm:num_requests_waiting 0\nvllm:num_requests_running 0\n", True),
        (b"vllm:num_requests_waiting 0\n", False),
        (b"vllm:num_requests_running 0\n", False),
        (b"vllm:num_requests_waiting 0\nvllm:num_requests_running NaN\n", False),
        (b'vllm:num_requests_waiting 0\nvllm:num_requests_running{engine="1"} 0\n', True),
    ],
)
def test_requests_are_counted_where_the_page_itself_has_both_numbers(page, counted):
    assert read(page, previous=PREVIOUS).counted is counted


def test_the_requests_of_another_rank_are_not_an_endpoints():
    page = (
        b'vllm:num_requests_waiting{engine="0"} 0\nvllm:num_requests_running{engine="0"} 0\n'
        b'vllm:kv_cache_usage_perc{engine="1"} 0\n'
    )
    assert read(page, rank=0).counted
    assert not read(page, rank=1).counted


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
    reader = MetricsReader(Endpoint("default", "a", "10.0.0.1", 8000))
    before = PageBefore()
    for number in range(20):
        text = f"# HELP\nvllm:num_requests_running 1\nvllm:gpu_cache_usage_perc 0.{number:02}\n"
        load = reader.read(Page(text.encode(), before), float(number)).load
        assert load.kv_usage == number / 100


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


PIECES = st.sampled_from(
    [
        *(line + b"\n" for line in vllm_page().splitlines()[::9]),
        *(b"vllm:num_requests_waiting", b"vllm:cache_config_info{", b'block_size="', b'"', b"\\"),
        *(b"}", b" ", b"\n", b"1e999", b"-1", b"NaN"),
    ]
)


@given(
    st.lists(PIECES | st.binary(max_size=8)).map(b"".join),
    st.sampled_from([None, "vllm", "sglang"]),
)
def test_no_page_raises_or_gives_an_impossible_load(page, engine):
    load = read(page, at=1, previous=UNREPORTED, engine=engine)
    assert 0 <= load.waiting < math.inf
    assert 0 <= load.running < math.inf
    assert 0 <= load.kv_usage <= 1
    assert load.block_size is None or load.block_size > 0
    assert load.num_blocks is None or load.num_blocks > 0


@given(st.integers(0, 4000))
def test_a_page_cut_anywhere_gives_whole_values_or_previous_ones(cut):
    page = vllm_page(waiting=123456, running=654321)[:cut]
    load = read(page, at=1, previous=PREVIOUS)
    assert load.waiting in {123456, 91}
    assert load.running in {654321, 92}


_FAMILIES = (
    *("vllm:num_requests_waiting", "vllm:num_requests_running"),
    *("vllm:kv_cache_usage_perc", "vllm:cache_config_info"),
)
_VALUES = st.lists(st.sampled_from(["0", "1", "7", "NaN", "-1"]), min_size=1, max_size=2)
_LINES = st.fixed_dictionaries({}, optional=dict.fromkeys(_FAMILIES, _VALUES))


@given(st.lists(st.tuples(_LINES, st.integers(0, 9), st.booleans()), min_size=2, max_size=20))
def test_pages_that_are_compared_with_those_before_say_what_they_say_afresh(written):
    before = PageBefore()
    comparing, afresh = (MetricsReader(Endpoint("default", "a", "10.0.0.1", 8000)) for _ in "ab")
    for at, (lines, digits, reset) in enumerate(written):
        text = f"# before\nprocess_cpu_seconds_total {10**digits}\nvllm:any 1\n"
        for name, values in lines.items():
            text += f"# TYPE {name} gauge\n"
            text += "".join(
                f'{name}{{engine="{rank}",block_size="{16 << digits % 2}"}} {value}\n'
                for rank, value in enumerate(values)
            )
        if reset:
            comparing.reset_engine()
            afresh.reset_engine()
        found = comparing.read(Page(text.encode(), before), at)
        assert found == afresh.read(Page(text.encode()), at)
