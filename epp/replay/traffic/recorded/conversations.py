"""Which request of a recording continues which, and what was answered.

A prompt that begins with all of an earlier one continues its conversation: what follows there, up
to the next message, was the answer. A response of unknown length (it was not observed, or refused)
is as long as one of the others, drawn with the seed.
"""

import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from epp.protocol.extproc.record import Outcome
from epp.protocol.recording import RecordedPrompt, RecordedRequest
from epp.replay.traffic.bounds import Budget, limit_of
from epp.replay.traffic.calls import Call, Run, Runs, cut, tokens_in
from epp.replay.traffic.recorded.block_tree import ROOT, BlockTree

_UNKNOWN_RESPONSE = 128
"""Tokens of a response if a recording has observed none at all, and no limit was given."""
_NEAR, _LATEST = 16, 100
"""For the end of an earlier prompt: how many message ends, and unmarked prompts, are tried."""
_SLACK_SHARE, _SLACK_TOKENS = 8, 16
"""By how much a response may be longer than the message that repeats it: an eighth, and 16."""


class Asked(NamedTuple):
    """One prompt of a request, with the places of its last full block and of its end in the tree.

    It came at `at` seconds, counted from the first run of the picker.
    """

    at: float
    request: RecordedRequest
    prompt: RecordedPrompt
    block: int
    end: int
    marks: tuple[int, ...]

    @property
    def ended_at(self) -> float:
        """When its response ended, as far as that was seen."""
        seen = self.request.end if self.is_complete else self.request.first
        return self.at + (seen or 0.0)

    @property
    def is_complete(self) -> bool:
        """Whether its response was seen to its end."""
        return self.request.outcome == Outcome.COMPLETED.value and self.request.end is not None


class _Ends:
    """The prompts with the same last full block, by their sizes.

    They are asked for in order of time.
    """

    def __init__(self) -> None:
        self._pending: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
        self._over: dict[int, int] = {}
        self._unmarked: list[tuple[int, Asked]] = []

    def add(self, number: int, asked: Asked) -> None:
        """Add the prompt of this number."""
        if asked.marks:
            heappush(self._pending[asked.prompt.size], (asked.ended_at, number))
        else:
            self._unmarked.append((number, asked))

    def last_before(self, each: Asked, units: int) -> int | None:
        """Return the last prompt whose response had ended when a prompt came that may continue it.

        The later prompt is longer, and one of its messages ends where the earlier prompt ended:
        `units` from its start, or less than a block later.
        """
        first = bisect_left(each.marks, units)
        sizes = {size for size in each.marks[first : first + _NEAR] if size < each.prompt.size}
        found = [self._last_over(size, each.at) for size in sizes]
        found += [
            number
            for number, earlier in self._unmarked[-_LATEST:]
            if earlier.prompt.size < each.prompt.size and earlier.ended_at <= each.at
        ]
        return max((number for number in found if number is not None), default=None)

    def _last_over(self, size: int, at: float) -> int | None:
        """Return the last prompt of a size whose response had ended by a time."""
        pending = self._pending.get(size, [])
        while pending and pending[0][0] <= at:
            _, number = heappop(pending)
            self._over[size] = max(number, self._over.get(size, number))
        return self._over.get(size)


