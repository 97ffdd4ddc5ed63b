"""Coding agents as aiperf's generator draws them for its data set "inference-day-2026".

A session's context is made of layers: one that all sessions share, one of its group, one of its
own. It grows with each turn, and ends where it is full, or by chance: the likelier the fuller.
"""

import random
from collections.abc import Iterator

import msgspec

from epp.replay.traffic.calls import Call, Run, Runs, TokenNames
from epp.replay.traffic.workloads.conversations import DrawnTurn, Script
from epp.replay.traffic.workloads.distributions import Distribution, lognormal


class Agents(msgspec.Struct, frozen=True, kw_only=True):
    """The generator's parameters, in tokens and seconds; defaults are those of the data set.

    Pauses get shorter as the context fills, by the share `hurry` when it is full. At each turn a
    session ends with the chance `reset`, which grows with its context to `growth` times that.
    `restarts` of the first sessions, and linearly fewer up to three quarters of them, end at a
    turn of `restart_turns` and go on as another session later.
    """

    shared: int = 32_000
    group: int = 10_000
    groups: int = 100
    zipf: float = 0.6
    private: Distribution = lognormal(15_000, 5000, 50_000)
    new: Distribution = lognormal(6000, 4000, 50_000)
    output: Distribution = lognormal(1000, 800, 10_000)
    pause: Distribution = lognormal(5, 2)
    human_pause: Distribution = lognormal(30, 15)
    human: float = 0.3
    hurry: float = 0.8
    reset: float = 0.05
    growth: float = 1.5
    restarts: float = 0.3
    restart_turns: tuple[int, int] = (5, 15)
    longest: int = 200_000

    def calls(self, sessions: int, longest: int | None, seed: int) -> list[Call]:
        """Draw this many sessions, and those as which some of them go on."""
        return _Drawing(self, longest or self.longest, seed).calls(sessions)


class _Session(msgspec.Struct, frozen=True):
    prefix: Runs
    own: Run
    goes_on: bool = False


class _Drawing:
    def __init__(self, of: Agents, longest: int, seed: int) -> None:
        self._of = of
        self._longest = longest
        self._draw = random.Random(seed)
        self._ids = TokenNames()
        self._script = Script()
        self._weights = [rank**-of.zipf for rank in range(1, of.groups + 1)]

    def calls(self, sessions: int) -> list[Call]:
        """Write all sessions; one that goes on comes after at least a quarter of all."""
        later: dict[int, list[_Session]] = {}
        for number in range(sessions):
            session, cut = self._started(number), self._cut(number / max(1, sessions - 1))
            own = self._write(session, cut)
            if cut is not None and own is not None:
                place = self._draw.randint(max(number + 1, sessions // 4), sessions)
                later.setdefault(place, []).append(_Session(session.prefix, own, goes_on=True))
            for each in later.pop(number, ()):
                self._write(each, None)
        for place in sorted(later):
            for each in later[place]:
                self._write(each, None)
        return self._script.calls

    def _started(self, number: int) -> _Session:
        (group,) = self._draw.choices(range(self._of.groups), self._weights)
        layers = ((("shared",), self._of.shared), (("group", group), self._of.group))
        prefix = tuple(Run(self._ids(name), length) for name, length in layers if length)
        private = self._of.private.tokens(self._draw)
        return _Session(prefix, Run(self._ids(("session", number)), private))

    def _cut(self, progress: float) -> int | None:
        """Return the turn before which a session is cut, if it is."""
        chance = self._of.restarts * max(0.0, 1 - progress / 0.75)
        cut = self._draw.randrange(*self._of.restart_turns)
        return cut if self._draw.random() < chance else None

    def _write(self, session: _Session, cut: int | None) -> Run | None:
        """Write a session; return its own tokens where it has been cut."""
        written = len(self._script.calls)
        turns = self._turns(session, cut)
        own = self._script.write(session.prefix, session.own, turns, self._longest)
        return own if len(self._script.calls) - written == cut else None

    def _turns(self, session: _Session, cut: int | None) -> Iterator[DrawnTurn]:
        of, draw = self._of, self._draw
        context = session.own.length + sum(run.length for run in session.prefix)
        turn = 0
        while turn != cut:
            new = of.new.tokens(draw) if turn or session.goes_on else 0
            full = (context + new) / self._longest
            if turn and (full >= 1 or draw.random() < of.reset * (1 + (of.growth - 1) * full)):
                return
            pause = of.human_pause if draw.random() < of.human else of.pause
            output = of.output.tokens(draw)
            gap = pause.draw(draw) * (1 - of.hurry * min(1.0, context / self._longest))
            yield DrawnTurn(gap, new, output)
            context += new + output
            turn += 1
