"""Prompts of groups: a system prompt for each, and questions that users of the group ask.

It is inference-perf's `shared_prefix` data, in which most published comparisons are made.
"""

import random

import msgspec

from epp.replay.traffic.calls import Call, Run, TokenNames
from epp.replay.traffic.workloads.conversations import DrawnTurn, Script
from epp.replay.traffic.workloads.distributions import Distribution, fixed


class SharedPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """`groups` system prompts of `system` tokens, `users` in each, lengths in tokens.

    Each user has one question and always asks it. With more than one of `rounds`, a user holds a
    conversation instead, in which every turn adds a question.
    """

    groups: int
    users: int
    system: int
    question: Distribution
    output: Distribution
    rounds: int = 1

    def calls(self, sessions: int, longest: int | None, seed: int) -> list[Call]:
        """Draw the calls of this many users, from 0 seconds on; each asks again once all have."""
        draw, ids, script = random.Random(seed), TokenNames(), Script()
        users = [(group, user) for group in range(self.groups) for user in range(self.users)]
        draw.shuffle(users)
        questions = {user: self.question.tokens(draw) for user in users}
        for session in range(sessions):
            user = users[session % len(users)]
            again = session // len(users) if self.rounds > 1 else 0
            turns = [DrawnTurn(0.0, questions[user], self.output.tokens(draw))]
            turns += [
                DrawnTurn(0.0, self.question.tokens(draw), self.output.tokens(draw))
                for _ in range(self.rounds - 1)
            ]
            prefix = (Run(ids(user[0]), self.system),)
            script.write(prefix, Run(ids((user, again)), 0), turns, longest or LONGEST)
        return script.calls


LONGEST = 1 << 20


def _chat(groups: int, users: int, system: int, question: int, deviation: int) -> SharedPrefix:
    """Return a scenario of llm-d's blog of 2026-03-13: chat of four rounds, by its appendix."""
    asked = Distribution("normal", question, deviation, question / 10, 2 * question)
    answered = Distribution("normal", 1000, 300, 100, 2000)
    return SharedPrefix(
        groups=groups, users=users, system=system, question=asked, output=answered, rounds=4
    )


def _asked(groups: int, users: int, output: int) -> SharedPrefix:
    """Return prompts of llm-d's guide optimized-baseline, with answers of `output` tokens."""
    return SharedPrefix(
        groups=groups, users=users, system=6000, question=fixed(1200), output=fixed(output)
    )


SHAPES = {
    # Scenarios A-D, with 30 % of deviation.
    "llm-d-a": _chat(6, 1000, 1000, question=30, deviation=9),
    "llm-d-b": _chat(6, 1000, 1000, question=3000, deviation=900),
    "llm-d-c": _chat(150, 5, 6000, question=1200, deviation=360),
    "llm-d-d": _chat(150, 5, 1000, question=6200, deviation=1860),
    # The same blog's profile of a week of production.
    "llm-d-production": SharedPrefix(
        groups=1,
        users=1000,
        system=1000,
        question=Distribution("lognormal", 729, 13_550, 1, 131_072),
        output=Distribution("lognormal", 300, 2213, 1, 8192),
        rounds=4,
    ),
    # llm-d's blog of 2026-08-17 and its guide optimized-baseline: 3 to 60 calls a second.
    "b2b-saas": _asked(150, 5, output=1000),
    # The guide's prompts with shorter answers, for servers that are not as fast as H100s.
    "shared-prefix-a": _asked(100, 16, output=100),
    "shared-prefix-b": _asked(150, 12, output=500),
}
"""What was asked in published comparisons."""
