import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.endpoint import Target
from epp.model.events import OrcaReported
from epp.model.request import RequestId
from epp.protocol.metrics.orca import parse_orca

OF = RequestId("r1"), Target("10.0.0.1:8000")


def reported(**values):
    return OrcaReported(*OF, **values)


VLLM_JSON = "JSON " + json.dumps(
    {"named_metrics": {"kv_cache_usage_perc": 0.25, "num_requests_waiting": 3.0}}
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (VLLM_JSON, reported(kv_usage=0.25, waiting=3)),
        (VLLM_JSON.replace("JSON", "json"), reported(kv_usage=0.25, waiting=3)),
        (
            "TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=3.0",
            reported(kv_usage=0.25, waiting=3),
        ),
        ("text  named_metrics.num_requests_running = 4", reported(running=4)),
        ("TEXT cpu_utilization=0.9,named_metrics.num_requests_waiting=1", reported(waiting=1)),
        ("TEXT named_metrics.kv_cache_utilization=0.4", reported(kv_usage=0.4)),
        ('JSON {"cpu_utilization": 1, "named_metrics": {"x": 1}}', None),
        ('JSON {"named_metrics": {"num_requests_waiting": 3, "x": 7}}', reported(waiting=3)),
        ('JSON {"named_metrics": {"kv_cache_usage_perc": 1.01}}', reported(kv_usage=1.0)),
        ('JSON {"named_metrics": {"num_requests_waiting": -1}}', None),
        ('JSON {"named_metrics": {"num_requests_waiting": "many"}}', None),
        ('JSON {"named_metrics": null}', None),
        ("JSON [1]", None),
        ('JSON {"named_metrics": {', None),
        ("JSON", None),
        ("JSON " + "[" * 8000, None),
        ("TEXT named_metrics.num_requests_waiting=NaN", None),
        ("TEXT named_metrics.num_requests_waiting=inf,named_metrics.x", None),
        ("TEXT named_metrics.num_requests_waiting", None),
        ("TEXT num_requests_waiting=3", None),
        ("TEXT", None),
        ("BIN CAE=", None),
        ("", None),
        ("num_requests_waiting=3", None),
    ],
)
def test_forms(value, expected):
    assert parse_orca(value, *OF) == expected


@given(
    st.sampled_from(["JSON ", "TEXT ", "BIN ", ""]),
    st.text(st.characters()) | st.text('{}[]"named_metrics.um_requests_waiting=:,0123456789e'),
)
def test_no_header_raises_or_gives_an_impossible_report(form, body):
    report = parse_orca(form + body, *OF)
    assert report is None or all(
        value is None or value >= 0 for value in (report.kv_usage, report.waiting, report.running)
    )
