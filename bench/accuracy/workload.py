"""Conversations that overfill a small cache: what is asked, and in which order.

A pure function of its seed. The groups differ in what they are written in, so that bytes a token
differ by a factor of four from one to the next; a group's conversations share a system prompt.
"""

import random
from collections.abc import Callable, Iterator
from enum import Enum

import msgspec

SUBJECTS = (
    "keeper",
    "harbour",
    "request",
    "gateway",
    "memory",
    "river",
    "schedule",
    "window",
    "machine",
    "letter",
)
VERBS = (
    "counts",
    "holds",
    "writes",
    "moves",
    "evicts",
    "repeats",
    "measures",
    "forgets",
    "keeps",
    "answers",
)
THINGS = (
    "boats",
    "blocks",
    "tokens",
    "pages",
    "stones",
    "numbers",
    "prefixes",
    "lamps",
    "queues",
    "hours",
)
HAN = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳云腾致雨露结为霜"


class Reply(Enum):
    """How a client takes an answer."""

    WHOLE = "whole"
    STREAMED = "streamed"
    ABORTED = "aborted"  # streamed, and the client goes away in the middle


class Turn(msgspec.Struct, frozen=True):
    """A question. `tokens` is the longest answer; an aborted one ends after `chunks` chunks."""

    question: str
    tokens: int
    reply: Reply
    chunks: int
    think: float


class Session(msgspec.Struct, frozen=True):
    """A conversation. `noise` answers are arbitrary tokens, which read back as other tokens."""

    number: int
    system: str
    turns: tuple[Turn, ...]
    noise: bool


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """How much is asked. Sizes are in words of some four bytes, ranges are inclusive.

    `active` conversations take turns, `concurrency` of them at a time; a conversation that is
    over is followed by another one until `requests` turns were taken.
    """

    requests: int
    active: int = 32
    concurrency: int = 4
    system: tuple[int, int] = (80, 320)
    question: tuple[int, int] = (10, 200)
    turns: tuple[int, int] = (3, 9)
    tokens: tuple[int, int] = (2, 99)
    think: float = 0.02
    streamed: float = 0.6
    aborted: float = 0.08
    noise: float = 0.25


class Workload:
    """The conversations of one seed, made as they are needed: equal for equal seeds."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape = shape
        self.seed = seed
        draw = random.Random(seed)
        writers = (_prose, _code, _records, _han)
        self._groups = [(write, write(draw, draw.randint(*shape.system))) for write in writers]

    def sessions(self) -> Iterator[Session]:
        """Make conversations without end."""
        number = 0
        while True:
            yield self._session(number)
            number += 1

    def _session(self, number: int) -> Session:
        shape, draw = self.shape, random.Random(f"{self.seed}/{number}")
        write, system = draw.choice(self._groups)
        turns = tuple(
            self._turn(draw, write, f"{number}.{turn}")
            for turn in range(draw.randint(*shape.turns))
        )
        return Session(number, system, turns, noise=draw.random() < shape.noise)

    def _turn(
        self, draw: random.Random, write: Callable[[random.Random, int], str], name: str
    ) -> Turn:
        shape = self.shape
        tokens, chance = draw.randint(*shape.tokens), draw.random()
        reply = Reply.WHOLE
        if chance < shape.aborted:
            reply = Reply.ABORTED
        elif chance < shape.aborted + shape.streamed:
            reply = Reply.STREAMED
        return Turn(
            f"{name} {write(draw, draw.randint(*shape.question))}",
            tokens,
            reply,
            chunks=draw.randint(1, max(1, tokens // 2)),
            think=draw.uniform(0, shape.think),
        )


def _prose(draw: random.Random, words: int) -> str:
    sentences = []
    for _ in range(max(1, words // 7)):
        subject, thing = draw.choice(SUBJECTS), draw.choice(THINGS)
        sentences.append(f"The {subject} {draw.choice(VERBS)} the {thing} of the {subject}.")
    return " ".join(sentences)


def _code(draw: random.Random, words: int) -> str:
    lines = []
    for _ in range(max(1, words // 10)):
        name, argument = draw.choice(THINGS), draw.choice(SUBJECTS)
        lines.append(f"def {name}(self, {argument}):\n    return self.{name}[{argument}]\n")
    return "\n".join(lines)


def _records(draw: random.Random, words: int) -> str:
    rows = (
        f'{{"id": {draw.randrange(10**9)}, "at": {draw.random():.6f}}}'
        for _ in range(max(1, words // 9))
    )
    return "\n".join(rows)


def _han(draw: random.Random, words: int) -> str:
    return "".join(draw.choices(HAN, k=max(4, words)))
