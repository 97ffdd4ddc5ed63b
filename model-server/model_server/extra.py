"""Arguments that go to `vllm serve` as they are, and what the launcher has to know of them.

Nothing here touches a file, a process, the environment or vLLM itself.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

OWN = {
    "--host": "host",
    "--port": "port",
    "--shutdown-timeout": "drainSeconds",
    "--nnodes": "nodes",
    "--node-rank": "nodeRank",
    "--uds": "port",
}
"""Flags by which vLLM would listen or end elsewhere than the launcher looks, and the keys that say
both of them the same."""


def flags(extra: Sequence[str]) -> Mapping[str, str]:
    """Return the value of each flag, of a repeated one the last; nothing for a switch.

    Names are spelled with dashes, for vLLM takes underscores too. Of several values the first
    counts.
    """
    found = {}
    for word, following in pairwise([*extra, ""]):
        if not word.startswith("--"):
            continue
        name, has_value, value = word.partition("=")
        if not has_value and not following.startswith("--"):
            value = following
        found[name.replace("_", "-")] = value
    return found


def check(extra: Sequence[str]) -> None:
    """Raise ValueError where vLLM is told by a flag what the launcher has to be told too."""
    for flag in flags(extra):
        if flag in OWN:
            raise ValueError(
                f"{flag} must not be given to vLLM alone: set {OWN[flag]}, for the launcher too"
            )
