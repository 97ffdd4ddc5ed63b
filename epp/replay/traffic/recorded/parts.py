"""Recordings of `epp serve --record` as traffic: blocks become runs of tokens.

The text of prompts is not known, only which prompts begin alike and how long they are.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from epp.errors import ConfigError
from epp.printable import printable
from epp.protocol.recording import (
    RecordedLoss,
    RecordedPool,
    RecordedPrompt,
    RecordedRequest,
    RecordingHeader,
    decode_header,
    decode_line,
    unpacked,
)
from epp.replay.traffic.bounds import (
    MAX_PIECES,
    MAX_REQUESTS,
    MAX_SECONDS,
    MAX_TOKENS,
    Budget,
    check_lengths,
    too_much,
)
from epp.replay.traffic.calls import Call
from epp.replay.traffic.files.source import UNREADABLE, Problems, Source, SourceLine, in_order
from epp.replay.traffic.recorded.block_tree import ROOT, BlockTree
from epp.replay.traffic.recorded.conversations import Asked, Conversations

FIELDS = frozenset({"kind", "version", "salt", "part", "started"})

_UNITS = 64
"""Bytes of a token, at most."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one pool's recordings. Times are in seconds from `began` (Unix time)."""

    prompts: Sequence[Asked]
    """All prompts, in order of time; those of one request follow one another."""
    calls: Sequence[Call]
    """The same as traffic, one call for each of `prompts`."""
    pools: Sequence[RecordedPool]
    """The endpoints, whenever they changed."""
    began: float
    configuration: str
    """The policy's name or its file's, as the first part says."""


def read(source: Source, problems: Problems, seed: int) -> Sequence[Call]:
    """Read recordings of one pool as traffic, as `read_recording` does."""
    return read_recording(source, problems, seed).calls


def read_recording(source: Source, problems: Problems, seed: int) -> Recording:
    """Read recordings of one pool: a part, or a folder with those of all runs of its picker.

    Each run has hashes of its own, so what its prompts share with those of other runs is not known.
    Raises `ConfigError` for parts of another version, or of several pools.
    """
    parts = _Parts(source, problems)
    rows = sorted(parts.asked(), key=lambda row: (row[1].at, row[1].request.n))
    asked = in_order(rows, lambda each: each.at, problems)
    tree = parts.tree
    for each in asked:
        # Of several prompts of one request only the sum was reported.
        counted = each.request.prompt_tokens if len(each.request.prompts) == 1 else None
        tree.count_tokens(each.end, counted or each.prompt.tokens)
        tree.end(each.block)
        tree.end(each.end)
    pieces = 0
    for each in asked:
        pieces += len(tree.path(each.end))
        if pieces > MAX_PIECES:
            raise too_much(str(source.path))
    return Recording(
        prompts=asked,
        calls=Conversations(asked, tree, parts.base_model, seed).calls(Budget(str(source.path))),
        pools=parts.pools,
        began=parts.began,
        configuration=parts.configuration,
    )


class _Run:
    """The parts of one run of a picker; `part` is the number of the last one.

    It began at `began` seconds of an epoch. Its hashes are combined with `mask`.
    """

    def __init__(self, header: RecordingHeader, mask: int) -> None:
        when = datetime.fromisoformat(header.started)
        self.began = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        self.mask = mask
        self.part = header.part - 1