class Conversations:
    """Which prompts continue which, and what was answered."""

    def __init__(self, asked: list[Asked], tree: BlockTree, base_model: str, seed: int) -> None:
        self._asked = asked
        self._tree = tree
        self._base_model = base_model
        self._chance = random.Random(seed)
        self._lengths = sorted(
            each.request.generated_tokens
            for each in asked
            if each.request.generated_tokens and each.request.outcome == Outcome.COMPLETED.value
        )
        self._before = list(self._continued())
        self._next: dict[int, int] = {}
        for number, before in enumerate(self._before):
            if before is not None:
                self._next.setdefault(before, number)

    def calls(self, budget: Budget) -> list[Call]:
        """Return all calls, in order of time. Raises `ConfigError`."""
        calls: list[Call] = []
        began = self._asked[0].at if self._asked else 0.0
        for number, (each, before) in enumerate(zip(self._asked, self._before, strict=True)):
            request = each.request
            model = request.target_model or request.model
            prompt, response = self._tokens(number, each)
            think = 0.0
            if before is not None and self._asked[before].is_complete:
                think = max(0.0, each.at - self._asked[before].ended_at)
            call = Call(
                at=each.at - began,
                prompt=prompt,
                response=response,
                session=number if before is None else calls[before].session,
                after=before,
                think=think,
                marks=tuple(self._in_tokens(each, each.marks)),
                max_tokens=limit_of(request.max_tokens),
                adapter="" if model == self._base_model else model,
                tenant=request.tenant,
                priority=request.priority,
            )
            calls.append(budget(call))
        return calls

    def _continued(self) -> Iterator[int | None]:
        """Yield for each prompt the longest earlier one that it continues."""
        ends: dict[int, _Ends] = {}
        for number, each in enumerate(self._asked):
            yield self._earlier(each, ends)
            if each.block != ROOT:
                ends.setdefault(each.block, _Ends()).add(number, each)

    def _earlier(self, each: Asked, ends: dict[int, "_Ends"]) -> int | None:
        for node in self._tree.path(each.block):
            if node in ends:
                found = ends[node].last_before(each, self._tree.units(node))
                if found is not None:
                    return found
        return None

    def _tokens(self, number: int, each: Asked) -> tuple[Runs, Runs]:
        """Return a prompt, and its response: the next prompt's if that repeats it."""
        prompt = tuple(self._tree.runs(each.end))
        size = tokens_in(prompt)
        own = len(self._tree) + number
        known = self._generated(each.request)
        following = self._next.get(number)
        if following is None:
            return prompt, (Run(own, known or self._drawn(each.request)),)
        later = self._asked[following]
        whole = self._tree.runs(later.end)
        ends = (mark for mark in later.marks if mark > each.prompt.size)
        (end,) = self._in_tokens(later, [next(ends, later.prompt.size)])
        repeated = end - size
        length = known or max(1, repeated)
        if repeated < 1 or length > repeated * (1 + 1 / _SLACK_SHARE) + _SLACK_TOKENS:
            return prompt, (Run(own, length),)
        said = cut(whole, size, min(size + length, end))
        missing = length - tokens_in(said)
        return tuple(cut(whole, 0, size)), (*said, *([Run(own, missing)] if missing else []))

    def _in_tokens(self, each: Asked, units: Iterable[int]) -> Iterator[int]:
        """Yield where each of some places of a prompt is, in tokens."""
        nodes = self._tree.path(each.end)[::-1]
        at = 0
        for place in units:
            while at < len(nodes) - 1 and self._tree.units(nodes[at]) < place:
                at += 1
            yield self._between(nodes[at - 1] if at else ROOT, nodes[at], place)

    def _between(self, start: int, end: int, place: int) -> int:
        low, high = self._tree.units(start), self._tree.units(end)
        first, last = self._tree.tokens(start), self._tree.tokens(end)
        return first + round((last - first) * max(0.0, min(1.0, (place - low) / (high - low))))

    @staticmethod
    def _generated(request: RecordedRequest) -> int:
        """Return how many tokens were generated; 0 if that is not known."""
        if request.generated_tokens:
            return request.generated_tokens
        if request.api in _NOTHING_GENERATED:
            return 1
        seen = request.outcome in {Outcome.COMPLETED.value, Outcome.ABORTED.value}
        return request.chunks if seen and request.stream else 0

    def _drawn(self, request: RecordedRequest) -> int:
        most = limit_of(request.max_tokens)
        length = self._chance.choice(self._lengths) if self._lengths else most or _UNKNOWN_RESPONSE
        return max(1, min(length, most or length))


_NOTHING_GENERATED = frozenset({"embeddings", "grpc/embed", "messages/count_tokens"})
