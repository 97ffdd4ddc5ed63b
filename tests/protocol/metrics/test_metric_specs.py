"""Metrics and engines of a user's: how they are written, and what is read by them."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.endpoint import Endpoint
from epp.protocol.metrics.attribute_reader import DCGM, AttributeMetric, AttributeReader
from epp.protocol.metrics.metric_names import ENGINES, EngineCatalog, EngineMetrics, Metric
from epp.protocol.metrics.metric_specs import engine_of, of_cache, parse_spec
from epp.protocol.metrics.metrics_reader import MetricsReader
from epp.protocol.metrics.page import Page
from epp.protocol.steps import finish
from tests.adapters.vllm_page import vllm_page

LABEL = "llm-d.ai/engine-type"


@pytest.mark.parametrize(
    ("text", "family", "where"),
    [
        ("a:b_1", b"a:b_1", ()),
        (" a ", b"a", ()),
        ("a{}", b"a", ()),
        ("a{ }", b"a", ()),
        ("a{k=v}", b"a", ((b"k", b"v"),)),
        ('a {k="v", l=w-1.5/x}', b"a", ((b"k", b"v"), (b"l", b"w-1.5/x"))),
        ('a{k=""}', b"a", ((b"k", b""),)),
        ('a{k="ü v"}', b"a", ((b"k", "ü v".encode()),)),
        ("a{k=v,k=w}", b"a", ((b"k", b"w"),)),
    ],
)
def test_a_specification_names_a_family_and_labels(text, family, where):
    metric = parse_spec(text)
    assert metric is not None
    assert (metric.family, metric.label, metric.where) == (family, b"", where)


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_an_empty_specification_is_none(text):
    assert parse_spec(text) is None


@pytest.mark.parametrize(
    "text",
    ["1a", "a b", "a{", "a}", "a{k}", "a{k=}", "a{=v}", "a{k=v,}", "a{k=v w}", "a{1=v}", "ä"],
)
def test_a_malformed_specification_is_refused(text):
    with pytest.raises(ValueError, match=r"is not a metric|is not label=value"):
        parse_spec(text)


@given(st.text(alphabet='ab1{}=," \\\n', max_size=30))
def test_whatever_is_written_is_read_or_refused(text):
    with contextlib.suppress(ValueError):
        parse_spec(text)


def catalog(name, kv_usage="", cache_info="", block_size_label="block_size", **fields):
    """Return the built-in engines and one of the user's, whose metrics are given as text."""
    usage, info = parse_spec(kv_usage), parse_spec(cache_info)
    parsed: dict[str, Any] = {
        key: parse_spec(each) if isinstance(each, str) else each for key, each in fields.items()
    }
    engine = engine_of(
        EngineMetrics(
            name=name,
            signs=(),
            kv_usage=() if usage is None else (usage,),
            block_size=of_cache(None, info, block_size_label),
            num_blocks=of_cache(None, info, "num_gpu_blocks"),
            **parsed,
        )
    )
    others = [each for each in ENGINES.values() if each.name != name]
    return EngineCatalog([engine, *others])


def read(engines, *pages, labels=None, rank=None):
    reader = MetricsReader(Endpoint("default", "a", "10.0.0.1", 8000, labels or {}, rank=rank))
    return [reader.read(Page(text, None, engines), float(at)) for at, text in enumerate(pages)][
        -1
    ].load


PAGE = b"""my_queue{kind="waiting"} 3
my_queue{kind="done"} 900
my_usage 0.5
info{size="32",num_gpu_blocks="100",x="1"} 1
temperature{sensor="a"} -4.5
temperature{sensor="b"} 7
"""
MINE = catalog(
    name="mine",
    waiting="my_queue{kind=waiting}",
    kv_usage="my_usage",
    cache_info="info{x=1}",
    block_size_label="size",
    attributes=(("t/core", parse_spec("temperature{sensor=a}")), ("u/core", Metric(b"absent"))),
)


def test_an_engine_of_the_users_is_read_by_its_label_or_by_what_is_on_its_page():
    for labels in ({}, {LABEL: "mine"}, {LABEL: "nobody's"}):
        load = read(MINE, PAGE, labels=labels)
        assert (load.waiting, load.running, load.kv_usage) == (3, 0, 0.5)
        assert (load.engine, load.block_size, load.num_blocks) == ("mine", 32, 100)
        assert load.attributes == {"t/core": -4.5}


def test_other_engines_are_known_beside_it():
    assert read(MINE, vllm_page()).engine == "vllm"
    assert read(MINE, b"sglang:num_queue_reqs 5\n").waiting == 5


def test_a_users_name_of_the_usage_is_the_built_in_one_under_all_its_names():
    mine = catalog(name="vllm", kv_usage="vllm:gpu_cache_usage_perc")
    assert mine.engines["vllm"].kv_usage == ENGINES["vllm"].kv_usage
    assert read(mine, b"vllm:kv_cache_usage_perc 0.5\n").kv_usage == 0.5


HYBRID = (
    b'vllm:cache_config_info{block_size="16",num_gpu_blocks="5001",'
    b'kv_cache_max_concurrency="2.5",kv_cache_size_tokens="20480"} 1\n'
)
GAUGES = b"sglang:page_size 64\nsglang:max_total_num_tokens 6400\n"


