"""The workload: conversations about documents, drawn from a seed.

Each conversation opens with a dossier (instructions, then several sections of the shipped texts in
an order of its own) and asks a few questions about it. Dossiers differ in popularity, as documents
do, and two dossiers share no cacheable prefix beyond the instructions.
"""

import random
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files

import msgspec

INSTRUCTIONS = (
    "You answer questions about the dossier below for an engineer who operates the system it "
    "describes. Quote the part that your answer rests on, keep to what the dossier says, give "
    "figures with their units, and say plainly when the dossier does not hold the answer. Answer "
    "in at most two short paragraphs; prefer the concrete over the general."
)
ASKED = (
    "What does the part called “{heading}” recommend, and on which assumption does that rest?",
    "Summarise “{heading}” in three sentences for somebody on call tonight.",
    "Which of the risks named under “{heading}” would show first, and in which metric?",
    "How would you check in ten minutes that what “{heading}” says holds here?",
    "Compare “{heading}” with what you told me before: do the two agree?",
    "What is left out of “{heading}” that a newcomer would ask about?",
)
QUOTED = "I stumbled over this: “{quote}”."
FOLLOWED = "Please be specific, and name the numbers that you would look at."


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The workload of a whole pool, the same for every policy.

    `conversations` begin at random moments within `seconds`. Each has between `turns[0]` and
    `turns[1]` turns, planned `gap` seconds apart on average; turns planned after `seconds` are left
    out. `dossiers` of `sections` sections each are chosen with a popularity that falls as rank to
    the power of `-skew`. An answer has between `answer[0]` and `answer[1]` tokens.
    """

    conversations: int
    seconds: float
    dossiers: int
    sections: int
    turns: tuple[int, int] = (3, 7)
    gap: float = 3.0
    skew: float = 0.8
    answer: tuple[int, int] = (40, 90)

    @property
    def rate(self) -> float:
        """Conversations per second."""
        return self.conversations / self.seconds


class Turn(msgspec.Struct, frozen=True):
    """A question, planned `at` seconds after the start, answered in exactly `tokens` tokens."""

    at: float
    question: str
    tokens: int


class Conversation(msgspec.Struct, frozen=True):
    """The turns of one client about one dossier, which is the system message `system`."""

    number: int
    system: str
    turns: tuple[Turn, ...]


class Section(msgspec.Struct, frozen=True):
    """A part of a text under one heading."""

    heading: str
    text: str


def shipped_sections() -> tuple[Section, ...]:
    """Return the package's texts, cut at their second-level headings."""
    folder = files("epp.demo") / "texts"
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".md"))
    texts = ((folder / name).read_text(encoding="utf-8") for name in names)
    return tuple(section for text in texts for section in sections_of(text))


def sections_of(text: str) -> Iterator[Section]:
    """Yield the sections under a Markdown text's second-level headings."""
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        yield Section(heading.strip(), body.strip())


def conversations(
    sections: Sequence[Section], load: Workload, seed: int
) -> tuple[Conversation, ...]:
    """Return the conversations of a seed, ordered by first arrival."""
    chance = random.Random(seed)
    size = min(load.sections, len(sections))
    dossiers = [chance.sample(sections, size) for _ in range(load.dossiers)]
    weights = [rank**-load.skew for rank in range(1, load.dossiers + 1)]
    starts = sorted(chance.uniform(0, load.seconds) for _ in range(load.conversations))
    starts[0] = 0.0  # the run does not begin with a pause
    chosen = chance.choices(dossiers, weights, k=load.conversations)
    return tuple(
        Conversation(number, _system(dossier), tuple(_turns(dossier, load, start, chance)))
        for number, (start, dossier) in enumerate(zip(starts, chosen, strict=True))
    )


def _system(dossier: Sequence[Section]) -> str:
    parts = (f"## {section.heading}\n\n{section.text}" for section in dossier)
    return "\n\n".join((INSTRUCTIONS, *parts))


def _turns(
    dossier: Sequence[Section], load: Workload, start: float, chance: random.Random
) -> Iterator[Turn]:
    at = start
    for _ in range(chance.randint(*load.turns)):
        question = _question(chance.choice(dossier), chance)
        tokens = chance.randint(*load.answer)
        if at <= load.seconds:
            yield Turn(at, question, tokens)
        # At least half of the gap passes: a user takes time to read.
        at += load.gap / 2 + chance.expovariate(2 / load.gap)


def _question(section: Section, chance: random.Random) -> str:
    asked = chance.choice(ASKED).format(heading=section.heading)
    quote = chance.choice(re.split(r"(?<=[.!?])\s+", " ".join(section.text.split())))
    return " ".join((QUOTED.format(quote=quote), asked, FOLLOWED))
