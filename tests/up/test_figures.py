import math

import pytest

from epp.up.figures import (
    LiveFigures,
    PickerPage,
    ProxyPage,
    Window,
    median,
    picker_page,
    proxy_page,
    status_line,
)

PAGE = """\
# TYPE llm_d_epp_ready_endpoints gauge
llm_d_epp_ready_endpoints{name="default"} 2.0
llm_d_epp_request_ttft_seconds_bucket{model_name="a",streaming="true",le="0.1"} 3
llm_d_epp_request_ttft_seconds_bucket{model_name="b",streaming="true",le="0.1"} 1
llm_d_epp_request_ttft_seconds_bucket{model_name="a",streaming="true",le="+Inf"} 6
llm_d_epp_request_ttft_seconds_bucket{model_name="b",streaming="true",le="+Inf"} 2
llm_d_epp_request_ttft_seconds_bucket{model_name="a",streaming="false",le="+Inf"} 50
llm_d_epp_request_duration_seconds_bucket{model_name="a",streaming="true",le="0.1"} 70
llm_d_epp_request_input_tokens_sum{model_name="a"} 1000
llm_d_epp_request_cached_tokens_sum{model_name="a"} 250
llm_d_epp_request_cached_tokens_count{model_name="a"} 4
another_family 7
"""
EMPTY = PickerPage()


def test_the_pickers_page_is_read():
    assert picker_page(PAGE) == PickerPage(
        healthy=2,
        prompt_tokens=1000,
        cached_tokens=250,
        cached_answers=4,
        ttft={0.1: 4, math.inf: 8},
    )
    assert picker_page("") == EMPTY


def test_envoys_page_is_read():
    text = "http.gateway.downstream_rq_active: 3\nhttp.gateway.downstream_rq_total: 40\n"
    assert proxy_page(text) == ProxyPage(3, 40)
    assert proxy_page("") == ProxyPage()


@pytest.mark.parametrize(
    ("cumulative", "expected"),
    [
        ({}, None),
        ({0.1: 0, math.inf: 0}, None),
        ({0.1: 2, math.inf: 2}, 0.05),  # the first of two: half of the bucket from 0
        ({0.1: 1, 0.3: 3, math.inf: 4}, 0.2),  # the second of four: 1 of the 2 from 0.1 to 0.3
        ({0.1: 0, 0.5: 8, math.inf: 8}, 0.3),  # the fourth of eight: half of the way to 0.5
        ({0.1: 0, math.inf: 4}, 0.1),  # over the last bound: that bound
    ],
)
def test_a_median_is_spread_over_its_bucket(cumulative, expected):
    assert median(cumulative) == pytest.approx(expected)


def test_figures_are_of_the_window():
    window = Window()
    before = PickerPage(
        prompt_tokens=100, cached_tokens=90, cached_answers=1, ttft={1.0: 9, 2.0: 9, math.inf: 9}
    )
    after = PickerPage(
        healthy=2,
        prompt_tokens=300,
        cached_tokens=190,
        cached_answers=3,
        ttft={1.0: 9, 2.0: 11, math.inf: 11},
    )
    window.add(100.0, before, ProxyPage(0, 10))
    window.add(104.0, after, ProxyPage(3, 30))
    # 20 requests in 4 s; the two new answers within 1 to 2 s; 100 of 200 tokens
    assert window.figures() == LiveFigures(
        active=3, per_second=5.0, ttft=1.5, cached=0.5, healthy=2
    )
    window.add(140.0, after, ProxyPage(1, 30))
    assert window.figures() == LiveFigures(
        active=1, per_second=0, ttft=None, cached=None, healthy=2
    )
    window.add(145.0, PickerPage(prompt_tokens=900, cached_answers=3), ProxyPage(1, 30))
    assert window.figures().cached is None  # no server said how much was cached


def test_a_page_that_is_late_changes_no_figure():
    served = PickerPage(healthy=2, ttft={1.0: 9, math.inf: 9})
    window = Window()
    window.add(0.0, None, None)  # nothing has answered yet
    assert window.figures() == LiveFigures(
        active=0, per_second=0, ttft=None, cached=None, healthy=0
    )
    window.add(1.0, served, ProxyPage(3, 1_000_000))
    window.add(40.0, served, ProxyPage(3, 1_000_000))
    window.add(41.0, served, None)
    assert (window.figures().active, window.figures().per_second) == (3, 0.0)
    window.add(42.0, None, ProxyPage(3, 1_000_010))
    figures = window.figures()
    assert (figures.per_second, figures.ttft, figures.healthy) == (5.0, None, 2)  # 10 in 2 s
    window.add(43.0, None, None)
    assert window.figures() == figures
    window.add(44.0, PickerPage(healthy=1, ttft=served.ttft), None)
    assert window.figures().healthy == 1


def test_the_rate_is_of_the_last_seconds():
    window = Window()
    for at, total in ((0.0, 0), (20.0, 1_000), (24.0, 1_008)):
        window.add(at, None, ProxyPage(0, total))
    assert window.figures().per_second == 2.0  # 8 in 4 s


@pytest.mark.parametrize(
    ("picker", "proxy"),
    [(EMPTY, ProxyPage(0, 10)), (PickerPage(ttft={1.0: 9, math.inf: 9}), ProxyPage(0, 1))],
)
def test_a_process_that_starts_again_starts_the_window_again(picker, proxy):
    window = Window()
    window.add(0.0, PickerPage(ttft={1.0: 9, math.inf: 9}), ProxyPage(0, 10))
    window.add(1.0, picker, proxy)
    assert (window.figures().per_second, window.figures().ttft) == (0.0, None)
    later = {bound: picker.ttft.get(bound, 0) + 2 for bound in (1.0, math.inf)}
    window.add(2.0, PickerPage(ttft=later), proxy)
    assert window.figures().ttft == 0.5  # of two within 1 s


def test_a_picker_that_starts_again_without_streams_starts_the_window_again():
    window = Window()
    for at, prompt, cached in ((0.0, 1000, 500), (1.0, 200, 0), (2.0, 1200, 600)):
        page = PickerPage(prompt_tokens=prompt, cached_tokens=cached, cached_answers=prompt)
        window.add(at, page, ProxyPage())
    assert window.figures().cached == 0.6  # 600 of 1,000, since the start


LINES = {
    (0, 0.0, None, None): "0 under way, 0.0/s, TTFT p50 -, cached -, 2 of 3 healthy",
    (12, 34.56, 0.2104, 0.634): "12 under way, 34.6/s, TTFT p50 210 ms, cached 63%, 2 of 3 healthy",
    (1, 1.0, 2.5, 0.0): "1 under way, 1.0/s, TTFT p50 2.50 s, cached 0%, 2 of 3 healthy",
}


@pytest.mark.parametrize("values", LINES)
def test_the_line(values):
    active, rate, ttft, cached = values
    figures = LiveFigures(active=active, per_second=rate, ttft=ttft, cached=cached, healthy=2)
    assert status_line(figures, 3, picking=True) == LINES[values]


def test_the_line_without_a_picker():
    figures = LiveFigures(active=2, per_second=1, ttft=1.0, cached=1.0, healthy=0)
    said = status_line(figures, 3, picking=False)
    assert said == "2 under way, 1.0/s, no picker: servers take turns"
