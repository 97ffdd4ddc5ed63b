"""Recordings of `epp serve --record` as traffic: blocks become runs of tokens.

A prompt's text is not known; which prompts begin alike is, and how long they are. A conversation
shows itself by a prompt that begins with all of an earlier one: what follows there, up to the next
message, was the answer to it. Responses that nothing shows the length of (they were not observed,
or refused) are as long as one of the others, drawn with the seed.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from epp.errors import ConfigError
from epp.protocol.extproc.record import Outcome
from epp.protocol.recording import (
    RecordedLoss,
    RecordedPrompt,
    RecordedRequest,
    RecordingHeader,
    decode_header,
    decode_line,
    unpacked,
)
from epp.replay.traffic.block_tree import ROOT, BlockTree
from epp.replay.traffic.calls import Call, Run, Runs, Trace, cut, ordered, tokens_in
from epp.replay.traffic.source import Problems, Source

FIELDS = frozenset({"kind", "version", "salt", "part", "started"})

_UNKNOWN_RESPONSE = 128
"""Tokens of a response where a recording has observed none at all, and no limit was given."""
_SLACK_SHARE, _SLACK_TOKENS = 8, 16
"""By how much a response may be longer than the message that repeats it: an eighth, and 16."""


class _Asked(NamedTuple):
    """One prompt of a request, and where its last full block, and its end, are in the tree."""

    request: RecordedRequest
    prompt: RecordedPrompt
    block: int
    end: int
    marks: tuple[int, ...]

    @property
    def ended_at(self) -> float:
        """When its response was over, as far as that was seen."""
        request = self.request
        seen = request.end if request.outcome == Outcome.COMPLETED.value else request.first
        return request.at + (seen or 0.0)


def read(source: Source, problems: Problems, seed: int) -> Trace:
    """Read a recording: one part, or a folder with those of one recording.

    Raises `ConfigError` for parts of another version, or of several recordings.
    """
    parts = _Parts(source, problems)
    asked = sorted(parts.asked(), key=lambda each: (each.request.at, each.request.n))
    tree = parts.tree
    for each in asked:
        # Of several prompts of one request only the sum was reported.
        counted = each.request.prompt_tokens if len(each.request.prompts) == 1 else None
        tree.count_tokens(each.end, counted or each.prompt.tokens)
        tree.end(each.block)
        tree.end(each.end)
    calls = _Conversations(asked, tree, parts.base_model, seed).calls()
    return Trace(name=source.name, calls=ordered(calls))


class _Parts:
    """The lines of all parts, and the tree of the blocks in them."""

    def __init__(self, source: Source, problems: Problems) -> None:
        self.tree = BlockTree()
        self.base_model = ""
        self._source = source
        self._problems = problems
        self._first: tuple[str, RecordingHeader] | None = None
        self._part = 0
        self._known: dict[int, tuple[int, tuple[int, ...]]] = {}

    def asked(self) -> Iterator[_Asked]:
        """Yield all prompts. Raises `ConfigError`."""
        file = ""
        models: Counter[str] = Counter()
        for place, text, cut_off in self._source.lines(self._problems):
            at = place.rpartition(":")[0]
            if at != file:
                file = at
                self._begin(place, text)
                continue
            try:
                line = decode_line(text)
                if isinstance(line, RecordedRequest):
                    models[line.target_model or line.model] += 1
                    yield from [self._asked(line, prompt) for prompt in line.prompts]
                elif isinstance(line, RecordedLoss):
                    self._problems.skip(place, f"{line.requests} requests before it were lost")
            except (msgspec.DecodeError, UnicodeDecodeError, ValueError, LookupError) as error:
                self._problems.skip(place, "the line is cut off" if cut_off else _said(error))
        if not self.base_model and models:
            self.base_model = models.most_common(1)[0][0]

    def _begin(self, place: str, text: bytes) -> None:
        """Read a part's header."""
        try:
            header = decode_header(text)
        except ValueError as error:
            raise ConfigError(str(error), place) from None
        self._known = {}
        if self._first is None:
            self._first = place, header
            self.base_model = header.base_model
        elif header.salt != self._first[1].salt:
            raise ConfigError(
                f"it is of the recording with salt {header.salt}, and {self._first[0]} of the one"
                f" with salt {self._first[1].salt}: their hashes cannot be compared; give the parts"
                " of one, whose names have its salt",
                place,
            )
        elif header.part != self._part + 1:
            self._problems.skip(place, f"it is part {header.part}, after part {self._part}")
        self._part = header.part

    def _asked(self, line: RecordedRequest, prompt: RecordedPrompt) -> _Asked:
        """Find a prompt's place in the tree. Raises `ValueError`, `LookupError`."""
        if min(line.at, prompt.size - 1, prompt.tokens - 1) < 0:
            raise ValueError(f"request {line.n} has a negative time, or an empty prompt")
        node, before = ROOT, tuple[int, ...]()
        if prompt.like:
            if prompt.like not in self._known:
                raise LookupError(f"it begins like prompt {prompt.like}, which is not there")
            node, before = self._known[prompt.like]
            node = self.tree.ancestor(node, prompt.shared)
        start = self.tree.units(node)
        block = self.tree.add(node, *unpacked(prompt))
        behind = prompt.size - self.tree.units(block)
        if behind < 0:
            raise ValueError(f"its blocks are longer than the prompt, by {-behind}")
        marks = (*(mark for mark in before if mark <= start), *prompt.marks)
        self._known[prompt.number] = block, marks
        end = block
        if behind:
            # Without a hash of it nobody else has it.
            end = self.tree.add(block, [prompt.rest or ~len(self.tree)], [behind])
        return _Asked(line, prompt, block, end, marks)


