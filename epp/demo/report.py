"""The report: the comparison as one self-contained HTML page."""

import html
import math
from collections.abc import Iterable

import msgspec

from epp.demo.charts import charts
from epp.demo.comparison import ROWS, RunResult, format_figure
from epp.demo.figures import gain_sentence
from epp.demo.pools import DemoPool
from epp.replay.results.measures import Unit, format_value, mean
from epp.replay.results.page import page, table, tile


class Setup(msgspec.Struct, frozen=True):
    """The facts that are needed to repeat a comparison."""

    pool: DemoPool
    seed: int
    machine: str
    command: str


def report(before: RunResult, after: RunResult, where: Setup) -> str:
    """Return the page."""
    return page(
        "demo",
        "round-robin and least-ttft",
        "epp.demo",
        sentence=html.escape(gain_sentence(before.figures, after.figures)),
        setting=html.escape(_setting(where.pool, before)),
        tiles="".join(_tiles(before, after)),
        table=table((before.policy, after.policy), _rows(before, after)),
        facts="".join(f"<li>{fact}</li>" for fact in _facts(before, after, where)),
        block=where.pool.block_size,
        **charts(before, after),
    )


def _setting(pool: DemoPool, result: RunResult) -> str:
    load = pool.workload
    return (
        f"{pool.servers} model servers behind Envoy, each {pool.title} with room for "
        f"{pool.cache_tokens:,} tokens of KV cache. {load.conversations} conversations of "
        f"{load.turns[0]} to {load.turns[1]} turns about {load.dossiers} dossiers, "
        f"{len(result.samples)} requests, in the same order and at the same planned moments for "
        f"both policies."
    )


def _tiles(before: RunResult, after: RunResult) -> Iterable[str]:
    named = {
        "ttft_p50": "Median time to first token",
        "ttft_p99": "99th percentile",
        "cached_ratio": "Prompt tokens found cached",
        "imbalance": "Busiest server over the mean",
    }
    for name, label in named.items():
        value, was = format_figure(name, after.figures), format_figure(name, before.figures)
        yield tile(label, value, f"{before.policy}: {was}")


def _rows(before: RunResult, after: RunResult) -> Iterable[str]:
    for name, (label, _) in ROWS.items():
        cells = "".join(f"<td>{format_figure(name, run.figures)}</td>" for run in (before, after))
        yield f"<tr><th>{html.escape(label)}</th>{cells}</tr>"


def _span(result: RunResult) -> float:
    """Return when the last response was complete, in seconds; nan without one."""
    ends = (sample.sent_at + sample.seconds for sample in result.samples if not sample.error)
    return max(ends, default=math.nan)


def _share(result: RunResult, capacity: float) -> str:
    """Return computed prompt tokens as a share of `capacity` (tokens a second) times the time."""
    computed = sum(sample.computed_tokens for sample in result.samples)
    return format_value(computed / capacity / _span(result), Unit.SHARE)


def _facts(before: RunResult, after: RunResult, where: Setup) -> Iterable[str]:
    load, pool = where.pool.workload, where.pool
    prompts = [sample.prompt_tokens for sample in before.samples if not sample.error]
    yield (
        f"Prompts have {format_value(mean(prompts), Unit.COUNT)} tokens on average, answers "
        f"{load.answer[0]} to {load.answer[1]}. All caches of the pool together hold "
        f"{pool.servers * pool.cache_tokens:,} tokens."
    )
    if pool.prompt_rate:
        first, second = (_share(run, pool.servers * pool.prompt_rate) for run in (before, after))
        yield (
            f"A server computes up to {pool.prompt_rate:,.0f} prompt tokens a second. Prompts took "
            f"{first} of the pool's time under {before.policy} and {second} under {after.policy}; "
            "generating tokens shares the rest."
        )
    ended, then = (format_value(_span(run), Unit.SECONDS) for run in (before, after))
    yield (
        "Arrivals are open loop: a question is sent at its planned moment, whatever the servers "
        "do, unless the answer before it in the same conversation is still running; then right "
        f"after it. The plan ends after {load.seconds:g} s; the last answer was complete after "
        f"{ended} under {before.policy} and {then} under {after.policy}."
    )
    yield (
        f"Compressed for a short show: a user asks every {load.gap:g} s on average, and all "
        f"conversations begin within {load.seconds:g} s. Popularity of the dossiers falls as "
        f"rank<sup>&minus;{load.skew:g}</sup>."
    )
    yield (
        "Both runs use the same picker, gateway and flags; only <code>--policy</code> differs. "
        "Model servers and picker are started afresh for each, with empty caches."
    )
    yield (
        f"The load generator used {before.client_load:.0%} and {after.client_load:.0%} of one "
        "core, so its own queueing does not show in the times."
        if max(before.client_load, after.client_load) < 0.5
        else f"The load generator used {before.client_load:.0%} and {after.client_load:.0%} of "
        "one core: part of the times may be its own."
    )
    yield f"Seed {where.seed}; {html.escape(where.machine)}."
    yield f"Repeat with <code>{html.escape(where.command)}</code>."
