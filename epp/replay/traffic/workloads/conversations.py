"""Writes conversations as calls: each prompt is the one before, its answer, and something new.

The own tokens of a conversation are all equal: its prompts are prefixes of each other, and have no
others in common than the shared ones before. So a prompt is of few runs, however many its turns.
"""

from collections.abc import Iterable
from typing import NamedTuple

from epp.replay.traffic.bounds import Budget
from epp.replay.traffic.calls import Call, Run, Runs, tokens_in


class DrawnTurn(NamedTuple):
    """`new` tokens of prompt and an answer of `output`, `gap` seconds after the answer before."""

    gap: float
    new: int
    output: int


class Script:
    """Conversations as calls, one after another; each begins at 0 seconds."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._sessions = 0
        self._budget = Budget("the workload")

    def write(self, prefix: Runs, own: Run, turns: Iterable[DrawnTurn], longest: int) -> Run:
        """Write a conversation; return its own tokens with the last answer.

        Its first prompt is `prefix`, `own` and what is new. It ends where a prompt would be longer
        than `longest`; the first call is written in any case. Raises `ConfigError`
        for a call too many.
        """
        shared, at, after = tokens_in(prefix), 0.0, None
        marks: tuple[int, ...] = (shared,) if shared else ()
        for gap, new, output in turns:
            asked = Run(own.token, own.length + new)
            if after is not None and shared + asked.length > longest:
                break
            at += gap if after is not None else 0.0
            marks = (*marks, shared + asked.length)
            call = Call(
                at=at,
                prompt=(*prefix, asked),
                response=(Run(own.token, output),),
                session=self._sessions,
                after=after,
                think=gap if after is not None else 0.0,
                marks=marks,
            )
            self.calls.append(self._budget(call))
            after = len(self.calls) - 1
            own = Run(own.token, asked.length + output)
            marks = (*marks, shared + own.length)
        self._sessions += 1
        return own
