"""One run: every call of a trace is sent, routed, computed and answered, in virtual time.

The pickers are real: each is the product's own fleet and scheduler. A picker learns what `epp
serve` would learn: scrapes, first tokens, streamed tokens, usage. It sees nothing else of engines,
and engines know nothing of pickers.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from math import isnan, nan

from msgspec.structs import replace

from epp.errors import RequestError
from epp.model.events import EndpointUpserted, Listed
from epp.model.pods.outlier_settings import OutlierSettings
from epp.model.request import Usage
from epp.model.request_events import Aborted, Failure, Finished, FirstToken, Generated, Unobserved
from epp.policy.flow.flow_control import Outcome
from epp.policy.plugins import Filter
from epp.replay.engines.contract import Job, Progress
from epp.replay.engines.lockstep import step_together
from epp.replay.plan import OraclePolicy, RunPlan
from epp.replay.results.played import Played, PodSample
from epp.replay.simulation.clock import Clock
from epp.replay.simulation.oracle import Oracle
from epp.replay.simulation.outcome import CallOutcome, CallStatus
from epp.replay.simulation.picker import SimulatedPicker
from epp.replay.simulation.pod import SimulatedPod
from epp.replay.simulation.visit import Visit, request_of
from epp.replay.traffic.calls import InfiniteCache, Run, Trace, tokens_in

_SAMPLE_SECONDS = 1.0
_MAX_SAMPLES = 1 << 16
"""Samples of a run; if there would be more, they are further apart."""
_IDLE_SECONDS = 0.5
"""The shortest time between scrapes without a decision, in seconds."""
_LULL_SECONDS = 60.0
"""Scrapes are skipped in a pause of the traffic until so long before its end."""
_REUSE_BLOCK = 64
"""Tokens of the blocks by which an infinite cache would share prompts."""
_REFUSED = "connection refused"
_DIED = "the pod died"
_FAILED = "the pod answered with an error"
_TOO_LONG = "longer than the engine's context or KV cache"
_TOO_MUCH = "more tokens are under way than a run bears"
MAX_TOKENS_UNDER_WAY = 1 << 30
"""The most prompt tokens of unanswered requests: picker and engine hold some bytes for each."""


class Simulation:
    """Plays a trace by a plan, once. Observers may schedule calls of their own on `clock`.

    A conversation continues after a refused or lost request as after a served one.
    """

    def __init__(self, trace: Trace, plan: RunPlan) -> None:
        self.outcomes: list[CallOutcome] = []
        self._samples: list[PodSample] = []
        self._sample_seconds = _SAMPLE_SECONDS
        self.clock = clock = Clock()
        self._trace, self._plan = trace, plan
        self.pods = [
            SimulatedPod(number, rank, each, clock, self._progressed)
            for number, each in enumerate(plan.pods)
            for rank in (range(each.ranks) if each.ranks > 1 else (None,))
        ]
        for number, each in enumerate(plan.pods):
            if each.ranks > 1:
                ranks = [pod.engine for pod in self.pods if pod.number == number]
                step_together(clock, ranks)
        self._places = {pod.endpoint.id: place for place, pod in enumerate(self.pods)}
        before = (self._oracle(),) if isinstance(plan.policy, OraclePolicy) else ()
        outliers = OutlierSettings(consecutive_failures=plan.eject_after)
        self._interval = plan.policy.scrape_seconds or plan.scrape_seconds
        policy = replace(plan.policy, scrape_seconds=self._interval)
        self.pickers = [
            SimulatedPicker(policy, plan.seed * plan.pickers + number, clock, outliers, before)
            for number in range(plan.pickers)
        ]
        if plan.exchange_seconds is not None:
            for picker in self.pickers:
                others = [each for each in self.pickers if each is not picker]
                picker.tell(others, plan.exchange_seconds)
        self._visits: dict[Job, Visit] = {}
        self._undecided: dict[int, Visit] = {}
        self._prefills: set[Job] = set()  # those of them that only compute a prompt
        self._left = len(trace.calls)
        self._followers: defaultdict[int, list[int]] = defaultdict(list)
        self._infinite = InfiniteCache(_REUSE_BLOCK)
        self._unsent = len(trace.calls)
        self._tokens_under_way = 0
        self._closed = self._deadline = False
        self._on: Mapping[Progress, Callable[[Visit, Job], None]] = {
            Progress.FIRST: self._began,
            Progress.SOME: self._went_on,
            Progress.LAST: self._ended,
        }

    @property
    def now(self) -> float:
        """The virtual time."""
        return self.clock.now

    def run(self) -> Played:
        """Play to the end."""
        self._prepare()
        self._plan_calls()
        self.clock.run(lambda: not self._left or self._deadline)
        for job, visit in sorted(self._visits.items(), key=lambda each: each[1].number):
            self._settle(visit, CallStatus.UNFINISHED, job)
        for visit in self._undecided.values():
            self._settle(visit, CallStatus.UNFINISHED, None)
        self.outcomes.sort(key=lambda each: (each.at, each.call))
        return Played(
            policy=self._plan.policy.name,
            seed=self._plan.seed,
            cell=self._trace.name,
            outcomes=self.outcomes,
            seconds=self.now,
            pods=len(self._plan.pods),
            endpoints=len(self.pods),
            samples=self._samples,
            fault=next((each.fault for each in self.pickers if each.fault), ""),
        )

    def _oracle(self) -> Filter:
        return Oracle(self._trace.calls, {pod.endpoint.id: pod.engine for pod in self.pods})

    def _prepare(self) -> None:
        """Schedule everything that is known in advance."""
        clock, plan = self.clock, self._plan
        for picker in self.pickers:
            for pod in self.pods:
                picker.report(EndpointUpserted(pod.endpoint))
            picker.report(Listed())
        apart = self._interval / len(self.pods)
        for place, pod in enumerate(self.pods):
            self._report(pod)  # a picker is ready once it knows its endpoints' caches
            clock.routinely_at(apart * place, partial(self._scrape, pod))
        for fault in plan.faults:
            for pod in (each for each in self.pods if each.number == fault.pod):
                clock.at(fault.at, partial(pod.apply_fault, fault))
        clock.routinely_at(0.0, self._sample)
        if plan.duration is not None:
            clock.at(plan.duration, self._close)

    def _plan_calls(self) -> None:
        for number, call in enumerate(self._trace.calls):
            if call.after is None:
                self.clock.at(call.at, partial(self._send, number))
            else:
                self._followers[call.after].append(number)

    def _scrape(self, pod: SimulatedPod) -> None:
        self._report(pod)
        pause = max(self._interval, _IDLE_SECONDS)
        if not self._visits:
            # Nothing happens in a long pause of the traffic; what does is some scrapes away.
            pause *= max(1.0, (self.clock.until_next - _LULL_SECONDS) // pause)
        self.clock.routinely_at(self.now + pause, partial(self._scrape, pod))

    def _refresh(self) -> None:
        """Scrape the pods that are due, just before a decision: other scrapes would change nothing.

        A report is at most one interval old, and on average half an interval newer than otherwise.
        """
        for pod in self.pods:
            if self.now - pod.scraped_at >= self._interval:
                self._report(pod)

    def _report(self, pod: SimulatedPod) -> None:
        event = pod.scrape()
        for picker in self.pickers:
            picker.report(event)

    def _sample(self) -> None:
        for place, pod in enumerate(self.pods):
            load = pod.engine.load
            self._samples.append(PodSample(self.now, place, load.waiting, load.running))
        if len(self._samples) > _MAX_SAMPLES:
            self._sample_seconds *= 2
            pods = len(self.pods)
            self._samples = [each for n, each in enumerate(self._samples) if not n // pods % 2]
        self.clock.routinely_at(self.now + self._sample_seconds, self._sample)

    # A call's way.

    def _send(self, number: int) -> None:
        if self._closed:
            return
        self._unsent -= 1
        if not self._unsent:
            self.clock.at(self.now + self._plan.drain_seconds, self._give_up)
        call = self._trace.calls[number]
        picker = self.pickers[number % len(self.pickers)]
        visit = Visit(number, call, self.now, picker, self._infinite.admit(call), self.now)
        if self._interval < _IDLE_SECONDS:
            self._refresh()
        self._tokens_under_way += tokens_in(call.prompt)
        if self._tokens_under_way > MAX_TOKENS_UNDER_WAY:
            self._over(visit, CallStatus.REFUSED, reason=_TOO_MUCH)
            return
        self._undecided[number] = visit
        picker.route(request_of(visit), partial(self._routed, visit))

    def _routed(self, visit: Visit, outcome: Outcome) -> None:
        """Send a call to the endpoint that was decided on."""
        call, number, picker = visit.call, visit.number, visit.picker
        del self._undecided[number]
        if isinstance(outcome, RequestError):
            self._over(visit, CallStatus.REFUSED, reason=outcome.reason)
            return
        if isinstance(outcome, BaseException):
            raise outcome
        decision = outcome
        place = self._places[decision.endpoint.id]
        visit.decision, visit.pod = decision, place
        visit.held = self.now - visit.at
        visit.left = self._plan.observation.ends_early(picker.draw)
        if decision.prefill is None:
            self._submit(visit, self.pods[place], Job(number, call.prompt, call.response))
        else:
            first = Job(number, call.prompt, (Run(call.response[0].token, 1),))
            self._prefills.add(first)
            self._submit(visit, self.pods[self._places[decision.prefill.id]], first)

    def _submit(self, visit: Visit, pod: SimulatedPod, job: Job) -> None:
        job.adapter = visit.call.adapter
        if not pod.engine.up or pod.fails:
            # Envoy answers with 503 in its place; the picker polls the pod at once.
            visit.picker.observe(Aborted(visit.request_id, refused=True, failure=Failure.GATEWAY))
            visit.picker.report(pod.scrape())
            self._over(visit, CallStatus.LOST, reason=_FAILED if pod.engine.up else _REFUSED)
            return
        try:
            pod.engine.submit(job)
        except ValueError:
            visit.picker.observe(Aborted(visit.request_id, refused=True))
            self._over(visit, CallStatus.REFUSED, reason=_TOO_LONG)
        else:
            self._visits[job] = visit

    def _progressed(self, job: Job, progress: Progress) -> None:
        visit = self._visits[job]
        if progress is Progress.LOST:
            # Before the head of a response Envoy answers with 503, after it the stream breaks off.
            failure = Failure.GATEWAY if isnan(visit.began) else None
            refused = failure is not None
            visit.picker.observe(Aborted(visit.request_id, job.generated, refused, failure))
            self._prefills.discard(job)
            del self._visits[job]
            self._over(visit, CallStatus.LOST, job, reason=_DIED)
        elif job not in self._prefills:
            self._on[progress](visit, job)
        elif progress is Progress.LAST:
            self._prefills.remove(job)
            del self._visits[job]
            self._transfer(visit, job)

    def _transfer(self, visit: Visit, prefilled: Job) -> None:
        """Send a prompt's KV cache from the pod that computed it to the one that generates."""
        call, seconds = visit.call, self._plan.transfer_seconds_per_token * prefilled.prompt_tokens
        visit.prefilled, visit.came = prefilled, self.now + seconds
        job = Job(visit.number, call.prompt, call.response, transferred=True)
        self.clock.at(self.now + seconds, partial(self._submit, visit, self.pods[visit.pod], job))

    def _began(self, visit: Visit, job: Job) -> None:
        visit.began = self.now
        picker, request_id = visit.picker, visit.request_id
        picker.observe(FirstToken(request_id))
        if visit.left and self._plan.observation.auto:
            visit.left = not picker.needs_end(request_id, self.now)
        if visit.left and job.response_tokens > 1:
            picker.observe(Unobserved(request_id, begun=True))

    def _went_on(self, visit: Visit, job: Job) -> None:
        if not visit.left:
            visit.picker.observe(Generated(visit.request_id, job.generated))

    def _ended(self, visit: Visit, job: Job) -> None:
        del self._visits[job]
        if not visit.left or job.response_tokens <= 1:
            usage = Usage(job.prompt_tokens, job.generated, max(0, job.cached))
            visit.picker.observe(Finished(visit.request_id, usage))
        self._over(visit, CallStatus.SERVED, job)

    def _over(
        self, visit: Visit, status: CallStatus, job: Job | None = None, *, reason: str = ""
    ) -> None:
        """Record the outcome of a call, and continue its conversation."""
        self._settle(visit, status, job, reason)
        self._tokens_under_way -= tokens_in(visit.call.prompt)
        self._left -= 1
        for number in self._followers.pop(visit.number, ()):
            call = self._trace.calls[number]
            when = max(call.at, self.now + call.think)
            self.clock.at(when, partial(self._send, number))

    def _settle(self, visit: Visit, status: CallStatus, job: Job | None, reason: str = "") -> None:
        decision, now = visit.decision, self.now
        prefilled = visit.prefilled or job
        cached = max(0, prefilled.cached) if prefilled else 0
        waited = 0.0 if visit.prefilled is None else visit.prefilled.scheduled_at - visit.at
        served = status is CallStatus.SERVED
        generated = job.generated if job else 0
        predicted = decision.predicted_ttft if decision else None
        apart = decision.prefill if decision else None
        self.outcomes.append(
            CallOutcome(
                call=visit.number,
                at=visit.at,
                status=status,
                endpoint=visit.pod,
                prompt=tokens_in(visit.call.prompt),
                generated=generated,
                ttft=visit.began - visit.at,
                tpot=(now - visit.began) / (generated - 1) if served and generated > 1 else nan,
                end_to_end=now - visit.at if served else nan,
                cached=cached,
                reusable=max(cached, visit.reusable),  # which is known to a block of its own
                predicted_cached=decision.predicted_cached_tokens if decision else 0,
                predicted_ttft=nan if predicted is None else visit.held + predicted,
                prefill=self._places[apart.id] if apart else None,
                queued=waited + job.scheduled_at - visit.came if job else nan,
                preempted=job.preempted if job else 0,
                reason=reason,
            )
        )

    def _close(self) -> None:
        """Send no more calls: those that were not sent are not part of the run."""
        self._closed = True
        self._left -= self._unsent
        self.clock.at(self.now + self._plan.drain_seconds, self._give_up)

    def _give_up(self) -> None:
        self._deadline = True
