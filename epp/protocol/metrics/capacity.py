"""The size and the rules of an engine's prefix cache, as its metrics page reports them."""

from math import ceil

from msgspec.structs import replace

from epp.model.endpoint import Load
from epp.protocol.metrics.metric_names import EngineMetrics
from epp.protocol.metrics.values import MetricValues

MAX_BLOCK_TOKENS = 1 << 20
"""Larger block sizes are not believed; blocks of hybrid models have some thousand tokens."""

MAX_CAPACITY_TOKENS = 1 << 36
"""Larger caches are not believed: 64 TiB at 1 KiB per token, less than any model needs."""

_FLOAT_ERROR = 1e-14
"""What a quotient of floats is off by, as a share of it, at most."""
_RANK_DIFFERENCE = 0.005
"""Share by which block pools of one server's ranks may differ, as their free memory does."""
_BOOLEANS = {b"True": True, b"False": False}


def with_cache(load: Load, values: MetricValues, engine: EngineMetrics) -> Load:
    """Return a load with the size and the rules of the cache that a page reports.

    What is absent or impossible stays as it is in `load`.
    """
    block_size = values.whole(engine.block_size, MAX_BLOCK_TOKENS) or load.block_size
    num_blocks, ranks = _blocks(values, engine, load)
    max_tokens = values.total(engine.max_tokens, None)
    unit = values.whole(engine.match_unit, MAX_BLOCK_TOKENS) or load.match_unit
    found = replace(
        load,
        engine=engine.name,
        ranks=ranks,
        block_size=block_size,
        num_blocks=num_blocks,
        spread=_spread(values, engine, block_size, num_blocks) or load.spread,
        max_tokens=load.max_tokens if max_tokens is None else int(max_tokens),
        caching=_BOOLEANS.get(values.text(engine.caching), load.caching),
        match_unit=None if unit == block_size else unit,
    )
    capacity = found.capacity_tokens
    if capacity is None or (block_size or 1) <= capacity <= MAX_CAPACITY_TOKENS:
        return found
    values.warnings["capacity"] = (
        f"{num_blocks} blocks of {block_size} tokens in {ranks} engines"
        + (f", {max_tokens:g} tokens in all," if max_tokens is not None else "")
        + " cannot be a cache's size, which is ignored"
    )
    return load


def _blocks(values: MetricValues, engine: EngineMetrics, load: Load) -> tuple[int | None, int]:
    """Return the blocks of all the endpoint's engines, and the number of engines."""
    for metric in engine.num_blocks:
        mine = values.by_rank(metric)
        if not mine:
            continue
        blocks = sum(mine.values())
        if engine.whole_server:
            # vLLM `core_client.py` adds the blocks of all engines and exports the sum for each.
            server = values.by_rank(metric, all_ranks=True)
            blocks = max(server.values()) * len(mine) / len(server)
        if 1 <= blocks <= MAX_CAPACITY_TOKENS:
            return int(blocks), len(mine)
        values.ignore(metric, f"{blocks:g}")
    return load.num_blocks, load.ranks


def _spread(
    values: MetricValues, engine: EngineMetrics, block_size: int | None, num_blocks: int | None
) -> float | None:
    """Return the blocks that the longest request takes per block that its tokens fill.

    More than 1 for hybrid models, whose kinds of layers take blocks of their own. None if the
    page does not say.
    """
    # vLLM 0.32 `v1/core/kv_cache_utils.py` `get_kv_cache_capacity`: how many
    # requests of the greatest length fit in an engine, and how many tokens these have, counting
    # blocks of every kind of layer.
    if engine.longest is None or not block_size or not num_blocks:
        return None
    fit, tokens = (values.total(metric, 0.0) for metric in engine.longest)
    if fit < 1 or tokens < fit:
        return None
    taken = num_blocks / fit
    length = tokens / fit  # which is rounded down to whole tokens of all requests
    filled = ceil(ceil(length - length * _FLOAT_ERROR) / block_size)
    return 1.0 if abs(taken - filled) <= taken * _RANK_DIFFERENCE else taken / filled
