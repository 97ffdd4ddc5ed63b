"""docs/replay-engines.md keeps up with the presets."""

from pathlib import Path

import pytest

from epp.replay.engines.presets import PRESETS

PAGE = (Path(__file__).parents[3] / "docs" / "replay-engines.md").read_text()


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_there_with_its_numbers(name):
    found = PRESETS[name]
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")]
    assert found.source in row
    assert f"| {found.cost.step_ms:g} ms | {found.cost.prefill_us_per_token:.3g} µs |" in row
    assert f"| {found.limits.capacity:,} | {found.kv_bytes_per_token:,} B |" in row
