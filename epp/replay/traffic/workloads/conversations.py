"""Writes conversations as calls: each prompt is the one before, its answer, and something new.

A conversation's own tokens are all equal: its prompts are prefixes of each other, and share with
other conversations only the tokens before them. So a prompt has few runs, however many turns it
has.
"""

from collections.abc import Iterable
from typing import NamedTuple

from epp.replay.traffic.bounds import Budget
from epp.replay.traffic.calls import Call, Run, Runs, tokens_in


class DrawnTurn(NamedTuple):
    """`new` prompt tokens, and an answer of `output`, `gap` seconds after the previous answer."""

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

        Its first prompt is `prefix`, `own` and what is new. It ends before a prompt that would be
        longer than `longest`; the first call is always written. Raises `ConfigError` for too many
        calls.
        """
        shared, at, after = tokens_in(prefix), 0.0, None
        marks: tuple[int, ...] = (shared,) if shared else ()
        for gap, new, output in turns:
            asked = Run(own.token, own.length + new)
            if after is not None and shared + asked.length > longest:
                break
            think = 0.0 if after is None else gap
            at += think
            marks = (*marks, shared + asked.length)
            call = Call(
                at=at,
                prompt=(*prefix, asked),
                response=(Run(own.token, output),),
                session=self._sessions,
                after=after,
                think=think,
                marks=marks,
            )
            self.calls.append(self._budget(call))
            after = len(self.calls) - 1
            own = Run(own.token, asked.length + output)
            marks = (*marks, shared + own.length)
        self._sessions += 1
        return own
