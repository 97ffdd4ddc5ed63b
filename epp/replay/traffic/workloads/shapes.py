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

    Each user asks a question of its own, and always the same; in `rounds` of more than one it
    goes on with a conversation instead, whose every turn adds a question.
    """

    groups: int
    users: int
    system: int
    question: Distribution
    output: Distribution
    rounds: int = 1

    def calls(self, sessions: int, longest: int | None, seed: int) -> list[Call]:
        """Draw what so many users do, all from 0 seconds; each asks again after all have asked."""
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


def _about(tokens: int, deviation: int) -> Distribution:
    return Distribution("normal", tokens, deviation, tokens / 10, 2 * tokens)


_ROUNDS = 4
"""Of the comparison of 2026-03-13, by its appendix."""

SHAPES = {
    # llm-d's blog of 2026-03-13, scenarios A-D: 30 % of deviation, chat of four rounds.
    "llm-d-a": SharedPrefix(
        groups=6,
        users=1000,
        system=1000,
        question=_about(30, 9),
        output=_about(1000, 300),
        rounds=_ROUNDS,
    ),
    "llm-d-b": SharedPrefix(
        groups=6,
        users=1000,
        system=1000,
        question=_about(3000, 900),
        output=_about(1000, 300),
        rounds=_ROUNDS,
    ),
    "llm-d-c": SharedPrefix(
        groups=150,
        users=5,
        system=6000,
        question=_about(1200, 360),
        output=_about(1000, 300),
        rounds=_ROUNDS,
    ),
    "llm-d-d": SharedPrefix(
        groups=150,
        users=5,
        system=1000,
        question=_about(6200, 1860),
        output=_about(1000, 300),
        rounds=_ROUNDS,
    ),
    # The same blog's profile of a week of production.
    "llm-d-production": SharedPrefix(
        groups=1,
        users=1000,
        system=1000,
        question=Distribution("lognormal", 729, 13_550, 1, 131_072),
        output=Distribution("lognormal", 300, 2213, 1, 8192),
        rounds=_ROUNDS,
    ),
    # llm-d's blog of 2026-08-17 and its guide optimized-baseline: 3 to 60 calls a second.
    "b2b-saas": SharedPrefix(
        groups=150, users=5, system=6000, question=fixed(1200), output=fixed(1000)
    ),
    # The guide's prompts with shorter answers, for servers that are not as fast as H100s.
    "shared-prefix-a": SharedPrefix(
        groups=100, users=16, system=6000, question=fixed(1200), output=fixed(100)
    ),
    "shared-prefix-b": SharedPrefix(
        groups=150, users=12, system=6000, question=fixed(1200), output=fixed(500)
    ),
}
"""What was asked in published comparisons."""
