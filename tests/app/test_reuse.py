"""Reuse in three figures over one denominator: what was available, captured and delivered."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.adapters.telemetry.metrics import MetricSources, Telemetry
from tests.adapters.telemetry_page import record, request, serve, telemetry, value, values
from tests.app.watched import Watched
from tests.strategies import text

FAMILY = "warmpick_reuse_tokens_total"


def parts(page):
    """The tokens of all flows, by part."""
    found: dict[str, float] = {}
    for name, number in page.items():
        if name.startswith(FAMILY):
            part = name.partition('part="')[2].partition('"')[0]
            found[part] = found.get(part, 0) + float(number)
    return found


def summed(page, family):
    return sum(float(number) for name, number in page.items() if name.startswith(f"{family}_sum"))


def test_a_prefix_that_another_endpoint_has_was_available_and_not_captured():
    watched = Watched("round-robin", pods=2)
    prompt = text(512)
    assert watched.serve(prompt).decision.endpoint.name == "pod-0"
    second = watched.serve(prompt)
    assert second.decision.endpoint.name == "pod-1"
    third = watched.serve(prompt, cached=480)
    assert third.decision.predicted_cached_tokens > 0
    found = parts(watched.page())
    best = third.decision.predicted_cached_tokens
    assert found["available"] == 2 * best
    assert found["captured"] == best
    assert found["delivered"] == 480
    assert found["prompt"] == sum(each.usage.prompt_tokens for each in (second, second, third))


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(20, 400), st.integers(0, 600)), max_size=9
    )
)
@settings(max_examples=20)
@pytest.mark.parametrize("policy", ["least-ttft", "linear", "random"])
def test_no_part_is_more_than_the_whole_and_the_whole_is_what_engines_counted(policy, asked):
    watched = Watched(policy)
    for seed, tokens, cached in asked:
        exchange, _ = watched.ask(text(tokens, seed))
        watched.answer(exchange, min(cached, exchange.record.decision.prompt_tokens))
    page = watched.page()
    found = parts(page)
    assert found.get("prompt", 0) == summed(page, "llm_d_epp_request_input_tokens")
    assert found.get("delivered", 0) == summed(page, "llm_d_epp_request_cached_tokens")
    assert found.get("captured", 0) <= found.get("available", 0) <= found.get("prompt", 0)


def test_what_engines_do_not_report_is_in_none_of_them():
    watched = Watched()
    exchange, _ = watched.ask()
    watched.answer(exchange, cached=None)
    assert parts(watched.page()) == {}


@pytest.mark.parametrize(("limit", "expected"), [(0, {"other"}), (1, {"f1", "other"}), (9, None)])
def test_so_many_fairness_ids_have_series_of_their_own(limit, expected):
    counted = Telemetry(MetricSources("pool", list, list, int, fairness_ids=limit))
    asked = ["f1", "f2", "default-flow", "f1"]
    for number, fairness in enumerate(asked):
        made = request(number, fairness_id=fairness)
        serve(counted, record(number, request=made))
    found = {dict(labels)["fairness_id"] for labels in values(counted, "llm_d_epp_request_total")}
    assert found == (expected or set(asked))


def test_former_names_are_written_where_they_are_asked_for():
    assert value(telemetry(), "inference_extension_info") == 1
    plain = "".join(Telemetry(MetricSources("pool", list, list, int)).page())
    assert "inference_extension_" not in plain
    assert "llm_d_epp_info" in plain
