"""The header `traceparent`, held against OpenTelemetry's own reading and samplers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from epp.protocol.trace_context import LOW_BITS, ParentSpan, TraceSampling, parse, traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"
MALFORMED = [
    "",
    "x",
    GOOD.upper(),
    f" {GOOD}",
    f"{GOOD}-more",
    f"ff-{TRACE}-{SPAN}-01",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"00-{TRACE[1:]}-{SPAN}-01",
    f"00-{TRACE}-{SPAN}-1",
    f"{GOOD},{GOOD}",
    f"{GOOD}\n",
]
DIGITS = st.text("0123456789abcdef", min_size=1)
HEADERS = st.one_of(
    st.text(max_size=60),
    st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-x)?", fullmatch=True),
)


def reference(header):
    """What OpenTelemetry reads."""
    context = TraceContextTextMapPropagator().extract({"traceparent": header})
    return get_current_span(context).get_span_context()


def test_the_specifications_example():
    assert parse(GOOD) == ParentSpan(int(TRACE, 16), int(SPAN, 16), 1)
    assert parse(f"01-{TRACE}-{SPAN}-00-later") == ParentSpan(int(TRACE, 16), int(SPAN, 16), 0)


@pytest.mark.parametrize("header", MALFORMED)
def test_a_malformed_header_counts_as_missing(header):
    assert parse(header) is None


@given(header=HEADERS)
def test_it_reads_what_opentelemetry_reads(header):
    found, expected = parse(header), reference(header)
    if found is not None:
        assert (found.trace_id, found.span_id) == (expected.trace_id, expected.span_id)
        assert found.sampled == expected.trace_flags.sampled


@given(
    trace=st.integers(1, (1 << 128) - 1),
    span=st.integers(1, (1 << 64) - 1),
    flags=st.integers(0, 255),
)
def test_what_is_written_is_read(trace, span, flags):
    assert parse(traceparent(trace, span, flags)) == ParentSpan(trace, span, flags)


@given(trace=st.integers(1, (1 << 128) - 1), ratio=st.floats(0, 1))
def test_it_samples_what_opentelemetry_samples(trace, ratio):
    decided = TraceIdRatioBased(ratio).should_sample(None, trace, "x").decision
    assert (trace & LOW_BITS < TraceSampling(ratio).bound) == decided.is_sampled()
