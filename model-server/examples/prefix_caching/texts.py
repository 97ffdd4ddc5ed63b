"""Long prompts and short questions about them, drawn from a seed."""

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import product

import msgspec

Message = dict[str, str]

NAMES = ("Ada", "Bruno", "Carla", "Dimitri", "Elin", "Farid", "Greta", "Hugo", "Ines", "Jonas")
SURNAMES = ("Ahlers", "Brandt", "Cortez", "Dahl", "Eriksen", "Fontana", "Gruber", "Holm", "Ito")
TOWNS = ("Aarhus", "Bergamo", "Coimbra", "Delft", "Evora", "Freiberg", "Ghent", "Husum")
TRADES = ("baker", "carpenter", "diver", "engraver", "farrier", "glazier", "joiner", "keeper")
SIGHTS = (
    "two freighters",
    "a trawler",
    "a pilot boat",
    "no ship at all",
    "a yacht",
    "three ferries",
)
SKIES = ("fog until noon", "a clear sky", "rain from the west", "low clouds", "a storm at night")


class Reader(msgspec.Struct, frozen=True):
    """What one person has before them, and asks, one question after the other."""

    system: str
    questions: tuple[str, ...]


class Demonstration(msgspec.Struct, frozen=True):
    """Two readers, each with a text of their own.

    `keeps` says whether a question follows the conversation so far, or the text alone. `answer`
    is the length of an answer, in tokens.
    """

    name: str
    title: str
    readers: tuple[Reader, ...]
    keeps: bool
    answer: int

    def prompt(self, reader: Reader, answers: Sequence[str]) -> list[Message]:
        """Return the messages of the question that comes after these answers."""
        asked = len(answers)
        messages = [{"role": "system", "content": reader.system}]
        for number in range(0 if self.keeps else asked, asked + 1):
            messages.append({"role": "user", "content": reader.questions[number]})
            if number < asked:
                messages.append({"role": "assistant", "content": answers[number]})
        return messages


def table(rows: int, questions: int) -> Demonstration:
    """A long table in the prompt, and questions about single cells of it."""
    return Demonstration(
        name="table",
        title="A long table, questions about single cells",
        readers=tuple(_register(seed, rows, questions) for seed in (1, 2)),
        keeps=False,
        answer=8,
    )


def _register(seed: int, rows: int, questions: int) -> Reader:
    chance = random.Random(seed)
    people = chance.sample([" ".join(pair) for pair in product(NAMES, SURNAMES)], rows)
    lines = [f"Register {seed} of the guild.", "| no | name | town | trade | born |"]
    for number, name in enumerate(people, start=1):
        town, trade, born = chance.choice(TOWNS), chance.choice(TRADES), chance.randint(1900, 1999)
        lines.append(f"| {number} | {name} | {town} | {trade} | {born} |")
    columns = ("town", "trade", "year of birth")
    return Reader(
        system="\n".join(lines),
        questions=tuple(
            f"What does the register give as the {columns[number % len(columns)]} of {name}?"
            for number, name in enumerate(chance.sample(people, questions))
        ),
    )


def chat(days: int, turns: int) -> Demonstration:
    """A long document in the prompt, and a conversation of several turns about it."""
    return Demonstration(
        name="chat",
        title="A long document, a conversation of several turns",
        readers=tuple(_logbook(seed, days, turns) for seed in (1, 2)),
        keeps=True,
        answer=24,
    )


def _logbook(seed: int, days: int, turns: int) -> Reader:
    chance = random.Random(seed)
    lines = [f"Logbook {seed} of the lighthouse."]
    lines += [
        f"Day {day}: {chance.choice(SKIES)}, wind {chance.randint(0, 11)}, "
        f"{chance.choice(SIGHTS)} passed; {chance.randint(2, 40)} litres of oil burnt."
        for day in range(1, days + 1)
    ]
    return Reader(
        system="\n".join(lines),
        questions=tuple(
            f"What was seen on day {chance.randint(1, days)}, and how was the weather on the next?"
            for _ in range(turns)
        ),
    )


DEMONSTRATIONS: Mapping[str, Callable[[int, int], Demonstration]] = {"table": table, "chat": chat}
"""By name, from the lines of a text and the questions of a reader."""
