"""Hot prefixes: the beginnings that prompts of the last decisions share, as a tree.

It is made from the chains of block hashes in decisions, so it contains no text. The root's
children are the beginnings that at least two requests have.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from epp.app.observing.decision_ring import KeptDecision
from epp.model.candidate import Candidate
from epp.model.decision import Decision
from epp.model.prompts.hashing import BlockHash

MAX_DECISIONS: Final = 256
"""The last decisions that are looked at."""
_MAX_BLOCKS: Final = 4096
"""Blocks of one prompt that are followed, from its start."""
_MAX_CHILDREN: Final = 12
_MAX_DEPTH: Final = 6
_MAX_HOLDERS: Final = 16
_AT_ONCE: Final = 8
"""Prompts that are compared between two turns of the event loop."""


class HotPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix that several requests have, and the longer ones that begin with it."""

    name: str
    """The keyed hash of its last block, which does not reveal the text."""
    tokens: int
    """How long it is, from the prompt's start."""
    requests: int
    model: str
    """The model of the last request."""
    seconds_ago: float
    """Seconds since the last request was decided on."""
    holders: int
    """Endpoints that were then predicted to hold all of it, and the one that was picked."""
    endpoints: tuple[str, ...]
    """The first of the `holders`."""
    children: tuple["HotPrefix", ...]
    """The most requested first; those that one request alone has are left out."""


class HotPrefixes(msgspec.Struct, frozen=True, kw_only=True):
    """The prefixes that the last decisions share."""

    requests: int
    """Decisions that were looked at: those with one prompt of at least one full block."""
    roots: tuple[HotPrefix, ...]


class _Prompt(msgspec.Struct, frozen=True):
    """One request's prompt."""

    kept: KeptDecision
    decision: Decision
    candidate: Candidate
    hashes: Sequence[BlockHash]

    def tokens(self, blocks: int) -> int:
        """Return roughly how many tokens its first blocks have."""
        chain = self.candidate.chains[0]
        return round(self.candidate.prompt_tokens * chain.ends[blocks - 1] / max(1, chain.size))


async def hot_prefixes(kept: Sequence[KeptDecision], now: float) -> HotPrefixes:
    """Return the tree of decisions, in their order."""
    prompts = [prompt for each in kept if (prompt := _prompt(each)) is not None]
    return HotPrefixes(requests=len(prompts), roots=await _children(prompts, 0, 0, now))


def _prompt(kept: KeptDecision) -> _Prompt | None:
    decision = kept.decision
    candidate = None if decision is None else decision.predicted_for
    if decision is None or candidate is None or len(candidate.chains) != 1:
        return None
    hashes = candidate.chains[0].hashes[:_MAX_BLOCKS]
    return _Prompt(kept, decision, candidate, hashes) if len(hashes) else None


async def _children(
    prompts: Sequence[_Prompt], start: int, depth: int, now: float
) -> tuple[HotPrefix, ...]:
    """Return the continuations of prompts that share their first `start` blocks."""
    if depth >= _MAX_DEPTH:
        return ()
    groups: dict[BlockHash, list[_Prompt]] = {}
    for each in prompts:
        if len(each.hashes) > start:
            groups.setdefault(each.hashes[start], []).append(each)
    shared = [group for group in groups.values() if len(group) > 1]
    shared.sort(key=len, reverse=True)
    return tuple([await _node(group, start, depth, now) for group in shared[:_MAX_CHILDREN]])


async def _node(group: Sequence[_Prompt], start: int, depth: int, now: float) -> HotPrefix:
    end = len(group[0].hashes)
    for at, each in enumerate(group):
        end = _common(group[0].hashes, each.hashes, start, end)
        if at % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
    last = group[-1]
    holders = _holders(last.decision, end)
    return HotPrefix(
        name=f"{group[0].hashes[end - 1]:016x}"[:8],
        tokens=last.tokens(end),
        requests=len(group),
        model=last.kept.model[:120],
        seconds_ago=round(max(0.0, now - last.kept.decided_at), 1),
        holders=len(holders),
        endpoints=tuple(holders[:_MAX_HOLDERS]),
        children=await _children(group, end, depth + 1, now),
    )


def _common(one: Sequence[BlockHash], other: Sequence[BlockHash], start: int, end: int) -> int:
    """Return how many leading blocks two prompts share: at least `start`, at most `end`."""
    low, high = start, min(end, len(other))  # hashes are chained: after one that differs, all do
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


def _holders(decision: Decision, blocks: int) -> list[str]:
    picked = decision.endpoint.id
    holding = [
        each.endpoint.id
        for each in decision.considered
        if each.matched_blocks >= blocks and each.endpoint.id != picked
    ]
    return [picked, *holding]
