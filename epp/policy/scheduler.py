"""The scheduler: gets candidates from the fleet and a choice among them from the plug-ins."""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from epp.errors import FAULTS, EndpointsFull, NoEndpoints, NotCached, Overloaded, UnknownModel
from epp.model.candidate import Candidate
from epp.model.decision import Decision
from epp.model.endpoint import ROLE_LABEL, Endpoint, EndpointId
from epp.model.fleet import Fleet
from epp.model.listeners import OnFault, reraise
from epp.model.quote import Quote
from epp.model.request import Api, InferenceRequest
from epp.model.request_events import Aborted, Admitted
from epp.policy.choice import Plan
from epp.policy.plugins import PickContext, PluginTimer, Unseen, headers_of
from epp.policy.profile import Scheduling
from epp.values import replaced

OnQuote = Callable[[Quote], None]
OnCommit = Callable[[InferenceRequest, Quote, Decision, float], None]
"""Called with a request, its quote, the decision and the time."""
_Committed = Callable[[InferenceRequest, Decision, float], None]

_PREFER: Final = "prefer"


class Scheduler:
    """Decides by one configuration over one fleet. `below(n)` returns a random number in 0..n-1.

    A request is quoted once, decided on any number of times, and committed to one decision. The
    functions in `quoted` are called with each quote; those in `committing` with each decision,
    before the fleet applies it. Each has a name. Their errors, and errors of plug-ins that are only
    notified, are passed to `on_fault`, which raises them by default. Calls of plug-ins are timed if
    a `timer` is given. `unseen` estimates the decisions of other replicas; None without any.
    """

    def __init__(  # noqa: PLR0913 (what it decides by, and who is notified)
        self,
        fleet: Fleet,
        scheduling: Scheduling,
        below: Callable[[int], int],
        *,
        quoted: Sequence[tuple[str, OnQuote]] = (),
        committing: Sequence[tuple[str, OnCommit]] = (),
        on_fault: OnFault = reraise,
        unseen: Callable[[float], Unseen] | None = None,
    ) -> None:
        self._fleet = fleet
        self._scheduling = scheduling
        self._plain = scheduling.plain
        self._whole = scheduling.whole
        self._plans = {
            name: Plan(each, scheduling.name_of) for name, each in scheduling.profiles.items()
        }
        self._plan = next(iter(self._plans.values()))
        self._below = below
        self._quoted = tuple(quoted)
        self._committing = tuple(committing)
        self._committed: tuple[tuple[str, _Committed], ...] = tuple(
            (f"plugin/{scheduling.name_of(each)}", each.committed)
            for each in scheduling.commit_observers
        )
        self._on_fault = on_fault
        self.unseen = unseen
        self._turn = -1
        for each in scheduling.subscriptions:
            fleet.subscribe(each.kinds, each.listener, f"plugin/{each.plugin}", on_fault)

    def quote(self, request: InferenceRequest, now: float) -> Quote:
        """Hash a request's prompts and estimate their lengths; the quote does not expire.

        Raises `UnknownModel`.
        """
        model = request.target_model
        if model and self._fleet.pods.serves(model) is False:
            raise UnknownModel(f"the model `{model}` does not exist")
        quote = self._fleet.quote(request, now)
        for name, quoted in self._quoted:
            try:
                quoted(quote)
            except FAULTS as error:  # whatever the error, the request goes on
                self._on_fault(name, error)
        return quote

    def decide(  # noqa: PLR0913 (what it decides on, and what it asks)
        self,
        request: InferenceRequest,
        quote: Quote,
        now: float,
        timer: PluginTimer | None = None,
        *,
        sheds: bool = True,
        admits: bool = True,
    ) -> Decision:
        """Choose endpoints for a request by the state at `now`; nothing is booked until `commit`.

        Plug-ins see `request`, which may have lost its prompts and its body since it was quoted.
        Raises `NoEndpoints`, errors of plug-ins and, with `sheds`, what `check_saturation` raises.
        Admitters are asked only if it `admits`, that is once for each request.
        """
        fleet, whole = self._fleet, self._whole
        candidates = fleet.candidates(quote, now, whole=whole)
        if not candidates:
            raise NoEndpoints(_no_candidates(quote, fleet.endpoints), retry_after=1)
        if sheds and request.priority < 0:
            self.check_saturation(request, candidates)
        self._turn += 1
        unseen = None if self.unseen is None else self.unseen(now)
        home = None
        if request.response_id:
            home = fleet.responses.engine_of(request.response_id, now)
        context = PickContext(self._below, self._turn, unseen, home)
        try:
            return self._choose(request, candidates, context, timer, admits=admits)
        except EndpointsFull:
            raise
        except NoEndpoints:  # the filters may want an endpoint that is left out
            if not fleet.ejects:
                raise
            candidates = fleet.candidates(quote, now, whole=whole, ejected=True)
            return self._choose(request, candidates, context, timer, admits=admits)

    def decide_among(
        self,
        request: InferenceRequest,
        decision: Decision,
        candidates: Sequence[Candidate],
        now: float,
        without: AbstractSet[EndpointId] = frozenset(),
    ) -> Decision:
        """Choose again for a request, among some of the candidates of a decision on it.

        Filters see endpoints that it must do `without`. Raises what `decide` raises.
        """
        unseen = None if self.unseen is None else self.unseen(now)
        context = PickContext(self._below, self._turn, unseen, without=without)
        again = self._choose(request, candidates, context, None, admits=False)
        return replaced(again, considered=decision.considered)

    def _choose(
        self,
        request: InferenceRequest,
        candidates: Sequence[Candidate],
        context: PickContext,
        timer: PluginTimer | None,
        *,
        admits: bool,
    ) -> Decision:
        if self._plain:
            return self._plan.choose(request, candidates, context, timer)
        return self._run_profiles(request, candidates, context, timer, admits=admits)

    def check_saturation(self, request: InferenceRequest, candidates: Sequence[Candidate]) -> None:
        """Raise `Overloaded` if a request of negative priority meets a pool that is full."""
        detector = self._scheduling.saturation_detector
        saturation = 0.0 if detector is None else detector.saturation(candidates)
        if saturation >= 1:
            raise Overloaded(
                f"the pool is saturated ({saturation:.2f} of its limit), and a request of priority"
                f" {request.priority} may be dropped",
                reason="saturated",
                retry_after=1,
            )

    def _run_profiles(
        self,
        request: InferenceRequest,
        candidates: Sequence[Candidate],
        context: PickContext,
        timer: PluginTimer | None,
        *,
        admits: bool,
    ) -> Decision:
        """Screen the candidates, admit the request, and have the handler run profiles."""
        scheduling = self._scheduling
        for screener in scheduling.screeners:
            if timer is None:
                candidates = screener.screen(request, candidates)
            else:
                candidates = timer("Screener", screener, screener.screen, request, candidates)
            if not candidates:
                name = scheduling.name_of(screener)
                raise NoEndpoints(f"screener {name} left no endpoint", reason="screened-out")
        for admitter in scheduling.admitters if admits else ():
            if timer is None:
                admitter.admit(request, candidates)
            else:
                timer("Admitter", admitter, admitter.admit, request, candidates)
        remaining = candidates

        def run(name: str, asked: InferenceRequest) -> Decision:
            plan = self._plans[name] if name else self._plan
            return plan.choose(asked, remaining, context, timer)

        decision = scheduling.handler.schedule(request, run)
        sources, headers = scheduling.request_header_sources, decision.headers
        for source in sources:
            returned = source.request_headers(request, decision, candidates)
            headers += headers_of(f"request header source {scheduling.name_of(source)}", returned)
        return replaced(decision, headers=headers) if sources else decision

    def commit(
        self, request: InferenceRequest, quote: Quote, decision: Decision, now: float
    ) -> None:
        """Admit a request to the chosen endpoint; if this raises, the request is not admitted."""
        for name, committing in self._committing:
            try:
                committing(request, quote, decision, now)
            except FAULTS as error:  # as above
                self._on_fault(name, error)
        prefill, encode = decision.prefill, decision.encode
        prefill_id = None if prefill is None else prefill.id
        encode_id = None if encode is None else encode.id
        try:
            self._fleet.apply(Admitted(quote, decision.endpoint.id, prefill_id, encode_id), now)
            for name, committed in self._committed:
                try:
                    committed(request, decision, now)
                except FAULTS as error:  # as above
                    self._on_fault(name, error)
        except BaseException:
            self._fleet.apply(Aborted(quote.request_id, refused=True), now)
            raise

    def propose(
        self,
        request: InferenceRequest,
        quote: Quote,
        now: float,
        timer: PluginTimer | None = None,
        *,
        sheds: bool = True,
    ) -> Decision:
        """Decide on a request that arrives, without committing to the decision.

        Raises the errors of `decide`, and `NotCached` if the client only wants a cached prefix.
        """
        decision = self.decide(request, quote, now, timer, sheds=sheds)
        if _PREFER in request.headers:
            check_cached(request, decision)
        return decision


