"""What is left of endpoints that are gone."""

import gc
import tracemalloc

from epp.model.events import EndpointRemoved
from tests.model.rig import Rig
from tests.strategies import endpoint

COUNT = 400


def _wave(rig, number):
    names = [f"wave-{number}-{each}" for each in range(COUNT)]
    for each, name in enumerate(names):
        rig.add(name, f"10.{number}.{each // 250}.{each % 250 + 1}")
        rig.report(name, block_size=16)
    for each, name in enumerate(names[:20]):
        rig.serve(name, f"r-{number}-{each}", "a prompt " * 200)
    for name in names:
        rig.apply(EndpointRemoved(endpoint(name, "10.0.0.1").id))


def test_a_second_wave_of_endpoints_needs_no_more_than_the_first_and_nothing_of_it_stays():
    rig = Rig(1)
    _wave(rig, 0)
    tracemalloc.start()
    try:
        held, peaks = [], []
        for number in range(1, 4):
            gc.collect()
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            _wave(rig, number)
            gc.collect()
            after, peak = tracemalloc.get_traced_memory()
            held.append(after)
            peaks.append(peak - before)
    finally:
        tracemalloc.stop()
    assert peaks[2] < 1.1 * peaks[1]
    assert held[2] - held[1] < 0.01 * peaks[2]
