"""The run of a profile over candidates: filters, weighted scores, one pick.

Compiled by mypyc: every request passes here.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from math import inf
from operator import index
from typing import Final, SupportsIndex

from epp.errors import EndpointsFull, NoEndpoints, PickerFault
from epp.model.candidate import Candidate
from epp.model.decision import Decision, Score
from epp.model.endpoint import EndpointId, EngineId
from epp.model.request import InferenceRequest
from epp.policy.plugins import PickContext, PluginTimer, Unseen, misreturned
from epp.policy.profile import Profile

_MIN_ALPHA: Final = 1.0
_MAX_ALPHA: Final = 8.0
"""Bounds of alpha in `ttft_costs`."""
_DECODING: Final = 1.5
"""The weight of end-to-end latency against TTFT, each relative to its mean."""
_MAX_DECODING: Final = 0.3
"""The weight of a second of decoding against one before a first token, at most."""
_SLOT: Final = 0.1
"""The weight of a second in which others may wait for an adapter's slot."""
_TURN: Final = 4.0
"""The discount of an endpoint whose turn it is, in prefills of the request.

With half of it, eight replicas still meet at endpoints.
"""
_LONGEST_TURN: Final = 1.5
"""An endpoint misses its turn if its prefill takes longer than the best one's by this factor."""


def _class_name(plugin: object) -> str:
    return type(plugin).__name__


class Plan:
    """A profile prepared to run: the methods of its plug-ins, in order.

    Errors name filters and the picker by `name_of`.
    """

    def __init__(self, profile: Profile, name_of: Callable[[object], str] = _class_name) -> None:
        self._name: Final = profile.name
        self._name_of: Final = name_of
        self._filters: Final = [(each, each.filter) for each in profile.filters]
        self._scorers: Final = [
            (each.name, each.weight, each.scorer, each.scorer.score) for each in profile.scorers
        ]
        self._equal: tuple[float, ...] = ()
        self._picker: Final = profile.picker
        self._pick: Final = profile.picker.pick

    def choose(
        self,
        request: InferenceRequest,
        candidates: Sequence[Candidate],
        context: PickContext,
        timer: PluginTimer | None = None,
    ) -> Decision:
        """Return the decision of the profile, preferably among candidates that the request fits.

        Endpoints whose context is known to be too short are left out if another's is known to be
        long enough, unless the filters leave none. Otherwise an engine will refuse the request.

        Raises `NoEndpoints` if the filters leave no candidate. Raises `PickerFault` if a filter
        does not return a sequence, a scorer does not return a number for each candidate, or the
        picker does not return positions of candidates. Plug-ins may return numbers of other types,
        such as NumPy's, and arrays of them. `timer` times their calls.
        """
        fitting = _fitting(candidates)
        if fitting:
            try:
                return self._run(request, fitting, context, timer)
            except EndpointsFull:
                raise
            except NoEndpoints:  # the filters want an endpoint that was left out
                pass
        return self._run(request, candidates, context, timer)

    def _run(
        self,
        request: InferenceRequest,
        candidates: Sequence[Candidate],
        context: PickContext,
        timer: PluginTimer | None,
    ) -> Decision:
        considered = candidates
        if self._filters:
            candidates = self._filtered(request, candidates, timer)
        if context.home is not None:
            candidates = _at_home(candidates, context.home)
        if context.without:
            candidates = _without(candidates, context.without)
        totals, scores = self._score(request, candidates, timer)
        positions: Sequence[SupportsIndex]
        if timer is None:
            positions = self._pick(candidates, totals, context)
        else:
            positions = timer("Picker", self._picker, self._pick, candidates, totals, context)
        try:
            picked = _picked(candidates, positions)
            first = picked[0]
        except (IndexError, TypeError) as error:
            raise misreturned(
                f"picker {self._name_of(self._picker)} of profile {self._name}",
                positions,
                f"positions among {len(candidates)} endpoints",
            ) from error
        return Decision(
            endpoints=tuple([each.endpoint for each in picked]),
            profile=self._name,
            prompt_tokens=first.prompt_tokens,
            predicted_cached_tokens=first.cached_tokens,
            predicted_ttft=first.predicted_ttft,
            predicted_for=first,
            candidates=candidates,
            considered=considered,
            scores=scores,
            totals=totals,
        )

    def _filtered(
        self,
        request: InferenceRequest,
        candidates: Sequence[Candidate],
        timer: PluginTimer | None,
    ) -> Sequence[Candidate]:
        """Return the candidates that all filters leave."""
        for each, filtered in self._filters:
            if timer is None:
                candidates = filtered(request, candidates)
            else:
                candidates = timer("Filter", each, filtered, request, candidates)
            try:
                left = len(candidates)
            except TypeError as error:
                raise misreturned(
                    f"filter {self._name_of(each)}", candidates, "a sequence of candidates"
                ) from error
            if left == 0:
                problem = f"filter {self._name_of(each)} left no endpoint"
                raise NoEndpoints(problem, reason="filtered-out")
        return candidates

    def _score(
        self,
        request: InferenceRequest,
        candidates: Sequence[Candidate],
        timer: PluginTimer | None,
    ) -> tuple[Sequence[float], Sequence[Score]]:
        """Return the weighted sums, which are equal without scorers, and each scorer's values."""
        if not self._scorers:
            if len(self._equal) != len(candidates):
                self._equal = (0.0,) * len(candidates)
            return self._equal, ()
        totals = [0.0] * len(candidates)
        scores: list[Score] = []
        for name, weight, scorer, score in self._scorers:
            if timer is None:
                values = score(request, candidates)
            else:
                values = timer("Scorer", scorer, score, request, candidates)
            try:
                if len(values) != len(totals):
                    raise PickerFault(
                        f"scorer {name} returned {len(values)} scores for {len(totals)} endpoints",
                        reason="plugin-fault",
                    )
                clamped = _add_weighted(totals, weight, values)
            except (TypeError, ValueError) as error:
                raise misreturned(f"scorer {name}", values, "a number for each endpoint") from error
            scores.append(Score(name, weight, values, clamped))
        return totals, scores