def check_cached(request: InferenceRequest, decision: Decision) -> None:
    """Raise `NotCached` if a request wants a cached prefix, and goes where none of it is cached.

    RFC 7240 §2: a list of preferences, each with parameters; `if-available` is llm-d's.
    """
    if request.api is Api.OTHER or _cached_tokens(decision):
        return
    preferences = request.headers.get(_PREFER, "").lower().split(",")
    if any(each.partition(";")[0].strip() == "if-available" for each in preferences):
        raise NotCached("no endpoint has the prompt's prefix in its cache")


def _cached_tokens(decision: Decision) -> int:
    """Return the cached tokens at the request's endpoint, even if prefill runs at another."""
    if decision.prefill is None:
        return decision.predicted_cached_tokens
    chosen = decision.endpoint.id
    return next(
        (each.cached_tokens for each in decision.candidates if each.endpoint.id == chosen), 0
    )


def _no_candidates(quote: Quote, endpoints: Sequence[Endpoint]) -> str:
    if not endpoints:
        return "no endpoint is ready in the pool"
    known = len(endpoints)
    if all(each.partial for each in endpoints):
        roles = ", ".join(sorted({each.labels[ROLE_LABEL] for each in endpoints}))
        return f"none of the pool's {known} endpoints serves whole requests: their role is {roles}"
    wanted = ", ".join(quote.subset or ()) or "none at all"
    return (
        f"none of the pool's {known} endpoints is in the subset that the gateway allows: {wanted}"
    )
