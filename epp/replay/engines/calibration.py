"""The cost of an engine's steps, fitted to measured times: metrics pages, or a log of requests."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import ceil, isnan
from pathlib import Path
from typing import NamedTuple

from epp.errors import ConfigError
from epp.replay.engines.contract import Limits
from epp.replay.engines.cost import StepCost
from epp.replay.engines.observed import Measurement, read_observed

_UNITS: Mapping[str, float] = {
    "step_ms": 1e-3,
    "prefill_us_per_token": 1e-6,
    "attention_ns": 1e-9,
    "decode_us_per_seq": 1e-6,
    "decode_ns_per_context_token": 1e-9,
}
"""The parameters, and their units in seconds."""
_PRIOR_WEIGHT = 1e-5
"""The weight of the prior; that of an observation is 1. It decides what observations do not."""
_OTHER_PRIOR = 2.0
_MOVED = 0.1
"""If doubling the prior moves a parameter by more than this share, it is the prior's."""
_LATE_WEIGHT = 0.1
"""The weight of an observation that took longer than predicted, as it may have waited."""
_ROUNDS = 20
_RESCALED = 3

Vector = Sequence[float]
Equation = tuple[Vector, float]


class Calibration(NamedTuple):
    """A cost, and which of its parameters `observations` determined; the others are the prior's.

    `error` is the mean difference from the observations, as a share of them. `limits` are the
    cache's, from a metrics page. `queued`: the observed times may include waiting.
    """

    cost: StepCost
    fitted: Sequence[str]
    kept: Sequence[str]
    observations: int
    error: float
    queued: bool
    limits: Limits | None

    def summary(self) -> str:
        """Describe in a few lines what was found, from what, and what was not determined."""
        shown = ", ".join(f"{name} {getattr(self.cost, name):g}" for name in self.fitted)
        lines = [
            f"fitted to {self.observations} observations, {self.error:.1%} off on average: {shown}"
        ]
        if self.kept:
            kept = ", ".join(f"{name} {getattr(self.cost, name):g}" for name in self.kept)
            lines.append(f"not determined by them, and kept: {kept}")
        if self.queued:
            lines.append("what came late may have waited, and counts little")
        return "\n".join(lines)


def calibrate(
    paths: Sequence[Path], prior: StepCost, max_num_batched_tokens: int = 8192
) -> Calibration:
    """Fit a cost to metrics pages of one server, or to logs of requests.

    `max_num_batched_tokens` is the server's. Raises `ConfigError` that names what is missing.
    """
    observed = read_observed(paths)
    equations = list(_equations(observed.rows, max_num_batched_tokens))
    scale = [getattr(prior, name) or getattr(StepCost(), name) for name in _UNITS]
    late = _LATE_WEIGHT if observed.queued else 1.0
    for _ in range(_RESCALED):
        # Unless it is rescaled, the prior holds back the fit of an engine many times slower.
        shares = _fit(equations, scale, 1.0, late=late)
        scale = [each * max(1.0, share) for each, share in zip(scale, shares, strict=True)]
    found = _fit(equations, scale, 1.0, late=late)
    other = _fit(equations, scale, _OTHER_PRIOR, late=late)
    told = [
        name
        for name, one, two in zip(_UNITS, found, other, strict=True)
        if abs(two - one) <= _MOVED * max(one, 1e-6)
    ]
    if not told:
        raise ConfigError(
            "too little to fit anything: give requests of different lengths", str(paths[0])
        )
    return Calibration(
        StepCost(**dict(zip(_UNITS, map(_rounded, found, scale), strict=True))),
        told,
        [name for name in _UNITS if name not in told],
        len(observed.rows),
        _error(equations, found, scale),
        observed.queued,
        observed.limits,
    )


def _rounded(share: float, scale: float) -> float:
    return float(f"{share * scale:.4g}")


def _equations(rows: Sequence[Measurement], budget: int) -> Iterator[Equation]:
    """Yield the equation of each observation, with both sides as shares of its time."""
    for row in rows:
        chunks = ceil(row.uncached / budget)
        attended = row.uncached * (row.cached + row.uncached / 2)
        terms: list[tuple[float, Vector]] = [
            (row.prefill, (chunks, row.uncached, attended, 0.0, 0.0))
        ]
        if not isnan(row.between):
            looks = row.running * row.context
            terms.append((row.between, (1.0, 0.0, 0.0, row.running, looks)))
        for seconds, sizes in terms:
            units = zip(sizes, _UNITS.values(), strict=True)
            yield [size * unit / seconds for size, unit in units], 1.0


def _fit(equations: Sequence[Equation], scale: Vector, prior: float, *, late: float) -> Vector:
    """Return the parameters as shares of `scale`, none negative."""
    scaled = [([a * s for a, s in zip(row, scale, strict=True)], b) for row, b in equations]
    count = len(scale)
    rows = [*scaled, *(([float(i == at) for i in range(count)], prior) for at in range(count))]
    weights = [1.0] * len(scaled) + [_PRIOR_WEIGHT] * count
    found = _nonnegative(rows, weights)
    for _ in range(_ROUNDS if late < 1.0 else 0):
        # Waiting only adds time, so an observation that took longer counts less.
        weights[: len(scaled)] = [late if _times(row, found) < b else 1.0 for row, b in scaled]
        found = _nonnegative(rows, weights)
    return found


def _nonnegative(rows: Sequence[Equation], weights: Vector) -> Vector:
    """Return the least squares without negative numbers: the best of all choices of zeros."""
    count = len(rows[0][0])
    products = [[0.0] * (count + 1) for _ in range(count)]
    for (row, target), weight in zip(rows, weights, strict=True):
        for i in range(count):
            for j in range(count):
                products[i][j] += weight * row[i] * row[j]
            products[i][count] += weight * row[i] * target
    best, least = [0.0] * count, 0.0
    for chosen in product((False, True), repeat=count):
        kept = [at for at in range(count) if chosen[at]]
        solved = _solve([[products[i][j] for j in [*kept, count]] for i in kept])
        if min(solved, default=0.0) < 0.0:
            continue
        values = [0.0] * count
        for at, value in zip(kept, solved, strict=True):
            values[at] = value
        # The sum of squares, without what is the same for all.
        loss = -sum(value * products[at][count] for at, value in enumerate(values))
        if loss < least:
            best, least = values, loss
    return best


def _solve(matrix: list[list[float]]) -> list[float]:
    """Solve linear equations, right sides last; a prior for each unknown makes them solvable."""
    size = len(matrix)
    for at in range(size):
        for row in range(at + 1, size):
            factor = matrix[row][at] / matrix[at][at]
            matrix[row] = [
                below - factor * above for below, above in zip(matrix[row], matrix[at], strict=True)
            ]
    values = [0.0] * size
    for at in reversed(range(size)):
        known = sum(matrix[at][j] * values[j] for j in range(at + 1, size))
        values[at] = (matrix[at][size] - known) / matrix[at][at]
    return values


def _times(row: Vector, values: Vector) -> float:
    return sum(a * b for a, b in zip(row, values, strict=True))


def _error(equations: Sequence[Equation], found: Vector, scale: Vector) -> float:
    values = [a * b for a, b in zip(found, scale, strict=True)]
    return sum(abs(_times(row, values) - b) for row, b in equations) / len(equations)
