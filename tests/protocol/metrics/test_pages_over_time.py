"""What a page says after those before it: sleep, restarts, mixed servers and lost figures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epp.model.endpoint import UNREPORTED
from epp.protocol.metrics.page import Page, PageBefore
from tests.protocol.metrics.reading import PREVIOUS, read, read_all, reader


def sleep_page(awake, weights_offloaded=0, discard_all=0, engine=0):
    """The lines of `record_sleep_state` in vLLM 0.33 `v1/metrics/loggers.py`."""
    states = {"awake": awake, "weights_offloaded": weights_offloaded, "discard_all": discard_all}
    lines = (
        f'vllm:engine_sleep_state{{engine="{engine}",model_name="m",sleep_state="{state}"}} {value}'
        for state, value in states.items()
    )
    return "".join(f"{line}.0\n" for line in lines).encode()


def served(tokens, *, more=b"", waiting=b"vllm:num_requests_waiting 8\n"):
    """A page of a vLLM that has computed that many prompt tokens."""
    counts = waiting + b"vllm:num_requests_running 12\nvllm:kv_cache_usage_perc 0.5\n"
    return counts + b"vllm:prefix_cache_queries_total %d\n" % tokens + more


@pytest.mark.parametrize(
    ("page", "rank", "expected"),
    [
        (sleep_page(1), None, (True, False)),
        (sleep_page(0), None, (False, False)),  # `/sleep?level=0`: a pause
        (sleep_page(0, weights_offloaded=1), None, (False, True)),
        (sleep_page(0, discard_all=1), None, (False, True)),
        (sleep_page(1, engine=0) + sleep_page(0, 1, engine=1), None, (True, False)),
        (sleep_page(1, engine=0) + sleep_page(0, engine=1), 1, (False, False)),
        (sleep_page(1, engine=0) + sleep_page(0, engine=1), 0, (True, False)),
        (b"vllm:num_requests_waiting 3\n", None, (True, False)),
    ],
)
def test_an_engine_says_that_it_sleeps(page, rank, expected):
    load = read(b"vllm:num_requests_running 0\n" + page, rank=rank)
    assert (load.awake, load.emptied) == expected


def test_an_engine_wakes():
    pages = (sleep_page(1), sleep_page(0), sleep_page(0), sleep_page(1))
    loads, _ = read_all(*(b"vllm:num_requests_running 0\n" + page for page in pages))
    assert [each.awake for each in loads] == [True, False, False, True]


def test_an_engine_that_joins_a_server_counts():
    head, line = b"# one\n# two\n", b'vllm:num_requests_waiting{engine="%d"} 3\n'
    loads, _ = read_all(head + line % 0, head + line % 0 + line % 1)
    assert [each.waiting for each in loads] == [3, 6]


@pytest.mark.parametrize("moved", [(300, 200), (200, 300), (300, 0), (0, 300)])
def test_a_family_is_found_wherever_it_moves(moved):
    line = b'vllm:num_requests_waiting{engine="%d"} %d\n'
    pages = (
        b"# x\n" * lines + b"".join(line % (engine, waiting) for engine in range(10))
        for waiting, lines in enumerate(moved, 1)
    )
    loads, _ = read_all(*pages)
    assert [each.waiting for each in loads] == [10, 20]


RENAMED = b"vllm:kv_cache_usage_perc 0.5\nvllm:prefix_cache_queries_total %d\n"


def test_counts_that_stay_away_do_not_count():
    loads, warnings = read_all(served(5), RENAMED % 6, RENAMED % 7, RENAMED % 8, served(9))
    assert [each.waiting for each in loads] == [8, 8, 0, 0, 8]
    assert [each.running for each in loads] == [12, 12, 0, 0, 12]
    assert len(warnings) == 2
    assert all("requests of other senders do not count" in each for each in warnings)


@pytest.mark.parametrize("labels", [{}, {"llm-d.ai/engine-type": "vllm"}])
def test_requests_before_pages_without_any_known_metric_do_not_count(labels):
    """A login page or a proxy's notice, with status 200: nothing says that they are still there."""
    one, loads = reader(labels=labels), []
    for at, page in enumerate((served(5), b"<html>\n", b"<html>\n", b"<html>\n", served(9))):
        loads.append(one.read(Page(page), at).load)
    assert [(each.waiting, each.running) for each in loads] == [
        *[(8, 12)] * 2,
        *[(0, 0)] * 2,
        (8, 12),
    ]
    assert [each.kv_usage for each in loads] == [0.5, 0.5, 0, 0, 0.5]
    assert [each.at for each in loads] == [0, 1, 2, 3, 4]


def test_the_count_that_stays_away_is_named():
    page = b"vllm:num_requests_waiting 8\n" + RENAMED
    _, warnings = read_all(page % 6, page % 7)
    assert ["vllm:num_requests_running" in each for each in warnings] == [True]


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
    page = b"vllm:kv_cache_usage_perc %g\nprocess_start_time_seconds %d\n"
    shares = [(0, 5), (0.7, 5), (40, 5), (0.7, 5), (1.2, 5), (0.7, 99)]
    loads, warnings = read_all(*(page % each for each in shares))
    assert [each.kv_usage for each in loads] == [0, 0.7, 0, 0, 0, 0.7]
    assert warnings == ["vllm:kv_cache_usage_perc is 40, which is ignored"]


