"""A comparison as one JSON object, described in docs/replay-results.md."""

import math

import msgspec

from epp.replay.results.comparison import Comparison
from epp.replay.results.digest import RANKS
from epp.replay.results.verdict import confidence, headline, reason

VERSION = 1
"""The version of the object's form; fields may be added without a new one."""


def as_json(comparison: Comparison, command: str = "") -> str:
    """Return the object as one line; what has no value is null. `command` repeats the runs."""
    found = msgspec.to_builtins(comparison)
    curves = found.pop("curves")
    line = {
        "version": VERSION,
        "command": command,
        "headline": headline(comparison),
        "confidence": confidence(comparison),
        "reason": reason(comparison),
        **found,
        "ttft_ranks": RANKS,
        "ttft_quantiles": {
            cell: {
                policy: {str(seed): each["ttft"] for seed, each in by_seed.items()}
                for policy, by_seed in by_policy.items()
            }
            for cell, by_policy in curves.items()
        },
    }
    return msgspec.json.encode(_finite(line)).decode()


def _finite(value: object) -> object:
    """Return a value with null for every number that JSON has not."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
