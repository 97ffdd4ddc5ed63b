"""Traffic as data: requests with the tokens of prompt and response, and what each waits for.

Tokens are written as runs of equal ones. To a cache, only the equality of tokens matters, so a
trace that names blocks makes all tokens of a block equal, and different from those of other blocks.
"""

from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, cast
from zlib import crc32

import msgspec

from epp.model.prompts.hashing import BlockHash
from epp.model.request import TOKEN_BYTES

TOKEN_IDS = 1 << 32
"""Token ids are less than this."""


class Run(NamedTuple):
    """`length` equal tokens, of the id `token`."""

    token: int
    length: int


Runs = Sequence[Run]


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request.

    It comes at `at`, or `think` seconds after the response to the call `after`, whichever is later.
    The next prompt of a conversation repeats the response's tokens if the trace shows it.
    """

    at: float
    """Seconds since the start."""
    prompt: Runs
    """The tokens of the prompt, at least one."""
    response: Runs
    """The tokens of the response, at least one."""
    session: int
    """The number of its conversation."""
    after: int | None = None
    """The call before it in its conversation; in a closed loop, the last one of its user."""
    think: float = 0.0
    """Seconds."""
    marks: tuple[int, ...] = ()
    """The ends of the prompt's messages, in tokens, ascending."""
    max_tokens: int | None = None
    """The client's limit on the response; None: none."""
    adapter: str = ""
    """The name of a LoRA adapter."""
    tenant: str = ""
    """The fairness id."""
    priority: int = 0
    """As in an InferenceObjective."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Calls in order of `at`; none comes before the one it is `after`.

    `closed`: a call is sent when its conversation reaches it, however long that takes. Otherwise
    (open loop) it is sent at its `at`, but never before the response that it continues from.
    `skipped` bad lines of the source were left out; `reordered` ones were earlier than the line
    before, and have been sorted. `problems` are the first of both as text, with their places.
    """

    name: str
    calls: Sequence[Call]
    closed: bool = False
    skipped: int = 0
    reordered: int = 0
    problems: tuple[str, ...] = ()


class TokenNames:
    """Gives each name a token id of its own, in order of first use."""

    def __init__(self) -> None:
        self._ids: dict[Hashable, int] = {}

    def __call__(self, name: Hashable) -> int:
        """Return the id for a name."""
        return self._ids.setdefault(name, len(self._ids))


def tokens_in(runs: Runs) -> int:
    """Return the length of runs, in tokens."""
    return sum([length for _, length in runs])


def packed(runs: Runs) -> bytes:
    """Return runs as token ids in the form of an exact `Prompt`."""
    return b"".join([token.to_bytes(TOKEN_BYTES, "little") * length for token, length in runs])


def joined(*parts: Runs) -> Runs:
    """Return runs one after another; neighbours of one token are merged."""
    merged: list[Run] = []
    last = -1
    for run in chain(*parts):
        token, length = run
        if token == last:
            merged[-1] = Run(token, merged[-1].length + length)
        elif length:
            merged.append(run)
            last = token
    return merged


def cut(runs: Runs, start: int, end: int) -> Runs:
    """Return the tokens from `start` to `end`, or as many as there are."""
    kept: list[Run] = []
    upto = 0
    for run in runs:
        begun, upto = upto, upto + run.length
        length = min(end, upto) - max(start, begun)
        if length > 0:
            kept.append(run if length == run.length else Run(run.token, length))
        if upto >= end:
            break
    return kept


_KEY = (1 << 63) - 1
"""The bits of a key."""


def block_keys(runs: Runs, size: int, adapter: str = "") -> Sequence[BlockHash]:
    """Return a key for each full block of `size` tokens: equal if all tokens up to it are.

    Neighbouring runs are of different tokens. Blocks of one adapter are not another's (vLLM,
    `_gen_lora_extra_hash_keys`).
    """
    keys = array("Q")
    for first, count in _spans(runs, size, adapter):
        keys.extend(range(first, first + count))
    return cast("Sequence[BlockHash]", keys)


def _spans(runs: Runs, size: int, adapter: str) -> Iterator[tuple[int, int]]:
    """Yield the keys of full blocks as rows of consecutive numbers: the first, and how many.

    The blocks within one run of tokens form a row: prompts that share the first of them share all
    that both have.
    """
    content: tuple[int, ...] = ()
    key, filled = crc32(adapter.encode()), 0
    for token, length in runs:
        left = length
        if filled:
            taken = min(left, size - filled)
            content += (token, taken)
            filled, left = filled + taken, left - taken
            if filled < size:
                continue
            key = hash((key, content)) & _KEY
            yield key, 1
        whole, filled = divmod(left, size)
        if whole:
            first = hash((key, token)) & _KEY
            key = first + whole - 1
            yield first, whole
        content = (token, filled) if filled else ()


class InfiniteCache:
    """A prefix cache in blocks of `block_tokens` that forgets nothing and serves every call."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._seen: dict[int, int] = {}

    def admit(self, call: Call) -> int:
        """Return how many of its prompt's tokens are cached, at most all but one; then cache all.

        The last token of a prompt is always computed, as by an engine.
        """
        seen, size = self._seen, self._block_tokens
        known, whole = 0, True
        for first, count in _spans(joined(call.prompt, call.response), size, call.adapter):
            there = seen.get(first, 0)
            if whole:
                known += min(there, count)
                whole = there >= count
            if there < count:
                seen[first] = count
        return min(known * size, tokens_in(call.prompt) - 1)


def ordered(calls: Iterable[Call]) -> list[Call]:
    """Return calls in order of `at`, with the numbers that they refer to adjusted.

    A call that would come before the one it is `after` is moved behind that one.
    """
    listed = list(calls)
    times = [call.at for call in listed]
    for number, call in enumerate(listed):
        if call.after is not None and times[number] < times[call.after]:
            times[number] = times[call.after]
    order = sorted(range(len(listed)), key=lambda number: (times[number], number))
    places: dict[int | None, int] = {number: place for place, number in enumerate(order)}
    return [
        msgspec.structs.replace(
            listed[number], at=times[number], after=places.get(listed[number].after)
        )
        for number in order
    ]
