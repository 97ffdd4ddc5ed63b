"""The figures of `accuracy`: what each is, its unit, what was promised of it."""

from collections.abc import Mapping, Sequence

import msgspec

from bench.accuracy.errors import Errors
from bench.figures import Budget, Figure, Grid

PREDICTORS = {
    "tokens": "Warmpick, token ids",
    "events": "Warmpick, token ids and KV events",
    "text": "Warmpick, text",
    "lru_true_capacity": "LRU with the true capacity, token ids",
    "llm_d_router": "llm-d-router's LRU, 31,250 entries, token ids",
    "llm_d_router_tuned": "llm-d-router's LRU, autoTune, token ids",
}
"""Who predicts, in the order of the table."""

_BUDGETS = {"tokens": Budget(most=1), "events": Budget(most=1), "text": Budget(most=3)}
_MEASURES = {
    "mae": "mean absolute error",
    "over": "predicted too much",
    "under": "predicted too little",
    "off": "requests off by a block or more",
}
_COLUMNS = ("mean absolute error", "too much", "too little", "off by ≥ 1 block")
NOTICE = Budget(most=3)


class Part(msgspec.Struct, frozen=True):
    """One source of truth, such as real vLLM or a trace: its figures, and how to lay them out."""

    figures: tuple[Figure, ...]
    grid: Grid
    picture: bytes = b""


def scored(scores: Mapping[str, Sequence[Errors]], suffix: str = "") -> tuple[Figure, ...]:
    """Turn the errors of each predictor, one a run, into figures; `suffix` ends every key."""
    return tuple(
        Figure(
            key=f"{measure}_{name}{suffix}_pct",
            says=f"{PREDICTORS[name]}: {says}",
            unit="%",
            runs=tuple(getattr(each, measure) for each in scores[name]),
            budget=_BUDGETS.get(name) if measure == "mae" else None,
        )
        for name in PREDICTORS
        if name in scores
        for measure, says in _MEASURES.items()
    )


def grid(title: str, scores: Mapping[str, Sequence[Errors]], suffix: str = "") -> Grid:
    """Lay the same figures out, a predictor a row."""
    rows = tuple(
        (says, tuple(f"{measure}_{name}{suffix}_pct" for measure in _MEASURES))
        for name, says in PREDICTORS.items()
        if name in scores
    )
    return Grid(title, _COLUMNS, rows)


def counted(scores: Mapping[str, Sequence[Errors]], suffix: str = "") -> tuple[Figure, ...]:
    """Say how many requests there were, and how much of their prompts was cached."""
    runs = [each for name in ("text", "tokens", "events") for each in scores.get(name, ())]
    requests = sum(each.requests for each in runs)
    return (
        Figure(key=f"requests{suffix}", says="requests compared", unit="", runs=(requests,)),
        Figure(
            key=f"hit{suffix}_pct",
            says="prompt tokens that were really cached",
            unit="%",
            runs=tuple(each.hit for each in runs),
        ),
    )


def noticed(key: str, says: str, counts: Sequence[int]) -> Figure:
    """Make the figure of a server that lost its cache."""
    return Figure(key=key, says=says, unit="requests", runs=tuple(counts), budget=NOTICE)
