"""gRPC's framing: the kernel against its twin, and against what the protocol says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.built import require_native
from tests.native.framing_oracle import PlainDeframer
from tests.native.wire import message

require_native()

from epp.adapters.extproc.http2.framing import Deframer  # noqa: E402 (only where it is)

LIMIT = 100


@pytest.fixture(params=[Deframer, PlainDeframer], ids=["kernel", "twin"])
def deframer(request):
    return request.param(LIMIT)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", ([], 0, False)),
        (b"\0", ([], 0, True)),
        (message(b""), ([b""], 0, False)),
        (message(b"a") + message(b"bc"), ([b"a", b"bc"], 0, False)),
        (message(b"a") + message(b"bc")[:-1], ([b"a"], 0, True)),
        (message(b"x" * LIMIT), ([b"x" * LIMIT], 0, False)),
        (message(b"x" * (LIMIT + 1)), ([], 8, None)),
        (b"\0\xff\xff\xff\xff", ([], 8, None)),
        (message(b"a", flag=1), ([], 12, None)),
        (message(b"a") + message(b"b", flag=2) + message(b"c"), ([b"a"], 12, None)),
    ],
)
@pytest.mark.parametrize("step", [1, 2, 7, 1_000])
def test_what_comes_out(deframer, data, expected, step):
    messages, fault, within = expected
    found = []
    for at in range(0, len(data), step):
        found += deframer.feed(data[at : at + step])
    assert (found, deframer.fault) == (messages, fault)
    assert within is None or deframer.within is within


def test_a_large_message_in_pieces():
    deframer = Deframer(1 << 26)
    large = bytes(range(256)) * (5 << 12)
    data = message(large) + message(b"next")
    found = []
    for at in range(0, len(data), 99_991):
        found += deframer.feed(data[at : at + 99_991])
    assert found == [large, b"next"]


def test_what_is_announced_takes_no_memory():
    deframers = [Deframer(1 << 32) for _ in range(64)]
    for deframer in deframers:
        assert deframer.feed(b"\0\xff\xff\xff\xff" + b"x" * 10) == []
        assert deframer.within


PIECES = st.lists(
    st.one_of(
        st.binary(max_size=20),
        st.builds(message, st.binary(max_size=150)),
        st.builds(message, st.binary(max_size=20), st.sampled_from([0, 0, 0, 1])),
    )
)


@given(stream=PIECES.map(b"".join), cuts=st.lists(st.integers(0, 60)))
def test_the_kernel_does_what_its_twin_does(stream, cuts):
    kernel, twin = Deframer(LIMIT), PlainDeframer(LIMIT)
    for size in [*cuts, len(stream)]:
        piece, stream = stream[:size], stream[size:]
        assert kernel.feed(piece) == twin.feed(piece)
        assert kernel.fault == twin.fault
        assert kernel.fault or kernel.within == twin.within
