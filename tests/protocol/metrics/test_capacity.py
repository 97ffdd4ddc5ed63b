"""What metrics pages say of a cache's size and rules, and what of it is not believed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.endpoint import Load
from epp.protocol.metrics.page import Page
from tests.adapters.vllm_page import vllm_page
from tests.protocol.metrics.reading import reader

OFFLOAD = "warmpick.io/offload-tokens"


def read(text, **endpoint):
    return reader(**endpoint).read(Page(text), at=1.0)


def config(engine=0, **labels):
    """Write vLLM's `cache_config_info`, which says "None" of what it does not know."""
    named = {"block_size": 16, "num_gpu_blocks": 1025, "prefix_match_unit": None, **labels}
    pairs = ",".join(f'{name}="{value}"' for name, value in named.items())
    return f'vllm:cache_config_info{{{pairs},engine="{engine}"}} 1.0\n'.encode()


def family(name, *values, **labels):
    """Return the lines of one gauge with a sample for each `rank`."""
    pairs = "".join(f',{key}="{value}"' for key, value in labels.items())
    lines = (f'{name}{{dp_rank="{rank}"{pairs}}} {value}\n' for rank, value in enumerate(values))
    return "".join(lines).encode()


SGLANG = family("sglang:num_queue_reqs", 1) + family("sglang:num_running_reqs", 2)
SGLANG_GAUGES = (
    SGLANG
    + family("sglang:page_size", 1)
    + family("sglang:num_pages", 200_000)
    + family("sglang:max_total_num_tokens", 200_000)
    + family("sglang:hicache_host_total_tokens", 400_001)
)
SGLANG_LABELS = (
    SGLANG
    + b'sglang:cache_config_info{num_pages="3125",page_size="64"} 1.0\n'
    + family("sglang:max_total_num_tokens", 200_001)
)
TRT = b"trtllm_kv_cache_max_blocks 21129.0\ntrtllm_kv_cache_tokens_per_block 32.0\n"


@pytest.mark.parametrize(
    ("page", "capacity"),
    [
        (config(), 1024 * 16),
        (config(num_gpu_blocks=None), None),
        (config(effective_attention_block_size=32), 1024 * 32),
        (config(effective_attention_block_size=None), 1024 * 16),
        (SGLANG_GAUGES, 200_000),
        (SGLANG_LABELS, 200_001),
        (family("sglang:page_size", 64, 64) + family("sglang:num_pages", 10, 12), 22 * 64),
        (SGLANG + b'sglang:cache_config_info{num_pages="10",page_size="64"} 1.0\n', 640),
        (SGLANG, None),
        (TRT, 21129 * 32),
        (b"nv_inference_exec_count 5\n", None),
    ],
)
def test_each_engine_counts_its_own_way(page, capacity):
    reading = read(page)
    assert reading.load.capacity_tokens == capacity
    assert reading.warnings == ()


@pytest.mark.parametrize(("rank", "ranks", "blocks"), [(None, 4, 4096), (0, 1, 1024), (3, 1, 1024)])
def test_vllm_says_the_blocks_of_all_engines_on_the_series_of_each(rank, ranks, blocks):
    reading = read(vllm_page(engines=4), rank=rank)
    load = reading.load
    assert reading.warnings == ()
    assert (load.ranks, load.num_blocks, load.block_size) == (ranks, blocks, 16)
    assert load.capacity_tokens == (blocks - ranks) * 16
    assert (load.waiting, load.running) == (3 * ranks, 7 * ranks)
    assert load.spread == 1.0


def test_sglang_repeats_a_rank_for_each_of_its_workers():
    workers = [family("sglang:num_queue_reqs", *each, tp_rank=each[1]) for each in ((3, 4), (2, 1))]
    pools = [family("sglang:max_total_num_tokens", 5000, 6000, tp_rank=w) for w in range(2)]
    page = b"".join(workers + pools)
    assert (read(page).load.waiting, read(page).load.capacity_tokens) == (7, 11_000)
    assert (read(page, rank=1).load.waiting, read(page, rank=1).load.capacity_tokens) == (4, 6000)


def test_a_rank_that_the_page_lacks_is_reported_and_reads_nothing():
    reading = read(vllm_page(engines=2), rank=2)
    assert reading.warnings == ("the page has no engine 2",)
    assert (reading.load.waiting, reading.load.capacity_tokens) == (0, None)
    assert read(config(), rank=2).warnings == ()  # no engine has a load yet


