"""Times plug-ins: of one decision in sixty-four, so that the others pay nothing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

from msgspec.structs import replace

from epp.adapters.telemetry import families
from epp.adapters.telemetry.histogram import Histogram
from epp.adapters.telemetry.series import FamilyText, expose
from epp.policy.profile import Profile, Scheduling, WeightedScorer

_Labels = tuple[str, str, str]
"""An extension point, and a plug-in's type and name."""


class PluginTimes:
    """Seconds by plug-in; `timed` returns a configuration whose plug-ins are timed here."""

    def __init__(self) -> None:
        self._times: dict[_Labels, Histogram] = {}

    def timed(self, scheduling: Scheduling) -> Scheduling:
        """Return the same plug-ins, timed; of the fleet's events nothing more is heard."""
        names = scheduling.plugin_names
        return replace(
            scheduling,
            profiles={
                name: self._timed_profile(profile, names)
                for name, profile in scheduling.profiles.items()
            },
            screeners=self._each(scheduling.screeners, "Screener", "screen", names),
            admitters=self._each(scheduling.admitters, "Admitter", "admit", names),
            subscriptions=(),
        )

    def _timed_profile(self, profile: Profile, names: Mapping[int, tuple[str, str]]) -> Profile:
        scorers = tuple(
            WeightedScorer(
                each.name, each.weight, self._timer(each.scorer, "Scorer", "score", names)
            )
            for each in profile.scorers
        )
        return Profile(
            profile.name,
            self._each(profile.filters, "Filter", "filter", names),
            scorers,
            self._timer(profile.picker, "Picker", "pick", names),
        )

    def _each(
        self, plugins: Sequence[Any], point: str, method: str, names: Mapping[int, tuple[str, str]]
    ) -> tuple[Any, ...]:
        return tuple(self._timer(each, point, method, names) for each in plugins)

    def _timer(
        self,
        plugin: Any,  # noqa: ANN401
        point: str,
        method: str,
        names: Mapping[int, tuple[str, str]],
    ) -> Any:  # noqa: ANN401 (any plug-in)
        """Return an object of the plug-in's class name whose method is timed."""
        kind = type(plugin).__name__
        labels = (point, *names.get(id(plugin), (kind, kind)))
        times = self._times.setdefault(labels, Histogram(families.SCHEDULER_BOUNDS))
        call: Callable[..., Any] = getattr(plugin, method)

        def timed(_: object, *given: Any) -> Any:  # noqa: ANN401
            began = perf_counter()
            try:
                return call(*given)
            finally:
                times.observe(perf_counter() - began)

        return type(kind, (), {method: timed})()

    def collect(self) -> Iterator[FamilyText]:
        """Yield the family, once plug-ins were timed."""
        seen = [(labels, times) for labels, times in self._times.items() if any(times.counts)]
        yield from expose(families.PLUGIN_SECONDS, seen)
