"""Arguments that go to `vllm serve` unchanged, and what the launcher must know about them.

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
"""Flags that change where vLLM listens or when it ends, and the keys of the file that tell the
launcher too."""


def flags(extra: Sequence[str]) -> Mapping[str, str]:
    """Return the value of each flag (the last one if it is repeated); nothing for a switch.

    Names are returned with dashes, since vLLM accepts underscores too. Of several values the first
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
    """Raise `ValueError` for a flag of vLLM that the launcher has to know as well."""
    for flag in flags(extra):
        if flag in OWN:
            raise ValueError(
                f"{flag} must not be given to vLLM alone: set {OWN[flag]}, for the launcher too"
            )
