"""The figures of `accuracy`: what each is, its unit, what was promised of it."""

from collections.abc import Mapping, Sequence

import msgspec

from bench.accuracy.errors import Errors
from bench.figures import Budget, Figure, Grid, single

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
Measures = Mapping[str, tuple[str, str]]
"""What is said of each error, and the head of its column."""
MEASURES: Measures = {
    "mae": ("mean absolute error", "mean absolute error"),
    "over": ("predicted too much", "predicted too much"),
    "under": ("predicted too little", "too little"),
    "off": ("requests off by a block or more", "off by ≥ 1 block"),
}


class Part(msgspec.Struct, frozen=True):
    """One source of truth, such as real vLLM or a trace: its figures, and how to lay them out."""

    figures: tuple[Figure, ...]
    grid: Grid
    picture: bytes = b""


def scored(
    scores: Mapping[str, Sequence[Errors]],
    suffix: str = "",
    names: Mapping[str, str] = PREDICTORS,
    measures: Measures = MEASURES,
) -> tuple[Figure, ...]:
    """Turn the errors of each predictor, one a run, into figures; `suffix` ends every key."""
    return tuple(
        Figure(
            key=f"{measure}_{name}{suffix}_pct",
            says=f"{names[name]}: {says}",
            unit="%",
            runs=tuple(getattr(each, measure) for each in scores[name]),
            budget=_BUDGETS.get(name) if measure == "mae" else None,
        )
        for name in names
        if name in scores
        for measure, (says, _) in measures.items()
    )


def grid(
    title: str,
    scores: Mapping[str, Sequence[Errors]],
    suffix: str = "",
    names: Mapping[str, str] = PREDICTORS,
    measures: Measures = MEASURES,
) -> Grid:
    """Lay the same figures out, a predictor a row."""
    rows = tuple(
        (says, tuple(f"{measure}_{name}{suffix}_pct" for measure in measures))
        for name, says in names.items()
        if name in scores
    )
    return Grid(title, tuple(column for _, column in measures.values()), rows)


def counted(scores: Mapping[str, Sequence[Errors]], suffix: str = "") -> tuple[Figure, ...]:
    """Say how many requests there were, and how much of their prompts was cached."""
    runs = [each for name in ("text", "tokens", "events") for each in scores.get(name, ())]
    requests = sum(each.requests for each in runs)
    return (
        single(f"requests{suffix}", "requests compared", "", requests),
        Figure(
            key=f"hit{suffix}_pct",
            says="prompt tokens that were really cached",
            unit="%",
            runs=tuple(each.hit for each in runs),
        ),
    )
