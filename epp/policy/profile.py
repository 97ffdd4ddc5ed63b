"""A configuration's scheduling profiles, and the plug-ins around them."""

from collections.abc import Mapping, Sequence

import msgspec

from epp.model.decision import Decision
from epp.model.events import Event
from epp.model.listeners import Listener
from epp.model.request import InferenceRequest
from epp.policy.plugins import (
    Admitter,
    CommitObserver,
    Filter,
    Picker,
    PluginParameters,
    ProfileHandler,
    RequestHeaderSource,
    RequestProcessor,
    ResponseProcessor,
    RunProfile,
    SaturationDetector,
    Scorer,
    Screener,
    UsageReporter,
    sees_roles,
)


class WeightedScorer(msgspec.Struct, frozen=True):
    """A scorer under its name in the configuration."""

    name: str
    weight: float
    scorer: Scorer


class Profile(msgspec.Struct, frozen=True):
    """The plug-ins that choose an endpoint for a request; `name` is the configuration's."""

    name: str
    filters: tuple[Filter, ...]
    scorers: tuple[WeightedScorer, ...]
    picker: Picker


class EventSubscription(msgspec.Struct, frozen=True):
    """The events that a plug-in is notified of (`Fleet.subscribe`)."""

    plugin: str
    kinds: tuple[type[Event], ...]
    listener: Listener


class SingleProfileHandler(PluginParameters, frozen=True):
    """Has the one profile decide."""

    def schedule(self, request: InferenceRequest, run: RunProfile) -> Decision:
        """Return the decision of the only profile."""
        return run("", request)

    def check_profiles(self, names: Sequence[str]) -> Sequence[str]:
        """Raise `ValueError` for several profiles."""
        if len(names) > 1:
            raise ValueError(
                f"the profiles {', '.join(names)} need a profile handler, such as"
                " `disagg-profile-handler`; `single-profile-handler` has one"
            )
        return ()


class Scheduling(msgspec.Struct, frozen=True, kw_only=True):
    """The started plug-ins of one configuration, by their kinds."""

    profiles: Mapping[str, Profile]
    """The profiles by their names, in the order of the file; the first serves an empty name."""
    handler: ProfileHandler = SingleProfileHandler()
    """Decides which profiles run for a request."""
    saturation_detector: SaturationDetector | None = None
    """Decides whether the pool is full, so that requests of negative priority are refused."""
    screeners: tuple[Screener, ...] = ()
    """Drop endpoints before any profile runs."""
    admitters: tuple[Admitter, ...] = ()
    """Refuse requests before any profile runs."""
    request_header_sources: tuple[RequestHeaderSource, ...] = ()
    """Add headers to requests, once they are decided on."""
    request_processors: tuple[RequestProcessor, ...] = ()
    """Read more of a request before it is decided on."""
    commit_observers: tuple[CommitObserver, ...] = ()
    """Are notified of each decision as it takes effect."""
    response_processors: tuple[ResponseProcessor, ...] = ()
    """Add headers to responses."""
    usage_reporters: tuple[UsageReporter, ...] = ()
    """Report numbers about responses to the proxy."""
    subscriptions: tuple[EventSubscription, ...] = ()
    """Their events are those of the fleet that is scheduled over."""
    plugin_names: Mapping[int, tuple[str, str]] = {}
    """A plug-in's type and name by its `id`."""
    plugins: Mapping[str, tuple[str, object]] = {}
    """The type of each plug-in of the file, and the plug-in, by name."""

    @property
    def profile(self) -> Profile:
        """The first profile."""
        return next(iter(self.profiles.values()))

    @property
    def whole(self) -> bool:
        """Whether endpoints get whole requests: one profile decides, and no filter sees roles."""
        filters = [each for profile in self.profiles.values() for each in profile.filters]
        seen = any(map(sees_roles, filters))
        return isinstance(self.handler, SingleProfileHandler) and not seen

    @property
    def plain(self) -> bool:
        """Whether a decision is one run of the one profile."""
        around = self.screeners or self.admitters or self.request_header_sources
        return isinstance(self.handler, SingleProfileHandler) and not around

    def name_of(self, plugin: object) -> str:
        """Return the name of a plug-in in the file; its class if it is not in one."""
        return self.plugin_names.get(id(plugin), ("", type(plugin).__name__))[1]
