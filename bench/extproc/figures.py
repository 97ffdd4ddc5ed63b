"""The figures of `extproc`: what each is, its unit, what was promised of it."""

from bench.extproc.samples import Samples
from bench.figures import Budget, Figure

_ALONE = (
    ("2k", "2 KB body", Budget(of_floor=2.0)),
    ("20k", "20 KB body", Budget(of_floor=2.0)),
    ("220k", "220 KB body", Budget(of_floor=1.25)),
    ("300", "2 KB body at 300/s", Budget(of_floor=2.3)),
)
"""One stack at a time: what is promised is promised of these."""
_CPU: tuple[tuple[str, str, Budget | None], ...] = (
    ("2k", "per request, 2 KB body", None),
    ("20k", "per request, 20 KB body", None),
    ("220k", "per request, 220 KB body", None),
    ("400k", "per request, 400 KB body", None),
    ("chunk", "per streamed response chunk", Budget(most=10, of_floor=1.3)),
)
_SIZES_KB = (2, 20, 220, 400)
_STREAMS = (
    ("all", "observed to the end"),
    ("first", "observed up to the first chunk"),
    ("auto", "observed as `auto` does"),
)
_GRPCIO = Budget(of_floor=1.40)

_DEFINED: tuple[tuple[str, str, str, Budget | None], ...] = (
    *(
        (f"cpu_us_{size}_alone", f"CPU per request, {says}, alone", "µs", budget)
        for size, says, budget in _ALONE
    ),
    *(
        (f"cpu_us_{size}_native", f"CPU {says}, native", "µs", budget)
        for size, says, budget in _CPU
    ),
    *((f"cpu_us_{size}_grpcio", f"CPU {says}, grpcio", "µs", _GRPCIO) for size, says, _ in _CPU),
    *(
        (f"cpu_us_{size}_among_{pods}", f"CPU {says}, among {pods} endpoint{s}", "µs", None)
        for pods, s in ((1, ""), (100, "s"))
        for size, says, _ in _CPU[:4]
    ),
    *(
        (f"cpu_us_stream_{name}", f"CPU per answer of 100 chunks, {says}", "µs", None)
        for name, says in _STREAMS
    ),
    ("stream_auto_of_first", "CPU with `auto` ÷ CPU up to the first chunk", "", Budget(most=1.25)),
    *((f"rps_{kb}k", f"requests/s, 16 connections, {kb} KB", "/s", None) for kb in _SIZES_KB),
    ("added_p50_ms_2k", "added to the first byte, median, 2 KB at 300/s", "ms", Budget(most=0.8)),
    ("added_p99_ms_2k", "added to the first byte, p99, 2 KB at 300/s", "ms", Budget(most=2)),
    ("added_p50_ms_220k", "added to the first byte, median, 220 KB at 60/s", "ms", Budget(most=2)),
    ("added_p99_ms_220k", "added to the first byte, p99, 220 KB at 60/s", "ms", Budget(most=4)),
    (
        "added_p99_ms_2k_beside_20mb",
        "added to the first byte, p99, 2 KB, beside a 20 MB body a second",
        "ms",
        Budget(most=6),
    ),
    ("idle_cores_1_pods", "cores while idle, 1 pod", "", None),
    ("idle_cores_10_pods", "cores while idle, 10 pods", "", Budget(most=0.02)),
    ("idle_cores_100_pods", "cores while idle, 100 pods", "", Budget(most=0.05)),
    ("rss_mb_1000_streams", "memory, 1,000 streams of 20 KB prompts", "MB", Budget(most=120)),
    ("import_s", "import of epp.app.picker in a new process", "s", None),
    ("ready_s", "from exec to ready, 10 pods", "s", Budget(most=0.4)),
)


def figures(samples: Samples) -> tuple[Figure, ...]:
    """Turn runs into figures, in the order of the list above, each followed by its floor."""
    found = []
    for key, says, unit, budget in _DEFINED:
        if key in samples.runs:
            found.append(_figure(samples, key, says, unit, budget=budget))
        if (floor := f"{key}_floor") in samples.runs:
            found.append(_figure(samples, floor, f"{says} (floor)", unit))
    if unknown := samples.runs.keys() - {figure.key for figure in found}:
        raise KeyError(f"measured, but not defined: {sorted(unknown)}")
    return tuple(found)


def _figure(
    samples: Samples, key: str, says: str, unit: str, *, budget: Budget | None = None
) -> Figure:
    return Figure(key=key, says=says, unit=unit, runs=tuple(samples.runs[key]), budget=budget)
