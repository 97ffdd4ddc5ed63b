"""The kinds of plug-in, by their methods. GIE and llm-d call them extension points.

A plug-in is a frozen `msgspec.Struct` with the methods of one kind or of several; its fields are
its parameters. A plug-in that keeps state, or needs others, has `start` instead (`Startable`).
Users add theirs as such classes under the entry point group `warmpick.plugins`.

    RequestProcessor   reads the request's headers
    Screener           drops endpoints for all profiles
    Admitter           refuses requests
    ProfileHandler     runs profiles, each of Filters, Scorers and a Picker, and joins their results
    Decider            says whether a handler runs a stage
    RequestHeaderSource adds headers to the request
    CommitObserver     is notified of the decision
    SaturationDetector says how busy the pool is
    ResponseProcessor  adds headers to the response
    UsageReporter      reports numbers about the response to the proxy
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, ParamSpec, Protocol, TypeVar, runtime_checkable

import msgspec

from epp.errors import PickerFault
from epp.model.candidate import Candidate
from epp.model.decision import Decision
from epp.model.endpoint import EndpointId, EngineId, Target
from epp.model.events import EndpointRemoved, Event
from epp.model.listeners import Listener
from epp.model.request import InferenceRequest, Usage
from epp.policy.effects import Effect

T = TypeVar("T")
P = ParamSpec("P")
_STEPS = 1 << 53
"""How many evenly spaced floats there are in 0..1."""
Candidates = Sequence[Candidate]
"""The endpoints that a request may go to, as plug-ins see them."""
Headers = Sequence[tuple[str, str]]
Subscribe = Callable[[Iterable[type[Event]], Listener], None]
"""`PluginContext.subscribe`, and `Fleet.subscribe`."""


class PluginParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters as a YAML file has them: in camel case, and an unknown one is an error.

    Subclasses repeat `frozen=True` alone, which type checkers do not inherit.
    """


class Unseen(msgspec.Struct, frozen=True):
    """Decisions of other replicas that this one does not know yet.

    `requests` is their probable number, `replica` the position of this one (from 0) among all
    `replicas`, in the order of their numbers.
    """

    requests: float
    replica: int
    replicas: int


class PickContext(msgspec.Struct, frozen=True):
    """Randomness and order, for pickers that need them.

    `below(n)` returns a random number in 0..n-1; `turn` counts the decisions before this one.
    `unseen` is None without other replicas. `home` is the engine (`Endpoint.engine`) that has the
    response which the request continues, or is about; None if there is none. Filters see the
    endpoints in `without`, which have no room; they are not picked.
    """

    below: Callable[[int], int]
    turn: int
    unseen: Unseen | None = None
    home: EngineId | None = None
    without: AbstractSet[EndpointId] = frozenset()


class PluginTimer(Protocol):
    """Times the calls of plug-ins in sampled decisions."""

    def __call__(
        self, point: str, plugin: object, call: Callable[P, T], *given: P.args, **named: P.kwargs
    ) -> T:
        """Call a plug-in's method at an extension point, with its result and its errors."""


@runtime_checkable
class Filter(Protocol):
    """Drops candidates that must not be picked.

    A filter that distinguishes endpoints by their roles has a true `sees_roles`.
    """

    def filter(self, request: InferenceRequest, candidates: Candidates) -> Candidates:
        """Return those that remain, in their order; if none does the client gets status 503.

        A filter may raise another `RequestError`, such as `EndpointsFull` (429).
        """


@runtime_checkable
class Scorer(Protocol):
    """Rates candidates."""

    def score(self, request: InferenceRequest, candidates: Candidates) -> Sequence[float]:
        """Return one value in 0..1 for each candidate, in their order; more is better."""


@runtime_checkable
class Picker(Protocol):
    """Chooses among candidates.

    A picker that compares no totals has `uses_totals: ClassVar[bool] = False`. A profile that
    gives it scorers is refused, as their scores would have no effect.
    """

    def pick(
        self, candidates: Candidates, totals: Sequence[float], context: PickContext
    ) -> Sequence[int]:
        """Return positions in `candidates` in the order of preference, at least one."""


RunProfile = Callable[[str, InferenceRequest], Decision]
"""Runs a profile by its name; raises `NoEndpoints` if its filters leave no candidate."""


class UnknownProfile(ValueError):
    """A parameter of a profile handler names a profile that does not exist."""

    def __init__(self, parameter: str, profile: str) -> None:
        super().__init__(f"no profile is named `{profile}`")
        self.parameter = parameter
        self.profile = profile


@runtime_checkable
class ProfileHandler(Protocol):
    """Decides which profiles run, in which order, and makes one decision of theirs."""

    def schedule(self, request: InferenceRequest, run: RunProfile) -> Decision:
        """Return the decision; a handler may raise any `RequestError`."""

    def check_profiles(self, names: Sequence[str]) -> Sequence[str]:
        """Take the profiles' names, in the file's order, before the first request; check them.

        Returns warnings, such as of profiles that never run. Raises `UnknownProfile` if a parameter
        names one that is not among them, `ValueError` if it cannot run these profiles.
        """


@runtime_checkable
class Decider(Protocol):
    """Decides whether a handler runs another stage for a request."""

    def wants(self, request: InferenceRequest, decision: Decision | None) -> bool:
        """Return whether the stage runs; `decision` is the previous stage's, if there was one."""