def _said(error: Exception) -> str:
    return str(error.args[0]) if isinstance(error, LookupError) else str(error)


class _Conversations:
    """Who goes on with whom, and what was answered."""

    def __init__(self, asked: list[_Asked], tree: BlockTree, base_model: str, seed: int) -> None:
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

    def calls(self) -> list[Call]:
        """Return all calls, in order of time."""
        calls: list[Call] = []
        began = self._asked[0].request.at if self._asked else 0.0
        for number, (each, before) in enumerate(zip(self._asked, self._before, strict=True)):
            request = each.request
            model = request.target_model or request.model
            prompt, response = self._tokens(number, each)
            think = 0.0
            if before is not None:
                think = max(0.0, request.at - self._asked[before].ended_at)
            calls.append(
                Call(
                    at=request.at - began,
                    prompt=prompt,
                    response=response,
                    session=number if before is None else calls[before].session,
                    after=before,
                    think=think,
                    marks=tuple(self._in_tokens(each, each.marks)),
                    max_tokens=request.max_tokens,
                    adapter="" if model == self._base_model else model,
                    tenant=request.tenant,
                    priority=request.priority,
                )
            )
        return calls

    def _continued(self) -> Iterator[int | None]:
        """Yield for each prompt the longest earlier one that it begins with and goes on from."""
        ends: dict[int, list[int]] = {}
        for number, each in enumerate(self._asked):
            yield self._earlier(each, ends)
            if each.block != ROOT:
                ends.setdefault(each.block, []).append(number)

    def _earlier(self, each: _Asked, ends: dict[int, list[int]]) -> int | None:
        for node in self._tree.path(each.block):
            for number in reversed(ends.get(node, ())):
                if self._goes_on(each, self._asked[number]):
                    return number
        return None

    @staticmethod
    def _goes_on(each: _Asked, earlier: _Asked) -> bool:
        size = earlier.prompt.size
        if size >= each.prompt.size or earlier.ended_at > each.request.at:
            return False
        return not earlier.marks or size in each.marks

    def _tokens(self, number: int, each: _Asked) -> tuple[Runs, Runs]:
        """Return a prompt, and its response: the next prompt's where that repeats it."""
        prompt = tuple(self._tree.runs(each.end))
        size = tokens_in(prompt)
        own = len(self._tree) + number
        known = self._generated(each.request)
        following = self._next.get(number)
        if following is None:
            return prompt, (Run(own, known or self._drawn(each.request)),)
        later = self._asked[following]
        whole = self._tree.runs(later.end)
        (end,) = self._in_tokens(
            later,
            (next((mark for mark in later.marks if mark > each.prompt.size), later.prompt.size),),
        )
        repeated = end - size
        length = known or max(1, repeated)
        if repeated < 1 or length > repeated * (1 + 1 / _SLACK_SHARE) + _SLACK_TOKENS:
            return prompt, (Run(own, length),)
        said = cut(whole, size, min(size + length, end))
        missing = length - tokens_in(said)
        return tuple(cut(whole, 0, size)), (*said, *([Run(own, missing)] if missing else []))

    def _in_tokens(self, each: _Asked, units: Iterable[int]) -> Iterator[int]:
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
        """Return how many tokens were generated; 0 where that is not known."""
        if request.generated_tokens:
            return request.generated_tokens
        if request.api in _NOTHING_GENERATED:
            return 1
        seen = request.outcome in {Outcome.COMPLETED.value, Outcome.ABORTED.value}
        return request.chunks if seen and request.stream else 0

    def _drawn(self, request: RecordedRequest) -> int:
        most = request.max_tokens
        length = self._chance.choice(self._lengths) if self._lengths else most or _UNKNOWN_RESPONSE
        return max(1, min(length, most or length))


_NOTHING_GENERATED = frozenset({"embeddings", "grpc/embed", "messages/count_tokens"})
