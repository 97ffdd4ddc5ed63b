"""One sequence of requests that every router and every plug-in is asked, and what ends between.

It is of named workloads of `epp replay`, with text in place of their tokens. When a first token
comes and when a response ends follows from an engine of a fixed speed, so that routers are asked
in one order and with the same requests under way, however fast they are.
"""

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import pairwise

import msgspec

from epp.model.request import TOKEN_BYTES
from epp.replay.traffic.calls import Call, Run, cut, tokens_in
from epp.replay.traffic.reading import read

PARTS = (
    "interactive-chat:rate=4,sessions=400,longest=6000",
    "llm-d-production:rate=300,sessions=400,longest=6000",
    "batch-synthetic-data-generation:rate=50,sessions=500",
)
"""As `epp replay` reads them: conversations with contexts of their own, some 20 requests under way;
short ones with a system prompt for all, up to 150; ones that share most of theirs, up to 500."""
REQUESTS, QUICK_REQUESTS = 500, 60
"""Of each part."""
SEED = 17
BLOCK = 16
"""Tokens of a block of token ids."""
_PREFILL_TOKENS_PER_SECOND = 8000.0
_SECONDS_PER_TOKEN = 0.02
_LETTERS = "etaoinshrdlucmfw "


class Step(msgspec.Struct, frozen=True):
    """A request of a conversation, as the texts of its messages.

    Before it comes, the first tokens of requests `begun` have come and requests `ended` have ended;
    they are numbers of steps, each in both, once.
    """

    messages: tuple[str, ...]
    session: str
    begun: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()

    @property
    def chat(self) -> list[dict[str, str]]:
        """The messages as OpenAI has them: the last is the user's, an odd first the system's."""
        last = len(self.messages) - 1
        roles = ["user" if (last - at) % 2 == 0 else "assistant" for at in range(last + 1)]
        if roles[0] == "assistant":
            roles[0] = "system"
        return [
            {"role": role, "content": text} for role, text in zip(roles, self.messages, strict=True)
        ]

    @property
    def tokens(self) -> list[int]:
        """The prompt as token ids."""
        return tokens_of("".join(self.messages))


def tokens_of(text: str) -> list[int]:
    """Return a text as token ids: four letters are one."""
    data = text.encode()
    return [
        int.from_bytes(data[at : at + TOKEN_BYTES], "little")
        for at in range(0, len(data), TOKEN_BYTES)
    ]


def sequence(requests: int = REQUESTS) -> list[Step]:
    """Return this many requests of each part, one part after the other."""
    steps: list[Step] = []
    for workload in PARTS:
        trace = read(workload, seed=SEED)
        steps += _part(trace.calls[:requests], len(steps), trace.name)
    return steps


def _part(calls: Sequence[Call], first: int, name: str) -> Iterator[Step]:
    """Play calls on the engine; steps are numbered from `first`."""
    coming: list[tuple[float, int]] = []
    following: dict[int, list[int]] = {}
    for number, call in enumerate(calls):
        if call.after is None:
            heappush(coming, (call.at, number))
        else:
            following.setdefault(call.after, []).append(number)
    begins: list[tuple[float, int]] = []
    ends: list[tuple[float, int]] = []
    for step in range(first, first + len(calls)):
        at, number = heappop(coming)
        call = calls[number]
        prefill = tokens_in(call.prompt) / _PREFILL_TOKENS_PER_SECOND
        end = at + prefill + tokens_in(call.response) * _SECONDS_PER_TOKEN
        for after in following.get(number, ()):
            heappush(coming, (max(calls[after].at, end + calls[after].think), after))
        yield Step(
            tuple(_messages(call, name)),
            session=f"{name}-{call.session}",
            begun=tuple(_until(begins, at)),
            ended=tuple(_until(ends, at)),
        )
        heappush(begins, (at + prefill, step))
        heappush(ends, (end, step))


def _until(times: list[tuple[float, int]], now: float) -> Iterator[int]:
    while times and times[0][0] <= now:
        yield heappop(times)[1]


def _messages(call: Call, name: str) -> Iterator[str]:
    for start, end in pairwise((0, *call.marks) if call.marks else (0, tokens_in(call.prompt))):
        yield "".join(_text(run, name) for run in cut(call.prompt, start, end))


@lru_cache(maxsize=4096)
def _text(run: Run, name: str) -> str:
    """Return four letters for each token; runs of one token begin with the same."""
    draw = random.Random(f"{name} {run.token}")
    return "".join(draw.choices(_LETTERS, k=TOKEN_BYTES * run.length))