@runtime_checkable
class Screener(Protocol):
    """Drops endpoints before any profile runs."""

    def screen(self, request: InferenceRequest, candidates: Candidates) -> Candidates:
        """Return those that remain, in their order; if none does the client gets status 503."""


@runtime_checkable
class Admitter(Protocol):
    """Refuses requests before any profile runs."""

    def admit(self, request: InferenceRequest, candidates: Candidates) -> None:
        """Raise a `RequestError`, such as `Overloaded`, for a request that is refused."""


@runtime_checkable
class RequestProcessor(Protocol):
    """Reads more of a request before it is decided on."""

    def process_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request, perhaps with other fields; its prompts are not to be changed."""


@runtime_checkable
class RequestHeaderSource(Protocol):
    """Adds headers to requests, once they are decided on."""

    def request_headers(
        self, request: InferenceRequest, decision: Decision, candidates: Candidates
    ) -> Headers:
        """Return headers for the model server; `candidates` are those that profiles saw."""


@runtime_checkable
class CommitObserver(Protocol):
    """Is notified of each decision as it takes effect."""

    def committed(self, request: InferenceRequest, decision: Decision, now: float) -> None:
        """Record a decision, at `now` in seconds of a clock that never goes back."""


@runtime_checkable
class ResponseProcessor(Protocol):
    """Adds headers to responses."""

    def response_headers(
        self, request: InferenceRequest, decision: Decision, served: Target | None
    ) -> Headers:
        """Return headers for the client; `served` is the target that the proxy reported."""


@runtime_checkable
class SaturationDetector(Protocol):
    """Says how busy endpoints are, for plug-ins that refuse or hold requests."""

    def saturation(self, candidates: Candidates) -> float:
        """Return 0 for idle endpoints, 1 and more for full ones; 1 for none."""


@runtime_checkable
class UsageReporter(Protocol):
    """Reports numbers about responses to the proxy."""

    def report(self, usage: Usage) -> tuple[str, str, float] | None:
        """Return a namespace of dynamic metadata, a key and a value; None to report nothing."""


@runtime_checkable
class StateDumper(Protocol):
    """A plug-in whose state can be inspected."""

    def dump_state(self) -> Mapping[str, object]:
        """Return counts and names of endpoints, bounded; nothing that a client sent."""


class PluginContext(Protocol):
    """What a plug-in gets when it is started."""

    @property
    def below(self) -> Callable[[int], int]:
        """Return a random number in 0..n-1 for n."""

    @property
    def first_of_its_type(self) -> bool:
        """Whether the plug-in that is started is the file's first of its type."""

    def first_of(self, kind: str) -> str:
        """Return the name of the file's first plug-in of a type; the type itself without one."""

    def plugin(self, name: str, kind: type[T], default: T | None = None) -> T:
        """Return another plug-in by its name, started; the default if the name is empty.

        Raises `ConfigError` if it does not exist, is of another kind, or needs this one itself.
        """

    def subscribe(self, kinds: Iterable[type[Event]], listener: Listener) -> None:
        """Call back with the fleet's events of these kinds (`Fleet.subscribe`)."""


@runtime_checkable
class Startable(Protocol):
    """The parameters of a plug-in that keeps state, or needs others."""

    def start(self, context: PluginContext) -> object:
        """Return the plug-in; called once. Raises `ConfigError`."""


def when_removed(subscribe: Subscribe, forget: Callable[[EndpointId], object]) -> None:
    """Call `forget` with each endpoint that is removed from the fleet."""

    def learn(event: Event, _now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        if isinstance(event, EndpointRemoved):
            forget(event.endpoint_id)

    subscribe([EndpointRemoved], learn)


def uniform(below: Callable[[int], int]) -> float:
    """Return a random number in 0..1, 1 excluded."""
    return below(_STEPS) / _STEPS


Plugin = Filter | Scorer | Picker
"""What a profile consists of."""


# What plug-ins may declare besides their methods, each as an attribute that may be missing.


def sees_roles(plugin: Filter) -> bool:
    """Return whether a filter distinguishes endpoints by their roles; by default it does not."""
    return getattr(plugin, "sees_roles", False)


def uses_totals(picker: Picker) -> bool:
    """Return whether a picker compares totals; true by default."""
    return getattr(picker, "uses_totals", True)


def effect_of(kind: type[Any]) -> Effect | None:
    """Return the `effect` of a plug-in type; None: it is honoured."""
    found: Effect | None = getattr(kind, "effect", None)
    return found


def misreturned(plugin: str, returned: object, wanted: str) -> PickerFault:
    """Return the error for what a plug-in returned in place of what is wanted."""
    return PickerFault(
        f"{plugin} returned {str(returned)[:100]} instead of {wanted}", reason="plugin-fault"
    )


def headers_of(plugin: str, returned: Headers) -> tuple[tuple[str, str], ...]:
    """Return a plug-in's result as headers; raise `PickerFault` if it is something else."""
    try:
        headers = tuple((name, value) for name, value in returned)
    except (TypeError, ValueError) as error:
        raise misreturned(plugin, returned, "pairs of texts") from error
    if not all(isinstance(part, str) for pair in headers for part in pair):
        raise misreturned(plugin, returned, "pairs of texts")
    return headers


def request_of(plugin: str, returned: InferenceRequest) -> InferenceRequest:
    """Return a request that a plug-in returned; raise `PickerFault` if it is something else."""
    if not isinstance(returned, InferenceRequest):
        raise misreturned(plugin, returned, "a request")
    return returned
