"""Coding agents as aiperf's generator draws them for its data set "inference-day-2026".

A session's context has layers: one that all sessions share, one of its group, and one of its own.
The context grows with each turn. A session ends when its context is full, or by chance, which is
likelier the fuller it is.
"""

import random
from collections.abc import Iterator

import msgspec

from epp.replay.traffic.calls import Call, Run, Runs, TokenNames, tokens_in
from epp.replay.traffic.workloads.conversations import DrawnTurn, Script
from epp.replay.traffic.workloads.distributions import Distribution, lognormal


class Agents(msgspec.Struct, frozen=True, kw_only=True):
    """The generator's parameters, in tokens and seconds; defaults are those of the data set."""

    shared: int = 32_000
    """The prefix that all sessions have."""
    group: int = 10_000
    """The prefix that the sessions of a group have."""
    groups: int = 100
    """The number of groups."""
    zipf: float = 0.6
    """The exponent of the groups' popularity."""
    private: Distribution = lognormal(15_000, 5000, 50_000)
    """The rest of a session's first prompt."""
    new: Distribution = lognormal(6000, 4000, 50_000)
    """What each turn adds to the prompt."""
    output: Distribution = lognormal(1000, 800, 10_000)
    """The response of each turn."""
    pause: Distribution = lognormal(5, 2)
    """The pause before a turn that a tool begins."""
    human_pause: Distribution = lognormal(30, 15)
    """The pause before a turn that a person begins."""
    human: float = 0.3
    """The share of turns that a person begins."""
    hurry: float = 0.8
    """The share by which pauses are shorter once the context is full."""
    reset: float = 0.05
    """The chance that a session ends at a turn, with an empty context."""
    growth: float = 1.5
    """What that chance is multiplied by once the context is full."""
    restarts: float = 0.3
    """The share of the first sessions that end early and go on as another one later."""
    restart_turns: tuple[int, int] = (5, 15)
    """The turns at which they end."""
    longest: int = 200_000
    """The longest context."""

    def calls(self, sessions: int, longest: int | None, seed: int) -> list[Call]:
        """Draw this many sessions, and the sessions in which some of them continue."""
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
        """Write all sessions; a continued one comes back after at least a quarter of all."""
        later: dict[int, list[_Session]] = {}
        for number in range(sessions):
            session, cut = self._started(number), self._cut(number / max(1, sessions - 1))
            own = self._write(session, cut)
            if own is not None:
                place = self._draw.randint(max(number + 1, sessions // 4), sessions)
                later.setdefault(place, []).append(_Session(session.prefix, own, goes_on=True))
            for each in later.pop(number, ()):
                self._write(each, None)
        for each in later.get(sessions, ()):
            self._write(each, None)
        return self._script.calls

    def _started(self, number: int) -> _Session:
        (group,) = self._draw.choices(range(self._of.groups), self._weights)
        layers = ((("shared",), self._of.shared), (("group", group), self._of.group))
        prefix = tuple(Run(self._ids(name), length) for name, length in layers if length)
        private = self._of.private.tokens(self._draw)
        return _Session(prefix, Run(self._ids(("session", number)), private))

    def _cut(self, progress: float) -> int | None:
        """Return the turn before which a session is cut, if any."""
        chance = self._of.restarts * max(0.0, 1 - progress / 0.75)
        cut = self._draw.randrange(*self._of.restart_turns)
        return cut if self._draw.random() < chance else None

    def _write(self, session: _Session, cut: int | None) -> Run | None:
        """Write a session; return its own tokens if it has been cut."""
        written = len(self._script.calls)
        turns = self._turns(session, cut)
        own = self._script.write(session.prefix, session.own, turns, self._longest)
        return own if len(self._script.calls) - written == cut else None

    def _turns(self, session: _Session, cut: int | None) -> Iterator[DrawnTurn]:
        of, draw = self._of, self._draw
        context = session.own.length + tokens_in(session.prefix)
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