def test_an_engine_that_uses_a_little_more_than_all_is_full():
    loads, warnings = read_all(b"sglang:token_usage 1.02\n", b"sglang:token_usage 0.99\n")
    assert [each.kv_usage for each in loads] == [1, 0.99]
    assert warnings == []


def test_behind_the_address_of_a_service_each_process_starts_once():
    cache = b'vllm:cache_config_info{num_gpu_blocks="50"} 1\n'
    pages = [
        served(tokens, more=cache + b"process_start_time_seconds %d\n" % started)
        for tokens, started in ((50, 100), (7, 300), (51, 100), (8, 300), (90, 200), (52, 100))
    ]
    loads, warnings = read_all(*pages)
    assert [each.started_at for each in loads] == [100, 300, 300, 300, 200, 200]
    assert {(each.engine, each.num_blocks) for each in loads} == {("vllm", 50)}
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


def test_a_counter_may_begin_with_the_first_prompt():
    idle = b"sglang:num_queue_reqs 0\nsglang:num_running_reqs 0\n"
    counts = (b"sglang:prompt_tokens_total %d\n" % tokens for tokens in range(1, 20))
    loads, warnings = read_all(idle, *(idle + each for each in counts))
    assert (loads[0].cache_queries, loads[-1].cache_queries, warnings) == (None, 19, [])


def test_a_restart_that_the_page_tells_is_none_of_several():
    told = ((50, 100), (7, 300), (60, 300))
    start = b"process_start_time_seconds %d\n"
    loads, warnings = read_all(*(served(each, more=start % at) for each, at in told))
    assert ([each.cache_queries for each in loads], warnings) == ([50, 7, 60], [])


def test_an_engine_that_crashes_early_is_not_several():
    """Its counter may soon be as high again, but for a while it does not answer."""
    one, before = reader(), PageBefore()
    for start in range(0, 90, 30):
        for at, tokens in enumerate((7, 500, 8000)):
            reading = one.read(Page(served(tokens), before), start + at)
            assert (reading.load.cache_queries, reading.warnings) == (tokens, ())
        one.reset_engine()


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
    one = reader()
    asleep = b"vllm:num_requests_running 0\n" + sleep_page(0)
    assert not one.read(Page(asleep), 0.0).load.awake
    one.reset_engine()
    assert one.read(Page(page), 1.0).load.awake


@pytest.mark.parametrize("started", [5, None])
def test_of_a_process_before_only_the_load_is_kept(started):
    """It was restarted without adapters, without a second tier, and for another model."""
    one = reader(PREVIOUS)
    page = b"vllm:num_requests_waiting 3\nvllm:num_requests_running 1\n"
    page += b'vllm:cache_config_info{block_size="32",num_gpu_blocks="50"} 1\n'
    now = {"waiting": 3, "running": 1, "block_size": 32, "num_blocks": 50, "ranks": 1, "at": 1}
    if started is None:
        assert one.read(Page(page), 1).load == replace(PREVIOUS, **now)
    else:
        page += b"process_start_time_seconds %d\n" % started
        others = {"engine": "vllm", "kv_usage": 0.93, "counted": True, "started_at": started}
        assert one.read(Page(page), 1).load == replace(UNREPORTED, **now, **others)


_FAMILIES = (
    *("vllm:num_requests_waiting", "vllm:num_requests_running"),
    *("vllm:kv_cache_usage_perc", "vllm:cache_config_info"),
)
_VALUES = st.lists(st.sampled_from(["0", "1", "7", "NaN", "-1"]), min_size=1, max_size=2)
_LINES = st.fixed_dictionaries({}, optional=dict.fromkeys(_FAMILIES, _VALUES))


@given(st.lists(st.tuples(_LINES, st.integers(0, 9), st.booleans()), min_size=2, max_size=20))
def test_pages_that_are_compared_with_those_before_say_what_they_say_afresh(written):
    before = PageBefore()
    comparing, afresh = reader(), reader()
    for at, (lines, digits, reset) in enumerate(written):
        text = f"# before\nprocess_cpu_seconds_total {10**digits}\nvllm:any 1\n"
        text += f"vllm:gpu_cache_usage_perc 0.{digits}\nprocess_start_time_seconds 500\n"
        for name, values in lines.items():
            text += f"# TYPE {name} gauge\n"
            text += "".join(
                f'{name}{{engine="{rank}",block_size="{16 << digits % 2}"}} {value}\n'
                for rank, value in enumerate(values)
            )
        if reset:
            comparing.reset_engine()
            afresh.reset_engine()
        for time in (at, at + 0.5):  # the next page may be the same
            page = Page(text.encode(), before)
            assert comparing.read(page, time) == afresh.read(Page(text.encode()), time)
            joins = reader(rank=0)
            assert joins.read(page, time) == reader(rank=0).read(Page(text.encode()), time)
