"""The pickers that the benchmark of streamed answers compares."""

from bench.extproc.streams import OBSERVED, watching


async def test_what_a_picker_takes_while_idle_is_taken_off(tmp_path):
    async with watching(1, tmp_path, 0.25) as watched:
        assert tuple(watched) == OBSERVED
        assert {each.meter.idle_cores for each in watched.values()} == {0.25}
        assert len({each.meter.pid for each in watched.values()}) == len(OBSERVED)
