"""Metrics and engines as a configuration names them: `name` or `name{label=value,...}`."""

import re

import msgspec

from epp.protocol.metrics.metric_names import (
    ENGINES,
    MAX_VALUE,
    EngineMetrics,
    Metric,
    requests,
)

# Prometheus data model: metric names may have colons, label names may not. The syntax is
# llm-d-router's, in which a value needs no quotes and knows no escapes.
_SPEC = re.compile(r"\s*+([A-Za-z_:][A-Za-z0-9_:]*+)\s*+(?:\{(.*)\})?\s*+", re.ASCII | re.DOTALL)
_PAIR = re.compile(
    r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?:"([^"]*)"|([^\s",{}=]+))\s*', re.ASCII | re.DOTALL
)


def parse_spec(text: str) -> Metric | None:
    """Return the metric that a specification names; None for an empty one.

    Raises `ValueError` for a malformed one.
    """
    if not text.strip():
        return None
    spec = _SPEC.fullmatch(text)
    if spec is None:
        raise ValueError(f"`{text}` is not a metric; write name or name{{label=value,...}}")
    where: dict[bytes, bytes] = {}
    for part in (spec[2] or "").split(",") if (spec[2] or "").strip() else ():
        pair = _PAIR.fullmatch(part)
        if pair is None:
            raise ValueError(f"`{part.strip()}` in `{text}` is not label=value")
        where[pair[1].encode()] = (pair[2] if pair[3] is None else pair[3]).encode()
    return Metric(spec[1].encode(), where=tuple(where.items()))


def of_cache(metric: Metric | None, info: Metric | None, label: str) -> tuple[Metric, ...]:
    """Return a metric of the cache, and the label of `info` with the same value; None: no label."""
    labelled = info and msgspec.structs.replace(info, label=label.encode())
    return tuple(each for each in (metric, labelled) if each is not None)


def engine_of(own: EngineMetrics) -> EngineMetrics:
    """Return the engine that reads a user's `own` metrics.

    It takes the place of the built-in engine of its name. What llm-d-router's specifications
    cannot name (counters of the prefix cache, rules of the cache) stays as it is there; so do the
    names of the KV usage if one of them is named, and the cache if it is named as there, or not at
    all.
    """
    known = ENGINES.get(own.name, EngineMetrics(name=own.name, signs=()))
    block_size, num_blocks = own.block_size, own.num_blocks
    same = len(num_blocks) == 1 and any(_same(num_blocks[0], each) for each in known.num_blocks)
    own_cache = same or not (block_size or num_blocks)
    if own_cache:
        block_size, num_blocks = known.block_size, known.num_blocks
    renamed = [_same(metric, each) for metric in own.kv_usage for each in known.kv_usage]
    engine = msgspec.structs.replace(
        known,
        waiting=_requests(own.waiting),
        running=_requests(own.running),
        kv_usage=known.kv_usage if any(renamed) else own.kv_usage,
        adapters=_rare(own.adapters),
        block_size=block_size,
        num_blocks=num_blocks,
        whole_server=known.whole_server and own_cache,
        max_tokens=known.max_tokens if own_cache else None,
        longest=known.longest if own_cache else None,
        attributes=tuple(
            (key, msgspec.structs.replace(metric, rare=True, least=-MAX_VALUE))
            for key, metric in own.attributes
        ),
    )
    signs = _signs(engine)
    foreign = known.foreign if signs == known.signs else b""
    return msgspec.structs.replace(engine, signs=signs, foreign=foreign)


def _requests(metric: Metric | None) -> Metric | None:
    return metric and requests(metric.family, *metric.where)


def _rare(metric: Metric | None) -> Metric | None:
    return metric and msgspec.structs.replace(metric, rare=True)


def _same(metric: Metric, known: Metric) -> bool:
    return (metric.family, metric.label, metric.where) == (known.family, known.label, known.where)


def _signs(engine: EngineMetrics) -> tuple[bytes, ...]:
    """Return what pages of the engine have: its own prefix, or the families that it names."""
    load = (engine.waiting, engine.running, *engine.kv_usage[:1])
    named = (*load, *engine.num_blocks, engine.adapters)
    custom = (metric for _, metric in engine.attributes)
    families = [metric.family for metric in (*named, *custom) if metric is not None]
    if engine.signs and all(family.startswith(engine.signs) for family in families[:3]):
        return engine.signs
    return tuple(dict.fromkeys(families))
