"""The run of a profile over candidates: filters, weighted scores, one pick.

Compiled by mypyc: every request passes here.
"""

from collections.abc import Sequence
from operator import index
from typing import Final, SupportsIndex

from epp.errors import EndpointsFull, NoEndpoints, PickerFault
from epp.model.candidate import Candidate
from epp.model.candidates import Candidates, CostTerms
from epp.model.decision import Decision, Score
from epp.model.endpoint import CurrentLoad
from epp.model.request import InferenceRequest
from epp.policy.plugins import PickContext, PluginTimer
from epp.policy.profile import Profile

_MIN_ALPHA: Final = 1.0
_MAX_ALPHA: Final = 8.0
"""Bounds of alpha in `ttft_costs`."""
_DECODING: Final = 1.5
"""The weight of end-to-end latency against TTFT, each as a part of its mean."""
_MOST_DECODING: Final = 0.3
"""The weight of a second of decoding against one before a first token, at most."""
_SLOT: Final = 0.1
"""The weight of a second in which others may wait for an adapter's slot."""
_SOME_FIT: Final = frozenset((True, False))


def choose(
    profile: Profile,
    request: InferenceRequest,
    candidates: Sequence[Candidate],
    context: PickContext,
    timer: PluginTimer | None = None,
) -> Decision:
    """Return the decision of a profile, among the candidates at which the request fits.

    Endpoints whose contexts are known to be too short for it are left out where the filters leave
    one with room for it; where they do not, an engine says that it does not fit.

    Raises `NoEndpoints` if the filters leave no candidate, `PickerFault` if a scorer
    returns more or fewer scores than there are candidates. Plug-ins may return numbers of other
    types, such as NumPy's, and arrays of them. The calls of plug-ins are timed by `timer`.
    """
    fitting = _fitting(candidates)
    if fitting:
        try:
            return _choose(profile, request, fitting, context, timer)
        except EndpointsFull:
            raise
        except NoEndpoints:  # the filters want one of the others
            pass
    return _choose(profile, request, candidates, context, timer)


