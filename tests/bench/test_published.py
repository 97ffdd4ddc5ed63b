"""Published figures of others, beside ours."""

import pytest

from bench.child import MeasurementFailed
from bench.options import Options
from bench.progress import Progress
from bench.published import _SAYS, ROWS, measure


async def test_a_row_that_there_is_not_is_named_beside_those_there_are():
    with pytest.raises(MeasurementFailed, match=r"no row is lots; there are large-prompts, idle,"):
        await measure(Progress(), Options(quick=True, only=("lots",)))


def test_every_figure_has_what_was_published():
    assert all(published > 0 for _, _, published in _SAYS)
    assert len({key for key, _, _ in _SAYS}) == len(_SAYS) > len(ROWS)