@pytest.mark.parametrize(
    ("name", "waiting", "page"),
    [("vllm", "vllm:num_requests_waiting", HYBRID), ("sglang", "sglang:num_queue_reqs", GAUGES)],
)
def test_a_cache_that_a_user_does_not_name_is_read_as_before(name, waiting, page):
    page += waiting.encode() + b" 3\n"
    plain = read(EngineCatalog(ENGINES.values()), page)
    assert plain.spread > 1 or plain.max_tokens == 6400
    assert read(catalog(name=name, waiting=waiting), page) == plain
    own = catalog(name=name, waiting=waiting, cache_info="info", block_size_label="size")
    load = read(own, page + PAGE)
    assert (load.block_size, load.num_blocks, load.max_tokens, load.spread) == (32, 100, None, 1.0)


def test_an_engine_with_its_own_names_is_found_by_its_prefix():
    mine = catalog(name="vllm", waiting="vllm:num_requests_waiting")
    for page, engine in ((b"", "vllm"), (b"nv_inference_pending_request_count 4\n", "triton")):
        assert read(mine, b"vllm:prompt_tokens_total 9\n" + page).engine == engine


def test_an_engine_that_a_user_reads_from_pages_of_another_is_found_there():
    triton = b"vllm:prompt_tokens_total 9\nnv_inference_pending_request_count 4\n"
    mine = catalog(name="vllm", waiting="nv_inference_pending_request_count")
    load = read(mine, triton)
    assert (load.engine, load.waiting) == ("vllm", 4)
    assert read(catalog(name="mine", waiting="my_queue"), triton).engine == "triton"


def test_an_attribute_that_is_gone_keeps_its_value():
    later = b"my_usage 0.25\n" + b'temperature{sensor="a"} NaN\n'
    load = read(MINE, PAGE, later)
    assert (load.kv_usage, load.attributes) == (0.25, {"t/core": -4.5})


def test_vllm_with_a_metric_more_is_read_as_vllm_is():
    mine = catalog(
        name="vllm",
        waiting="vllm:num_requests_waiting",
        running="vllm:num_requests_running",
        kv_usage="vllm:kv_cache_usage_perc",
        cache_info="vllm:cache_config_info",
        adapters="vllm:lora_requests_info",
        attributes=(("tokens", parse_spec("vllm:some_3_tokens_total")),),
    )
    page = vllm_page(engines=2)
    plain, more = read(EngineCatalog(ENGINES.values()), page), read(mine, page)
    assert more.attributes == {"tokens": 5.0}
    for field in ("waiting", "running", "kv_usage", "num_blocks", "ranks", "block_size", "caching"):
        assert getattr(more, field) == getattr(plain, field), field
    assert read(mine, page, rank=1).waiting == 3


def numbers(metrics, text, pod="pod-a"):
    return finish(AttributeReader(metrics).steps(Page(text), pod))


GPUS = b"""DCGM_FI_DEV_GPU_UTIL{gpu="0",pod="pod-a"} 40
DCGM_FI_DEV_GPU_UTIL{gpu="1",pod="pod-a"} 75
DCGM_FI_DEV_GPU_UTIL{gpu="2",pod="pod-b"} 99
DCGM_FI_DEV_GPU_UTIL{gpu="3",pod=""} 98
"""


@pytest.mark.parametrize(
    ("text", "pod", "expected"),
    [
        (GPUS, "pod-a", 0.75),
        (GPUS, "pod-b", 0.99),
        (GPUS, "pod-c", None),
        (b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 12\nDCGM_FI_DEV_GPU_UTIL{gpu="1"} 3\n', "pod-a", 0.12),
        (b"DCGM_FI_DEV_GPU_UTIL 0\n", "pod-a", 0.0),
        (b"DCGM_FI_DEV_GPU_UTIL 9e9\n", "pod-a", None),
        (b"DCGM_FI_DEV_GPU_UTIL NaN\nDCGM_FI_DEV_GPU_UTIL -1\n", "pod-a", None),
        (b"DCGM_FI_DEV_GPU_UTILITY 5\n", "pod-a", None),
        (b"\xff{\x00", "pod-a", None),
        (b"", "pod-a", None),
    ],
)
def test_the_busiest_gpu_of_a_pod_counts(text, pod, expected):
    found = numbers((DCGM,), text, pod).attributes
    assert found == ({} if expected is None else {DCGM.key: pytest.approx(expected)})


def test_of_other_numbers_the_first_counts():
    metrics = (
        AttributeMetric("usage", Metric(b"usage", where=((b"name", b"pool"),))),
        AttributeMetric("queue", Metric(b"queue")),
    )
    text = b'usage{name="other"} 1\nusage{name="pool"} 0.5\nusage{name="pool"} 0.75\n'
    found = numbers(metrics, text + b"queue 7\n")
    assert (found.attributes, found.warnings) == ({"usage": 0.5, "queue": 7.0}, ())


def test_what_is_missing_is_said_once():
    reader = AttributeReader((DCGM,))
    said = [list(finish(reader.steps(Page(b"x 1\n"), "a")).warnings) for _ in range(2)]
    assert said == [
        ["its page has no DCGM_FI_DEV_GPU_UTIL that can be GPUUtilization/dcgm-extractor"],
        [],
    ]


def test_a_long_page_of_gpus_is_read_in_steps():
    text = b"".join(b'DCGM_FI_DEV_GPU_UTIL{gpu="%d",pod="a"} 1\n' % n for n in range(10_000))
    assert sum(1 for _ in AttributeReader((DCGM,)).steps(Page(text), "a")) > 20
