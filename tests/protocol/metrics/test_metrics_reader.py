"""One page as text: the lines that count, whatever else or whatever nonsense is on it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epp.model.endpoint import UNREPORTED
from tests.adapters.vllm_page import vllm_page
from tests.protocol.metrics.reading import PREVIOUS, read


@pytest.mark.parametrize(
    ("page", "field", "value"),
    [
        (b"vllm:num_requests_waiting 3\n", "waiting", 3),
        (b"vllm:num_requests_waiting{} 3\n", "waiting", 3),
        (b"vllm:num_requests_waiting  3.5e1 1700000000000\n", "waiting", 35),
        (b"vllm:num_requests_waiting\t3\r\n", "waiting", 3),
        (b"# a comment\n\nvllm:num_requests_running 2.0\n", "running", 2),
        (b'vllm:num_requests_waiting{a="} 9\\" 8",b="\\\\"} 3\n', "waiting", 3),
        (
            b"x 1\nvllm:num_requests_waiting_by_reason 8\nvllm:num_requests_waiting 3\n",
            "waiting",
            3,
        ),
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
