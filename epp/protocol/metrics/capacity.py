"""What a metrics page says of the size and the rules of a prefix cache."""

from math import ceil

import msgspec

from epp.model.endpoint import UNREPORTED, Load
from epp.protocol.metrics.metric_names import EngineMetrics
from epp.protocol.metrics.values import MetricValues

MAX_BLOCK = 1 << 20
"""Tokens: no engine has blocks of more (hybrid models reach some thousand)."""

MAX_CAPACITY = 1 << 36
"""Tokens: at a kilobyte each, far less than any model takes, 64 TiB."""

_UNEQUAL = 0.005
"""Share by which the pools of the ranks of one server may differ (their free memory does)."""

_FUZZ = 1e-6
_SWITCH = {b"True": True, b"False": False}


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a `Load` that change with the engine's configuration only."""

    engine: str = ""
    ranks: int = 1
    block_size: int | None = None
    num_blocks: int | None = None
    spread: float = 1.0
    max_tokens: int | None = None
    caching: bool = True
    match_unit: int | None = None
    sliding_window: int | None = None

    @classmethod
    def of(cls, load: Load) -> "CacheConfig":
        """Take the facts out of a load."""
        return cls(**{name: getattr(load, name) for name in _NAMES})

    def believable(self) -> bool:
        """Whether, as far as known, at least a block fits, and no more than can exist."""
        capacity = self.put(UNREPORTED).capacity_tokens
        return capacity is None or (self.block_size or 1) <= capacity <= MAX_CAPACITY

    def put(self, load: Load) -> Load:
        """Put the facts in the place of a load's."""
        return msgspec.structs.replace(load, **{name: getattr(self, name) for name in _NAMES})


_NAMES = CacheConfig.__struct_fields__


def read_facts(figures: MetricValues, engine: EngineMetrics, before: CacheConfig) -> CacheConfig:
    """Read them; what the page does not say, or what cannot be true, is as `before`."""
    block_size = figures.whole(engine.block_size, MAX_BLOCK) or before.block_size
    num_blocks, ranks = _blocks(figures, engine, before)
    max_tokens = figures.total(engine.max_tokens, None)
    unit = figures.whole(engine.match_unit, MAX_BLOCK) or before.match_unit
    window = figures.whole(engine.sliding_window, MAX_CAPACITY)
    found = CacheConfig(
        engine=engine.name,
        ranks=ranks,
        block_size=block_size,
        num_blocks=num_blocks,
        spread=_spread(figures, engine, block_size, num_blocks) or before.spread,
        max_tokens=before.max_tokens if max_tokens is None else int(max_tokens),
        caching=_SWITCH.get(figures.text(engine.caching), before.caching),
        match_unit=None if unit == block_size else unit,
        sliding_window=window or before.sliding_window,
    )
    if found.believable():
        return found
    figures.doubts["capacity"] = (
        f"{num_blocks} blocks of {block_size} tokens in {ranks} engines"
        + (f", {max_tokens:g} tokens in all," if max_tokens is not None else "")
        + " cannot be a cache's size, which is ignored"
    )
    return before


def _blocks(
    figures: MetricValues, engine: EngineMetrics, before: CacheConfig
) -> tuple[int | None, int]:
    """Count the blocks of the endpoint's engines, and these."""
    for metric in engine.num_blocks:
        mine = figures.by_rank(metric)
        if not mine:
            continue
        blocks = sum(mine.values())
        if engine.whole_server:
            all_of_them = figures.by_rank(metric, everyone=True)
            blocks = max(all_of_them.values()) * len(mine) / len(all_of_them)
        if blocks >= 1:
            return int(blocks), len(mine)
        figures.doubt(metric, f"{blocks:g}")
    return before.num_blocks, before.ranks


def _spread(
    figures: MetricValues, engine: EngineMetrics, block_size: int | None, num_blocks: int | None
) -> float | None:
    """Compare the blocks that the longest request takes with those that its tokens fill.

    vLLM tells how many such requests fit in an engine, and their tokens in all
    (`get_kv_cache_capacity`, which counts the blocks of every kind of layer). None: not said.
    """
    if engine.longest is None or not block_size or not num_blocks:
        return None
    fit, tokens = (figures.total(metric, 0.0) for metric in engine.longest)
    if fit < 1 or tokens < fit:
        return None
    taken = num_blocks / fit
    filled = ceil(ceil(tokens / fit - _FUZZ) / block_size)  # the length is rounded down to tokens
    exact = abs(taken - round(taken)) < _FUZZ
    slack = _FUZZ if exact else taken * _UNEQUAL
    return 1.0 if abs(taken - filled) <= slack else taken / filled
