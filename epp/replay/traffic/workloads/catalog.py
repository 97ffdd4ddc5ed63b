"""inference-perf's workload catalog: conversations of a system prompt, a context and turns.

Parameters are those of kubernetes-sigs/inference-perf, workload-catalog/*/config.json, 2026-08.
All conversations share the system prompt; each has a context of its own.
"""

import random
from collections.abc import Iterator

import msgspec

from epp.replay.traffic.calls import Call, Run, TokenNames
from epp.replay.traffic.workloads.conversations import DrawnTurn, Script
from epp.replay.traffic.workloads.distributions import Distribution, fixed


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of conversations, in tokens and seconds.

    `context` comes before the first turn; `new` is what each turn adds, including the first. A
    conversation of one turn has no `gap`.
    """

    system: int
    context: Distribution = fixed(0)
    new: Distribution
    output: Distribution
    turns: Distribution = fixed(1)
    gap: Distribution = fixed(0)
    longest: int

    def calls(self, sessions: int, longest: int | None, seed: int) -> list[Call]:
        """Draw this many conversations, which all begin at 0 seconds."""
        draw, ids, script = random.Random(seed), TokenNames(), Script()
        system = (Run(ids("system"), self.system),) if self.system else ()
        for session in range(sessions):
            context = round(self.context.draw(draw))
            own = Run(ids(session), context)
            script.write(system, own, self._turns(draw), longest or self.longest)
        return script.calls

    def _turns(self, draw: random.Random) -> Iterator[DrawnTurn]:
        for _ in range(max(1, round(self.turns.draw(draw)))):
            yield DrawnTurn(self.gap.draw(draw), self.new.tokens(draw), self.output.tokens(draw))


CATALOG = {
    "interactive-chat": CatalogEntry(
        system=1000,
        context=Distribution("lognormal", 4000, 2500, 500, 15_000),
        new=Distribution("lognormal", 50, 40, 10, 1000),
        output=Distribution("normal", 300, 150, 10, 1000),
        turns=Distribution("lognormal", 4, 2.5, 1, 15),
        gap=Distribution("lognormal", 45, 40, 5, 300),
        longest=35_000,
    ),
    "code-generation": CatalogEntry(
        system=3000,
        context=Distribution("lognormal", 160_000, 233_600, 10_000, 990_000),
        new=Distribution("lognormal", 1500, 1200, 100, 10_000),
        output=Distribution("lognormal", 425, 825, 50, 10_000),
        turns=Distribution("lognormal", 540, 48_600, 1, 3000),
        gap=Distribution("lognormal", 15, 55, 1, 1000),
        longest=1_000_000,
    ),
    "deep-research": CatalogEntry(
        system=2000,
        context=Distribution("exponential", 45_000, 35_000, 2000, 150_000),
        new=Distribution("lognormal", 3000, 2500, 500, 15_000),
        output=Distribution("bimodal", 300, 850, 50, 4000),
        turns=Distribution("normal", 15, 8.5, 2, 50),
        gap=Distribution("normal", 25, 12, 5, 60),
        longest=400_000,
    ),
    "reasoning": CatalogEntry(
        system=250,
        new=Distribution("lognormal", 1000, 800, 100, 5000),
        output=Distribution("exponential", 8000, 6500, 500, 32_000),
        longest=40_000,
    ),
    "batch-summarization-rag": CatalogEntry(
        system=500,
        new=Distribution("bimodal", 15_000, 22_000, 1000, 80_000),
        output=Distribution("normal", 500, 300, 50, 2000),
        longest=100_000,
    ),
    "batch-synthetic-data-generation": CatalogEntry(
        system=2000,
        new=Distribution("lognormal", 500, 1200, 50, 15_000),
        output=Distribution("uniform", 4000, 2500, 500, 8000),
        longest=30_000,
    ),
    # What was observed in Exgentic's traces, v2: 49,141 tokens a call, answers of 659, 22 calls.
    # `context` and `new` are not published: they are such that calls are as long as observed.
    "agentic-trace-replay": CatalogEntry(
        system=0,
        context=Distribution("lognormal", 12_000, 12_000, 1000, 200_000),
        new=Distribution("lognormal", 1000, 3000, 10, 100_000),
        output=Distribution("lognormal", 659, 3073, 1, 146_112),
        turns=Distribution("lognormal", 21.9, 23.4, 1, 300),
        gap=Distribution("lognormal", 13, 176, 0.001, 7200),
        longest=1_000_000,
    ),
    # llm-d-router's comparison of 2026-08-17, whose context is each conversation's own and whose
    # deviations it does not state: they are taken to be about as large as the means.
    "llm-d-code": CatalogEntry(
        system=0,
        context=Distribution("lognormal", 55_000, 55_000, 3000, 100_000),
        new=Distribution("lognormal", 1500, 1200, 100, 10_000),
        output=Distribution("lognormal", 800, 800, 50, 4000),
        turns=Distribution("lognormal", 6, 4, 2, 20),
        longest=250_000,
    ),
}