class _Parts:
    """The lines of all parts, and the tree of the blocks in them."""

    def __init__(self, source: Source, problems: Problems) -> None:
        self.tree = BlockTree()
        self.base_model = ""
        self._source = source
        self._problems = problems
        self._first: tuple[str, RecordingHeader] | None = None
        self._runs: dict[str, _Run] = {}
        self._run: _Run  # of the part that is being read; set by its header
        self.began = 0.0
        self.configuration = ""
        self.pools: list[RecordedPool] = []
        self._marks = 0
        self._known: dict[int, tuple[int, tuple[int, ...]]] = {}

    def asked(self) -> Iterator[tuple[str, Asked]]:
        """Yield all prompts with their places. Raises `ConfigError`."""
        file, count = "", 0
        models: Counter[str] = Counter()
        for line in self._source.lines(self._problems):
            at = line.place.rpartition(":")[0]
            if at != file:
                file = at
                self._run = self._begin(line)
                continue
            for each in self._prompts(line, models):
                count += 1
                if count > MAX_REQUESTS or self._marks > MAX_PIECES:
                    raise too_much(line.place)
                yield line.place, each
        if not self.base_model and models:
            self.base_model = models.most_common(1)[0][0]

    def _prompts(self, line: SourceLine, models: Counter[str]) -> list[Asked]:
        """Read the prompts of a line; note a line that cannot be read, or that reports a loss."""
        try:
            row = decode_line(line.text)
            if isinstance(row, RecordedRequest):
                _check(row)
                models[row.target_model or row.model] += 1
                return [self._asked(row, prompt) for prompt in row.prompts]
            if isinstance(row, RecordedPool):
                _check_names([each.id for each in row.endpoints])
                self.pools.append(replace(row, at=self._time(row.at)))
            if isinstance(row, RecordedLoss):
                self._problems.skip(line.place, f"{row.requests} requests before it were lost")
        except LookupError as error:
            self._problems.skip(line.place, str(error.args[0]))
        except (*UNREADABLE, ValueError) as error:
            self._problems.undecoded(line, error)
        return []

    def _begin(self, line: SourceLine) -> _Run:
        """Read a part's header; return the run to which it belongs."""
        try:
            header = decode_header(line.text)
            run = self._runs.get(header.salt) or _Run(header, _mask(len(self._runs)))
        except ValueError as error:
            raise ConfigError(printable(str(error)), line.place) from None
        if self._first is None:
            self._first = line.place, header
            self.began = run.began
            self.configuration = header.configuration
            self.base_model = header.base_model
        elif header.pool != self._first[1].pool:
            raise ConfigError(
                f"it is of the pool {printable(header.pool)}, and {self._first[0]} is of"
                f" {printable(self._first[1].pool)}: give the parts of one pool, whose names"
                " begin with it",
                line.place,
            )
        if header.part != run.part + 1:
            self._problems.skip(line.place, f"it is part {header.part}, after part {run.part}")
        self._known = {}
        self._runs[header.salt] = run
        run.part = header.part
        return run

    def _asked(self, line: RecordedRequest, prompt: RecordedPrompt) -> Asked:
        """Find a prompt's place in the tree. Raises `ValueError`, `LookupError`."""
        if min(prompt.size, prompt.tokens) < 1:
            raise ValueError(f"request {line.n} has an empty prompt")
        check_lengths(prompt.tokens, 0)
        if prompt.size > MAX_TOKENS * _UNITS:
            raise ValueError(f"request {line.n} has a prompt of {prompt.size:,} bytes")
        node, before = ROOT, tuple[int, ...]()
        if prompt.like:
            if prompt.like not in self._known:
                raise LookupError(f"it begins like prompt {prompt.like}, which is not there")
            node, before = self._known[prompt.like]
            node = self.tree.ancestor(node, prompt.shared)
        start = self.tree.units(node)
        hashes, lengths = unpacked(prompt)
        behind = prompt.size - start - sum(lengths)
        if behind < 0:
            raise ValueError(f"its blocks are longer than the prompt, by {-behind}")
        marks = (*before[: bisect_right(before, start)], *prompt.marks)
        if not all(one <= other for one, other in pairwise((start, *prompt.marks, prompt.size))):
            raise ValueError(f"request {line.n} has messages that do not end one after another")
        self._marks += len(marks)
        mask = self._run.mask
        block = self.tree.add(node, [each ^ mask for each in hashes] if mask else hashes, lengths)
        self._known[prompt.number] = block, marks
        end = block
        if behind:
            # Without a hash of it no other prompt has it.
            rest = prompt.rest ^ mask if prompt.rest else ~len(self.tree)
            end = self.tree.add(block, [rest], [behind])
        return Asked(self._time(line.at), line, prompt, block, end, marks)

    def _time(self, at: float) -> float:
        """Convert a time of the current part's run to the times of the first run."""
        return at + (self._run.began - self.began)


def _check(request: RecordedRequest) -> None:
    """Raise `ValueError` for impossible times and counts."""
    _check_names([each for each in (request.endpoint, request.prefill) if each])
    times = (request.at, request.decided or 0.0, request.first or 0.0, request.end or 0.0)
    if not all(0 <= each <= MAX_SECONDS for each in times):
        raise ValueError(f"request {request.n} has a time that is negative, or beyond a year")
    check_lengths(1 if request.prompt_tokens is None else request.prompt_tokens, request.chunks)
    check_lengths(1, request.generated_tokens or 0)


def _check_names(endpoints: Sequence[str]) -> None:
    for each in endpoints:
        if "/" not in each:
            raise ValueError(f"`{each[:100]}` is not an endpoint's name: `namespace/name`")


def _mask(run: int) -> int:
    """Return the mask with which the hashes of a run are combined, a different one for each run."""
    return run * 0x9E3779B97F4A7C15 & (1 << 64) - 1
