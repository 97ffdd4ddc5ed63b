"""Times the plug-ins of one decision in 64, so that the others pay nothing."""

from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Final, ParamSpec, TypeVar

from epp.adapters.telemetry import families
from epp.adapters.telemetry.histogram import Histogram
from epp.adapters.telemetry.series import FamilyText, expose

T = TypeVar("T")
P = ParamSpec("P")
_Labels = tuple[str, str, str]
"""An extension point, and a plug-in's type and name."""


class PluginTimes:
    """Seconds by plug-in (`PluginTimer`). `names` are a plug-in's type and name by its `id`."""

    def __init__(self, names: Mapping[int, tuple[str, str]]) -> None:
        self._names: Final = names
        self._times: dict[_Labels, Histogram] = {}

    def __call__(
        self, point: str, plugin: object, call: Callable[P, T], *given: P.args, **named: P.kwargs
    ) -> T:
        """Call a plug-in's method, return its result, and count its time even if it raises."""
        began = perf_counter()
        try:
            return call(*given, **named)
        finally:
            seconds = perf_counter() - began
            kind = type(plugin).__name__
            labels = (point, *self._names.get(id(plugin), (kind, kind)))
            if labels not in self._times:
                self._times[labels] = Histogram(families.SCHEDULER_BOUNDS)
            self._times[labels].observe(seconds)

    def collect(self) -> Iterator[FamilyText]:
        """Yield the family, once plug-ins were timed."""
        yield from expose(families.PLUGIN_SECONDS, self._times.items())
