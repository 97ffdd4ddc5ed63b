"""What replay costs: a whole run, and recording and a shadow beside live picks.

python -m bench replay [--trace PATH]
"""

import asyncio

from bench.figures import Report
from bench.options import Options
from bench.progress import Progress
from bench.replay import recording, runs

_ROUNDS, _QUICK_ROUNDS = 3, 1


async def measure(progress: Progress, options: Options) -> Report:
    """Measure both; a run replays Mooncake's conversation where a trace is given."""
    beside = await asyncio.to_thread(recording.figures, progress, quick=options.quick)
    progress.step(f"{runs.REQUESTS:,} requests on {runs.PODS} pods")
    played = await runs.figures(options.traces, _QUICK_ROUNDS if options.quick else _ROUNDS)
    what = runs.WORKLOAD if options.traces is None else "Mooncake's conversation trace"
    notes = (f"A run replays {what} with the recorded times, in a process of its own.",)
    return Report(name="replay", figures=(*played, *beside), notes=notes)
