"""The decisions of a recording, explained after the fact.

A fleet applies what was recorded: the endpoints, where each request went, its first token, and how
it ended. A configuration decides on each request once more over this fleet. The request is then
booked where it went at the time, whatever the new decision is.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple

from msgspec.structs import replace

from epp.app.observing.decision_ring import MAX_CANDIDATES
from epp.app.observing.views import DecisionView, EndingView, RecordedPick
from epp.config.file import Settings
from epp.errors import PickerFault, RequestError
from epp.model.decision import Decision
from epp.model.endpoint import ROLE_LABEL, Endpoint, EndpointId, Load
from epp.model.events import EndpointRemoved, EndpointUpserted, Event, Listed, LoadReported
from epp.model.fleet import Fleet
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.quote import Quote
from epp.model.request import DEFAULT_FAIRNESS_ID, Api, InferenceRequest, Prompt, RequestId, Usage
from epp.model.request_events import Aborted, Admitted, Finished, FirstToken, Unobserved
from epp.policy.explanations.explanation import Explanation, explain
from epp.policy.explanations.ranking import measures
from epp.policy.scheduler import Scheduler
from epp.protocol.extproc.record import REDIRECTION, Outcome
from epp.protocol.recording import RecordedEndpoint, RecordedPool, RecordedRequest
from epp.replay.plugin_faults import describe, has_user_plugins
from epp.replay.traffic.bounds import limit_of
from epp.replay.traffic.calls import Call, packed
from epp.replay.traffic.recorded.parts import Recording
from epp.values import replaced

_SECRET: Final = b"explain"
_SCRAPE_SECONDS: Final = 1.0
_MILLI: Final = 1e3
_APIS: Final = frozenset(Api)


class _Scheduled(NamedTuple):
    """Something that happened at a time; at equal times, in the order of the other fields.

    `action` applies it and returns the view of a decision, if it is one.
    """

    at: float
    number: int
    stage: int
    action: Callable[[float], DecisionView | None]


class _Asked(NamedTuple):
    """One request, by its number in order of arrival, and its prompts as traffic."""

    number: int
    line: RecordedRequest
    came: float
    calls: Sequence[Call]

    @property
    def id(self) -> RequestId:
        """What the fleet calls it."""
        return RequestId(str(self.number))


class PastDecisions:
    """The decisions of a recording, made once more by a configuration."""

    def __init__(self, recording: Recording, settings: Settings) -> None:
        self._recording = recording
        self._fleet = Fleet(BlockHasher(_SECRET))
        self._scheduling = settings.scheduling
        self._scheduler = Scheduler(self._fleet, settings.scheduling, random.Random(0).randrange)
        self._measures = measures(settings.scheduling.profiles)
        self._known: dict[EndpointId, RecordedEndpoint] = {}
        self._reported: dict[EndpointId, float] = {}
        self._numbers: dict[EndpointId, int] = {}

    def views(self) -> Iterator[DecisionView]:
        """Yield the decision on each request and its outcome, in the order of the decisions."""
        schedule = sorted(self._schedule(), key=lambda each: each[:3])
        for each in schedule:
            view = each.action(each.at)
            if view is not None:
                yield view

    def _schedule(self) -> Iterator[_Scheduled]:
        for pool in self._recording.pools:
            yield _Scheduled(pool.at, -1, 0, partial(self._see, pool))
        for each in _requests(self._recording):
            line, came = each.line, each.came
            at = came + (line.decided or 0.0)
            yield _Scheduled(at, each.number, 0, partial(self._decide, each))
            if not line.endpoint:
                continue
            if line.stream and line.first is not None:
                begins = partial(self._fleet.apply, FirstToken(each.id))
                yield _Scheduled(max(at, came + line.first), each.number, 1, begins)
            if line.end is not None:
                ends = partial(self._fleet.apply, _ended(each.id, line))
                yield _Scheduled(max(at, came + line.end), each.number, 2, ends)

    def _see(self, pool: RecordedPool, now: float) -> None:
        """Apply the list of endpoints."""
        there = {EndpointId(each.id): each for each in pool.endpoints}
        for gone in self._known.keys() - there.keys():
            self._fleet.apply(EndpointRemoved(gone), now)
            del self._known[gone], self._reported[gone]
        for each in there.values():
            self._meet(each, now)
        self._fleet.apply(Listed(), now)

    def _meet(self, recorded: RecordedEndpoint, now: float) -> None:
        known = EndpointId(recorded.id)
        before = self._known.get(known)
        if before is None or before.role != recorded.role:
            number = self._numbers.setdefault(known, len(self._numbers) + 1)
            address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"  # it is not recorded
            namespace, _, name = recorded.id.partition("/")
            labels = {ROLE_LABEL: recorded.role} if recorded.role else {}
            self._fleet.apply(EndpointUpserted(Endpoint(namespace, name, address, 1, labels)), now)
        self._known[known] = recorded
        self._report(known, now)

    def _report(self, known: EndpointId, now: float) -> None:
        """Make an endpoint report what the books say, because its own pages are not recorded."""
        recorded, pod = self._known[known], self._fleet.pods[known]
        stats, block = pod.cache_stats(), recorded.block_tokens
        load = Load(
            running=pod.ledger.requests,
            counted=True,
            kv_usage=stats.used / max(1, stats.capacity),
            block_size=block or None,
            num_blocks=recorded.kv_tokens // block + 1 if block else None,
            at=now,
        )
        self._fleet.apply(LoadReported(known, load), now)
        self._reported[known] = now

    def _decide(self, asked: _Asked, now: float) -> DecisionView:
        """Decide on a request, and book it where it went."""
        for known, at in list(self._reported.items()):
            if now - at >= _SCRAPE_SECONDS:
                self._report(known, now)
        line, request = asked.line, _request(asked)
        quote, decision, refused = None, None, ""
        try:
            for processor in self._scheduling.request_processors:
                request = processor.process_request(request)
            quote = self._scheduler.quote(request, now)
            decision = self._scheduler.decide(request, quote, now)
        except RequestError as error:
            refused = error.reason
        except Exception as error:
            if not has_user_plugins(self._scheduling):
                raise  # it is not a plug-in's, but a fault of ours
            refused = f"{PickerFault.default_reason}: {describe(error)}"
        quote = quote or self._scheduler.quote(request, now)
        profiles = self._explained(decision)
        if line.endpoint:
            self._book(request, quote, decision, line, now)
        decided = datetime.fromtimestamp(self._recording.began + now, UTC)
        return DecisionView(
            number=asked.number,
            request=str(line.n),
            model=line.target_model or line.model,
            at=decided.isoformat(timespec="milliseconds"),
            profiles=profiles,
            ending=_ending(line),
            recorded=_pick(line),
            refused=refused,
        )

    def _book(
        self,
        request: InferenceRequest,
        quote: Quote,
        decision: Decision | None,
        line: RecordedRequest,
        now: float,
    ) -> None:
        ids = [EndpointId(each) for each in (line.endpoint, line.prefill) if each]
        for each in ids:
            if each not in self._known:  # the recorder looks every few seconds
                self._meet(RecordedEndpoint(id=each, kv_tokens=0, block_tokens=0), now)
        picked, *prefill = [self._fleet.pods[each].endpoint for each in ids]
        if decision is None:
            self._fleet.apply(Admitted(quote, *ids), now)
        else:
            went = replaced(decision, endpoints=(picked,), prefill=prefill[0] if prefill else None)
            self._scheduler.commit(request, quote, went, now)

    def _explained(self, decision: Decision | None) -> tuple[Explanation, ...]:
        """Explain a decision as a running picker does, without addresses, which are invented."""
        stages = () if decision is None else (*decision.stages, decision)
        return tuple(
            _without_targets(
                explain(each, self._measures.get(each.profile, "other"), MAX_CANDIDATES)
            )
            for each in stages
            if each.candidates
        )


def _requests(recording: Recording) -> Iterator[_Asked]:
    """Yield the requests that have prompts."""
    pairs = zip(recording.prompts, recording.calls, strict=True)
    for number, (_, group) in enumerate(groupby(pairs, key=lambda pair: id(pair[0].request))):
        asked = list(group)
        first = asked[0][0]
        yield _Asked(number, first.request, first.at, [call for _, call in asked])


def _request(asked: _Asked) -> InferenceRequest:
    line = asked.line
    return InferenceRequest(
        id=asked.id,
        api=Api(line.api) if line.api in _APIS else Api.OTHER,
        model=line.model,
        target_model=line.target_model or line.model,
        prompts=tuple(
            Prompt(packed(call.prompt), exact=True, marks=call.marks) for call in asked.calls
        ),
        stream=line.stream,
        max_tokens=limit_of(line.max_tokens),
        fairness_id=line.tenant or DEFAULT_FAIRNESS_ID,
        priority=line.priority,
    )


def _ended(request: RequestId, line: RecordedRequest) -> Event:
    """Return the event that the picker saw at a request's end (`RequestRecord.end`)."""
    if line.status is not None and line.status >= REDIRECTION:
        return Aborted(request, refused=True)
    generated = line.chunks if line.stream else 0
    if line.outcome == Outcome.COMPLETED:
        usage = None
        if line.prompt_tokens is not None:
            usage = Usage(line.prompt_tokens, line.generated_tokens or 0, line.cached_tokens)
        return Finished(request, usage, generated)
    if line.outcome == Outcome.UNOBSERVED:
        return Unobserved(request, begun=line.status is not None)
    return Aborted(request, generated)


def _ending(line: RecordedRequest) -> EndingView:
    return EndingView(
        outcome=line.outcome,
        status=line.status,
        served=line.served or None,
        ttft_ms=_milliseconds(line.first) if line.stream else None,
        duration_ms=_milliseconds(line.end),
        prompt_tokens=line.prompt_tokens,
        cached_tokens=line.cached_tokens,
        completion_tokens=line.generated_tokens,
        error=line.reason or None,
    )


def _pick(line: RecordedRequest) -> RecordedPick:
    return RecordedPick(
        endpoint=line.endpoint,
        prefill=line.prefill,
        cached_tokens=line.predicted_cached_tokens,
        ttft_ms=_milliseconds(line.predicted_ttft),
    )


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(_MILLI * seconds, 3)


def _without_targets(explanation: Explanation) -> Explanation:
    rows = tuple(replace(each, target="") for each in explanation.candidates)
    return replace(explanation, candidates=rows)
