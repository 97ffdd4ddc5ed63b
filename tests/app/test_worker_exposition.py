"""Metrics pages of several workers as one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.utils import floatToGoString

from epp.app.workers.exposition import (
    FamilySamples,
    Page,
    counts_of,
    drop_unseen,
    keep_counts,
    keep_forgotten,
    merged,
    read_page,
    written,
)


def block(name, kind, **samples):
    """The text of a family; a sample's name says its label."""
    lines = [f'{name}{{x="{label}"}} {value}\n' for label, value in samples.items()]
    return f"# HELP {name} A text.\n# TYPE {name} {kind}\n{''.join(lines)}"


def text(page):
    return "".join(written(page, floatToGoString))


def of(name, kind, *several, ended=()):
    """The samples of one family of several pages, by their labels."""
    kept: Page = {}
    for each in ended:
        keep_counts(kept, read_page(block(name, kind, **each)))
    page = merged([read_page(block(name, kind, **each)) for each in several], kept)
    return {series.split('"')[1]: value for series, value in page[name].samples.items()}


@pytest.mark.parametrize(
    ("name", "kind", "several", "together"),
    [
        ("llm_d_epp_request_total", "counter", [{"a": 1, "b": 2}, {"a": 5}], {"a": 6, "b": 2}),
        ("any_seconds", "histogram", [{"a": 0.5}, {"a": 0.25, "c": 1}], {"a": 0.75, "c": 1}),
        # Each runs requests of its own, and what an endpoint reports all know.
        ("llm_d_epp_request_running", "gauge", [{"a": 1}, {"a": 2, "b": 1}], {"a": 3, "b": 1}),
        ("inference_objective_running_requests", "gauge", [{"a": 1}, {"a": 2}], {"a": 3}),
        ("warmpick_flow_waiting_requests", "gauge", [{"0": 4}, {"0": 3}], {"0": 7}),
        ("llm_d_epp_ready_endpoints", "gauge", [{"p": 4}, {"p": 3}], {"p": 4}),
        ("llm_d_epp_inflight_requests", "gauge", [{"a": 2}, {"a": 1, "b": 1}], {"a": 3, "b": 1}),
        ("llm_d_epp_inflight_tokens", "gauge", [{"a": 64}, {"a": 16}], {"a": 80}),
        ("llm_d_epp_per_endpoint_queue_size", "gauge", [{"a": 2}, {"b": 1}], {"a": 2}),
        ("warmpick_replicas_heard", "gauge", [{"": 2}, {"": 1}, {"": 2}], {"": 1}),
        ("warmpick_ejected_endpoints", "gauge", [{"": 0}, {"": 1}], {"": 1}),
        ("process_resident_memory_bytes", "gauge", [{"": 1e8}, {"": 2e8}], {"": 3e8}),
        ("process_start_time_seconds", "gauge", [{"": 20}, {"": 10}], {"": 10}),
        ("process_cpu_seconds_total", "counter", [{"": 1.5}, {"": 2}], {"": 3.5}),
    ],
)
def test_what_several_say_together(name, kind, several, together):
    assert of(name, kind, *several) == together


def test_what_those_counted_that_ended_still_counts():
    ended = [{"a": 10, "gone": 1}, {"a": 5}]
    assert of("x_total", "counter", {"a": 1}, ended=ended) == {"a": 16, "gone": 1}
    assert of("x", "gauge", {"a": 1}, ended=ended) == {"a": 1}


def test_a_family_that_only_those_had_that_ended_stays():
    kept: Page = {}
    keep_counts(kept, read_page(block("x_total", "counter", a=3)))
    assert text(merged([], kept)) == block("x_total", "counter", a=3)


def test_of_one_that_does_not_answer_only_counts_are_taken():
    page = read_page(block("x_total", "counter", a=3) + block("y", "gauge", a=3))
    assert list(counts_of(page)) == ["x_total"]


@pytest.mark.parametrize("model", ['a \\"b\\" } 7', "a\u2028b", "a\x85b\x0cc\rd", "# TYPE a b"])
def test_labels_are_left_as_they_are_written(model):
    line = f'x_total{{model="{model}",le="+Inf"}} 3\n'
    page = f"# HELP x_total A text.\n# TYPE x_total counter\n{line}"
    assert text(read_page(page)) == page


def test_the_end_of_a_page_in_openmetrics_is_no_family():
    page = "# HELP x A text.\n# TYPE x counter\nx_total 1\n"
    assert text(read_page(f"{page}# EOF\n")) == page


values = st.floats(allow_nan=False) | st.integers(0, 1 << 53).map(float)
pages = st.dictionaries(
    st.from_regex(r"[a-z_]{1,9}", fullmatch=True),
    st.dictionaries(st.from_regex(r"[a-z0-9]{1,5}", fullmatch=True), values, min_size=1),
)


@given(pages)
def test_a_page_is_read_as_it_was_written(families):
    page = {
        name: FamilySamples(
            "gauge",
            f"# HELP {name} A text.\n# TYPE {name} gauge\n",
            {f'{name}{{x="{label}"}}': value for label, value in samples.items()},
        )
        for name, samples in families.items()
    }
    assert read_page(text(page)) == page


def page_of(**samples):
    return read_page(block("x_total", "counter", **samples))


def samples_of(page):
    return {series.split('"')[1]: value for series, value in page["x_total"].samples.items()}


@pytest.mark.parametrize(
    ("later", "together"),
    [
        ({"b": 1}, {"a": 12, "b": 3}),  # one has forgotten, and another goes on
        ({"a": 2, "b": 1}, {"a": 14, "b": 3}),  # and begins anew
        ({"a": 11, "b": 1}, {"a": 13, "b": 3}),
    ],
)
def test_what_one_that_runs_has_forgotten_still_counts_as_long_as_another_shows_it(later, together):
    forgotten: Page = {}
    last, other, page = page_of(a=10, b=1), page_of(a=2, b=2), page_of(**later)
    keep_forgotten(forgotten, last, page)
    drop_unseen(forgotten, [page, other])
    assert samples_of(merged([page, other], {}, forgotten)) == together
    drop_unseen(forgotten, [page_of(b=1), page_of(b=2)])
    assert forgotten == {}


def test_of_gauges_nothing_is_kept_that_is_gone():
    forgotten: Page = {}
    keep_forgotten(forgotten, read_page(block("y", "gauge", a=3)), {})
    assert forgotten == {}


counts = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 1000))


@given(st.lists(counts, max_size=4), st.lists(counts, max_size=4))
def test_a_counter_is_the_sum_of_all_whoever_runs(running, ended):
    before = of("x_total", "counter", *running, ended=ended) if running or ended else {}
    if running:  # one of them ends, and is started again
        last, *others = running
        after = of("x_total", "counter", {}, *others, ended=[*ended, last])
        assert after == before
    expected: dict[str, float] = {}
    for each in (*running, *ended):
        for label, value in each.items():
            expected[label] = expected.get(label, 0) + value
    assert before == expected