def _fitting(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Return those at which a request may fit where it fits some and not others; else nothing."""
    if type(candidates) is Candidates and not candidates.context:
        return ()
    found = {each.fits for each in candidates}
    if found.issuperset(_SOME_FIT):
        return [each for each in candidates if each.fits is not False]
    return ()


def _choose(
    profile: Profile,
    request: InferenceRequest,
    candidates: Sequence[Candidate],
    context: PickContext,
    timer: PluginTimer | None,
) -> Decision:
    considered = candidates
    for each in profile.filters:
        if timer is None:
            candidates = each.filter(request, candidates)
        else:
            candidates = timer("Filter", each, each.filter, request, candidates)
        if not candidates:
            name = type(each).__name__
            raise NoEndpoints(f"filter {name} left no endpoint", reason="filtered-out")
    totals = [0.0] * len(candidates)
    scores: list[Score] = []
    for weighted in profile.scorers:
        scorer = weighted.scorer
        if timer is None:
            values = scorer.score(request, candidates)
        else:
            values = timer("Scorer", scorer, scorer.score, request, candidates)
        if len(values) != len(totals):
            raise PickerFault(
                f"scorer {weighted.name} returned {len(values)} scores for {len(totals)} endpoints",
                reason="plugin-fault",
            )
        clamped = _add_weighted(totals, weighted.weight, values)
        scores.append(Score(weighted.name, weighted.weight, values, clamped))
    picker = profile.picker
    positions: Sequence[SupportsIndex]
    if timer is None:
        positions = picker.pick(candidates, totals, context)
    else:
        positions = timer("Picker", picker, picker.pick, candidates, totals, context)
    picked = [candidates[index(position)] for position in positions]
    first = picked[0]
    return Decision(
        endpoints=tuple([each.endpoint for each in picked]),
        profile=profile.name,
        prompt_tokens=first.prompt_tokens,
        predicted_cached_tokens=first.cached_tokens,
        predicted_ttft=first.predicted_ttft,
        predicted_for=first,
        candidates=candidates,
        considered=considered,
        scores=scores,
        totals=totals,
    )


def _add_weighted(totals: list[float], weight: float, values: Sequence[float]) -> bool:
    """Add `weight` times each value, clamped to 0..1, to the totals; NaN counts as 0.

    Returns whether a value had to be clamped.
    """
    out_of_range = False
    for position, value in enumerate(values):
        if 0.0 <= value <= 1.0:
            totals[position] += weight * value
        else:  # NaN too, which compares false to everything
            out_of_range = True
            if value > 1.0:
                totals[position] += weight
    return out_of_range


def current_loads(candidates: Sequence[Candidate]) -> Sequence[CurrentLoad | Candidate]:
    """Return what has each candidate's `waiting`, `running`, `kv_usage` and adapters."""
    if type(candidates) is Candidates:  # exact: mypyc narrows no `Sequence` to a subclass
        return candidates.loads()
    return candidates


def cached_tokens(candidates: Sequence[Candidate]) -> list[int]:
    """Return how many of the prompt's tokens each candidate's cache is predicted to serve."""
    if type(candidates) is Candidates:
        return candidates.cached_tokens()
    return [each.cached_tokens for each in candidates]


def ttft_costs(candidates: Sequence[Candidate]) -> list[float]:
    """Return what this prompt's first token costs at each candidate, in seconds.

    `queued_prefill + prefill + alpha * class_prefill + decode + w * (generation + crowding) +
    slot / 10`, with alpha = 2b / (1 - b), from 1 to 8, for the busy share b: in a busy fleet,
    prefill that another endpoint's cache would save takes time from requests to come; in any fleet
    from running decodes, and its blocks evict others. It is that of the class's own speed: what is
    saved is the same everywhere. w = 1.5 * ttft_share, up to 0.3: a percent more of what responses
    take costs as much as one and a half percent more of what first tokens take. Both shares are
    the fleet's and so the same for all candidates.
    """
    alpha, decoding = _weights(candidates)
    terms = cost_terms_of(candidates)
    queued, class_prefill, decode = terms.queued_prefill, terms.class_prefill, terms.decode
    generation, crowding, slot = terms.generation, terms.crowding, terms.slot
    return [
        queued[position]
        + prefill
        + alpha * class_prefill[position]
        + decode[position]
        + decoding * (generation[position] + crowding[position])
        + _SLOT * slot[position]
        for position, prefill in enumerate(terms.prefill)
    ]


def cost_terms_of(candidates: Sequence[Candidate]) -> CostTerms:
    """Return the columns of what each candidate costs."""
    if type(candidates) is Candidates:
        return candidates.cost_terms()
    return CostTerms(
        [each.queued_prefill_seconds for each in candidates],
        [each.prefill_seconds for each in candidates],
        [each.class_prefill_seconds for each in candidates],
        [each.decode_seconds for each in candidates],
        [each.generation_seconds for each in candidates],
        [each.crowding_seconds for each in candidates],
        [each.slot_seconds for each in candidates],
    )


def cost_weights(candidates: Sequence[Candidate]) -> tuple[float, float, float]:
    """Return the weights of the terms of `ttft_costs`: alpha, w and that of slots."""
    return (*_weights(candidates), _SLOT)


def _weights(candidates: Sequence[Candidate]) -> tuple[float, float]:
    """Return alpha and w of `ttft_costs`, by the state of the fleet."""
    if type(candidates) is Candidates:
        return _alpha(candidates.busy_share), _decoding(candidates.ttft_share)
    return _alpha(candidates[0].busy_share), _decoding(candidates[0].ttft_share)


def _alpha(busy: float) -> float:
    """Return the weight of prefill that a cache would save, at that busy share (0..1)."""
    alpha = 2 * busy / (1 - busy) if busy < 1 else _MAX_ALPHA
    return max(_MIN_ALPHA, min(_MAX_ALPHA, alpha))


def _decoding(ttft_share: float) -> float:
    """Return the weight of a second of decoding, at that share of TTFT (0..1)."""
    return min(_MOST_DECODING, _DECODING * ttft_share)


def best(costs: Sequence[float], count: int, context: PickContext) -> Sequence[int]:
    """Return the positions of the `count` lowest costs, equal ones in random order.

    A `count` below 1 counts as 1.
    """
    if count == 1:
        lowest = min(costs)
        ties = [position for position, cost in enumerate(costs) if cost == lowest]
        return (ties[context.below(len(ties))] if len(ties) > 1 else ties[0],)
    left = list(range(len(costs)))
    shuffled = [left.pop(context.below(len(left))) for _ in costs]
    return sorted(shuffled, key=costs.__getitem__)[: max(1, count)]