def test_adapters_have_no_rank_in_vllm():
    lora = 'vllm:lora_requests_info{max_lora="4",running_lora_adapters="x",waiting_lora_adapters=""'
    load = read(vllm_page(engines=2) + f"{lora}}} 1.0\n".encode(), rank=1).load
    assert (load.running_adapters, load.max_adapters) == ({"x"}, 4)


def longest(blocks_taken, *, tokens, blocks):
    """What vLLM says where the longest request, of `tokens`, takes so many blocks."""
    fit = blocks / blocks_taken
    return {
        "num_gpu_blocks": blocks,
        "kv_cache_max_concurrency": fit,
        "kv_cache_size_tokens": int(fit * tokens),
    }


@given(
    tokens=st.integers(1, 1 << 20),
    size=st.sampled_from([1, 16, 32, 528, 4096]),
    spare=st.integers(0, 1 << 20),
)
def test_where_every_layer_keeps_every_token_capacity_is_exact(tokens, size, spare):
    taken = -(-tokens // size)
    blocks = taken + 1 + spare
    load = read(config(block_size=size, **longest(taken, tokens=tokens, blocks=blocks))).load
    assert load.spread == 1.0
    assert load.capacity_tokens == (blocks - 1) * size


@pytest.mark.parametrize(
    ("taken", "capacity"),
    [
        (2 * 512, 2500 * 16),  # as many blocks for a second kind of layer
        (512 + 64, 71_111),  # ... which forgets all but its window
        (64, 5000 * 16),  # all layers forget: the pool holds what it holds
    ],
)
def test_a_hybrid_models_capacity_is_a_bound(taken, capacity):
    labels = longest(taken, tokens=8192, blocks=5001)
    load = read(config(**labels)).load
    assert load.spread != 1.0
    assert load.capacity_tokens == capacity


def test_pools_of_one_server_that_differ_a_little_are_no_hybrid():
    labels = longest(512, tokens=8192, blocks=5000) | {"num_gpu_blocks": 5000 + 4997}
    load = read(config(0, **labels) + config(1, **labels)).load
    assert load.spread == 1.0
    assert load.capacity_tokens == (9997 - 2) * 16


@pytest.mark.parametrize(
    ("labels", "unit"),
    [
        ({"prefix_match_unit": 32, "block_size": 1056}, 32),
        ({"cache_hit_alignment_tokens": 1056, "prefix_match_unit": 32, "block_size": 528}, 1056),
        ({"prefix_match_unit": 16}, None),
        ({}, None),
    ],
)
def test_where_hits_may_end(labels, unit):
    assert read(config(**labels)).load.match_unit == unit


@pytest.mark.parametrize(("said", "caching"), [("True", True), ("False", False), (None, True)])
def test_whether_anything_is_cached(said, caching):
    assert read(config(enable_prefix_caching=said)).load.caching is caching


INFO = b'vllm:simple_kv_offload_info{backend="cpu",capacity_blocks="5000",engine="0"} 1.0\n'
# vLLM 0.33 `TieringOffloadingSpec`: a tier's sample has the labels of all, empty if not its own.
TIERS = b"".join(
    b'vllm:kv_offload_config_info{cpu_blocks_per_chunk="1",cpu_kv_cache_size_tokens="%s",'
    b'cpu_num_chunks="9",engine="0",tier="%s"} 1.0\n' % tier
    for tier in ((b"90000", b"0:primary"), (b"", b"1:fs"))
)
TYPE = b"# TYPE vllm:kv_offload_config_info gauge\n"
BYTES = b'vllm:kv_offload_total_bytes_total{engine="0",transfer_type="CPU_to_GPU"} 0.0\n'
UNKNOWN_TIER = f"the cache has a second tier, whose size in tokens is unknown: the label {OFFLOAD}"


@pytest.mark.parametrize(
    ("page", "label", "tokens", "told"),
    [
        (config(), None, None, True),
        (config(), 7000, 7000, True),
        (SGLANG_GAUGES, None, 400_001, True),
        (config() + INFO, 7000, 80_000, True),
        (config(kv_offloading_size=4.0) + TIERS, None, 90_000, True),
        (config(kv_offloading_size=4.0) + TIERS, 7000, 90_000, True),
        (config() + TIERS.replace(b"90000", b"None") + BYTES, None, None, False),
        (config(kv_offloading_size=4.0) + TYPE, None, None, True),  # no step was run yet
        (config(kv_offloading_size=4.0), None, None, False),
        (config(kv_offloading_size=4.0), 7000, 7000, True),
        (config() + BYTES, None, None, False),
        (config() + b'vllm:kv_offload_store_bytes_total{engine="0"} 0.0\n', None, None, False),
    ],
)
def test_a_second_tier(page, label, tokens, told):
    reading = read(page, labels={OFFLOAD: str(label)} if label else {})
    assert reading.load.offload_tokens == tokens
    assert [warning.startswith(UNKNOWN_TIER) for warning in reading.warnings] == [True] * (not told)


GOOD = Load(engine="vllm", block_size=16, num_blocks=1025)


@pytest.mark.parametrize(
    ("labels", "warning"),
    [
        ({"block_size": 0}, "vllm:cache_config_info{block_size} is 0"),
        ({"block_size": -16}, "vllm:cache_config_info{block_size} is -16"),
        ({"block_size": 1.5}, "vllm:cache_config_info{block_size} is 1.5"),
        ({"block_size": 1 << 21}, "vllm:cache_config_info{block_size} is 2.09715e+06"),
        ({"block_size": "NaN"}, "vllm:cache_config_info{block_size} is NaN"),
        ({"block_size": "many"}, "vllm:cache_config_info{block_size} is many"),
        ({"num_gpu_blocks": 0}, "vllm:cache_config_info{num_gpu_blocks} is 0"),
        ({"num_gpu_blocks": -1}, "vllm:cache_config_info{num_gpu_blocks} is -1"),
        ({"num_gpu_blocks": "inf"}, "vllm:cache_config_info{num_gpu_blocks} is inf"),
        ({"num_gpu_blocks": 1e30}, "vllm:cache_config_info{num_gpu_blocks} is 1e+30"),
        ({"num_gpu_blocks": 1}, "1 blocks of 16 tokens in 1 engines cannot be a cache's size"),
        ({"num_gpu_blocks": 1e14}, "vllm:cache_config_info{num_gpu_blocks} is 1e+14"),
        ({"num_gpu_blocks": 1e10}, "10000000000 blocks of 16 tokens in 1 engines cannot be"),
    ],
)
def test_impossible_values_are_ignored_and_reported_once(labels, warning):
    one = reader()
    one.read(Page(config()), at=0.0)
    first, second = (one.read(Page(config(**labels)), at=at) for at in (1.0, 2.0))
    assert len(first.warnings) == 1
    assert first.warnings[0].startswith(warning)
    assert first.warnings[0].endswith("ignored")
    assert second.warnings == ()
    assert second.load.capacity_tokens == GOOD.capacity_tokens
    assert (second.load.block_size, second.load.num_blocks) == (16, 1025)
    again = one.read(Page(config(num_gpu_blocks=2049)), at=3.0)
    assert again.load.capacity_tokens == 2048 * 16


@pytest.mark.parametrize("size", [1, 4096])
def test_small_and_large_blocks_are_accepted(size):
    reading = read(config(block_size=size))
    assert reading.warnings == ()
    assert (reading.load.block_size, reading.load.capacity_tokens) == (size, 1024 * size)


@pytest.mark.parametrize("tokens", [0, -1, "NaN", 1e12])
def test_an_absurd_count_of_tokens_is_ignored(tokens):
    page = SGLANG + family("sglang:page_size", 64) + family("sglang:max_total_num_tokens", tokens)
    reading = read(page)
    assert reading.load.capacity_tokens is None
    assert len(reading.warnings) == 1


def test_a_queue_of_absurd_length_is_ignored():
    page = b"vllm:num_requests_waiting 1e30\nvllm:num_requests_running 5\n"
    reading = read(page)
    assert (reading.load.waiting, reading.load.running) == (0, 5)
    assert reading.warnings == ("vllm:num_requests_waiting is 1e+30, which is ignored",)


@given(
    st.dictionaries(
        st.sampled_from(
            ["block_size", "num_gpu_blocks", "kv_cache_max_concurrency", "kv_cache_size_tokens"]
        ),
        st.sampled_from([0, 1, 16, 4096, -3, 0.5, 1e5, 1e9, 1e30, "NaN", "inf", "x", None])
        | st.floats(),
    ),
    st.integers(1, 3),
)
def test_no_configuration_gives_an_impossible_capacity(labels, engines):
    page = b"".join(config(engine, **labels) for engine in range(engines))
    load = read(page).load
    capacity = load.capacity_tokens
    assert capacity is None or load.block_size <= capacity <= 1 << 36
    assert load.spread > 0
