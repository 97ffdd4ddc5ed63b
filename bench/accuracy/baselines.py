"""What the LRUs would have predicted for the requests that the picker routed."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from bench.accuracy.lru import LLM_D_ROUTER_ENTRIES, Blocks, LlmDRouter, Lru, Predictor
from bench.accuracy.observation import Guess, Observation


class Cache(msgspec.Struct, frozen=True):
    """What one server holds: `blocks` of `block` tokens that can be used."""

    blocks: int
    block: int


def own(seen: Sequence[Observation]) -> list[Guess]:
    """Return the picker's predictions, of those requests whose truth is known."""
    return [
        Guess(each.prompt, each.predicted, each.cached) for each in seen if each.cached is not None
    ]


def baselines(cache: Cache) -> Mapping[str, Callable[[str], Predictor]]:
    """Return, by name, predictors that know nothing, for servers by their target."""
    own = defaultdict[str, Lru](lambda: Lru(cache.blocks, cache.block))
    return {
        "llm_d_router": LlmDRouter(LLM_D_ROUTER_ENTRIES).of,
        "llm_d_router_tuned": LlmDRouter(cache.blocks + 1).of,
        "lru_true_capacity": own.__getitem__,
    }


def retold(
    seen: Sequence[Observation], prompts: Sequence[Blocks], of: Callable[[str], Predictor]
) -> list[Guess]:
    """Tell a predictor the same routed requests in the same order, and ask it before each."""
    guesses = []
    for each, prompt in zip(seen, prompts, strict=True):
        predictor = of(each.endpoint)
        if each.cached is not None:
            guesses.append(Guess(each.prompt, predictor.predict(prompt), each.cached))
        predictor.sent(prompt)
    return guesses