def _at_home(candidates: Sequence[Candidate], home: EngineId) -> Sequence[Candidate]:
    """Return only the candidate that has the response a request needs; all if none has it."""
    return [each for each in candidates if each.endpoint.engine == home] or candidates


def _without(candidates: Sequence[Candidate], full: AbstractSet[EndpointId]) -> Sequence[Candidate]:
    """Return the candidates that have room. Raises `NoEndpoints` if there are none."""
    found = [each for each in candidates if each.endpoint.id not in full]
    if not found:
        raise NoEndpoints("the filters want endpoints that have no room")
    return found


def _picked(candidates: Sequence[Candidate], positions: Sequence[SupportsIndex]) -> list[Candidate]:
    """Return the candidates at these positions; `IndexError` and `TypeError` if there are none."""
    picked: list[Candidate] = []
    for position in positions:
        place = index(position)
        if place < 0:  # Python would count it from the end
            raise IndexError(place)
        picked.append(candidates[place])
    return picked


def _fitting(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Return those that may fit, if one is known to fit, and another not to; else nothing."""
    some = others = False
    for each in candidates:
        if each.fits is not None:
            some, others = some or each.fits, others or not each.fits
    return [each for each in candidates if each.fits is not False] if some and others else ()


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


def ttft_costs(candidates: Sequence[Candidate]) -> list[float]:
    """Return what this prompt's first token costs at each candidate, in seconds.

    `queued_prefill + prefill + alpha * class_prefill + decode + w * (generation + crowding) +
    slot / 10`, with two weights, which are the same for all candidates:

    - alpha = 2b / (1 - b), from 1 to 8, for the fleet's busy share b. Prefill that another
      endpoint's cache would save takes time from running decodes and, in a busy fleet, from later
      requests; its blocks evict others. It counts at the speed of the class, so that the saving is
      the same everywhere.
    - w = 1.5 * ttft_share of the fleet, up to 0.3: responses that take 1 % longer cost as much as
      first tokens that take 1.5 % longer.
    """
    alpha, decoding, slot = cost_weights(candidates)
    return [
        each.queued_prefill_seconds
        + each.prefill_seconds
        + alpha * each.class_prefill_seconds
        + each.decode_seconds
        + decoding * (each.generation_seconds + each.crowding_seconds)
        + slot * each.slot_seconds
        for each in candidates
    ]


def cost_weights(candidates: Sequence[Candidate]) -> tuple[float, float, float]:
    """Return the weights in `ttft_costs`: alpha, w and the weight of slots."""
    first = candidates[0]
    return _alpha(first.busy_share), _decoding(first.ttft_share), _SLOT


def _alpha(busy: float) -> float:
    """Return the weight of prefill that a cache would save, at that busy share (0..1)."""
    alpha = 2 * busy / (1 - busy) if busy < 1 else _MAX_ALPHA
    return max(_MIN_ALPHA, min(_MAX_ALPHA, alpha))


def _decoding(ttft_share: float) -> float:
    """Return the weight of a second of decoding, at that share of TTFT (0..1)."""
    return min(_MAX_DECODING, _DECODING * ttft_share)


def apart(
    costs: Sequence[float], candidates: Sequence[Candidate], unseen: Unseen, turn: int
) -> Sequence[float]:
    """Return costs that make replicas in the same state choose different, similar endpoints.

    Each replica goes round its own part of the endpoints, in the order of ids, one each `turn`. All
    parts have the same size; neighbouring replicas share an endpoint if the endpoints cannot be
    divided evenly. The endpoint whose turn it is gets a discount of four prefills of this request.
    It gets a fraction of that if the others have probably sent less than one request that this
    replica does not know. It is skipped if its prefill takes one and a half times the best one's,
    because it is slower or has less of the prompt cached.
    """
    count, replicas = len(costs), unseen.replicas
    lowest = candidates[costs.index(min(costs))]
    step = _TURN * min(unseen.requests, 1.0) * lowest.prefill_seconds
    if step <= 0.0:
        return costs
    ids = [each.endpoint.id for each in candidates]
    place = (unseen.replica * count + turn * replicas % count) // replicas
    position = ids.index(sorted(ids)[place])
    if candidates[position].prefill_seconds > _LONGEST_TURN * lowest.prefill_seconds:
        return costs
    lowered = list(costs)
    lowered[position] -= step
    return lowered


def best(costs: Sequence[float], count: int, context: PickContext) -> Sequence[int]:
    """Return the positions of the `count` lowest costs, equal ones in random order.

    A `count` below 1 counts as 1.
    """
    if count == 1:
        lowest, first, ties = inf, 0, 0
        for position, cost in enumerate(costs):
            if cost < lowest:
                lowest, first, ties = cost, position, 1
            elif cost == lowest:
                ties += 1
        if ties > 1:
            equal = [position for position, cost in enumerate(costs) if cost == lowest]
            first = equal[context.below(ties)]
        return (first,)
    left = list(range(len(costs)))
    shuffled = [left.pop(context.below(len(left))) for _ in costs]
    return sorted(shuffled, key=costs.__getitem__)[: max(1, count)]
