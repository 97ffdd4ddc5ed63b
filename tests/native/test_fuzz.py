"""Every target of the fuzzer, on random bytes: that it runs, and finds nothing at once."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.native.built import require_native

require_native()

from tests.native.fuzz import TARGETS, WORK  # noqa: E402 (only where the kernels are)

SIZES = (0, 10, 100, 1_000, 3_000)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", range(20))
def test_random_bytes(target, size, seed):
    with capture_logs():
        chance = Random(f"{size} {seed}")  # noqa: S311 (chance, not secrets)
        assert TARGETS[target](chance.randbytes(size)) is None


@pytest.mark.parametrize("target", WORK)
@pytest.mark.parametrize("seed", range(40))
def test_work(target, seed):
    WORK[target](Random(seed).randbytes(100))  # noqa: S311 (as above)


@pytest.mark.parametrize("target", TARGETS)
@given(data=st.binary(max_size=500))
def test_chosen_bytes(target, data):
    with capture_logs():
        assert TARGETS[target](data) is None
