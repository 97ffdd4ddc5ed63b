"""Starts plug-ins without a configuration around them."""

from epp.policy.attribute_sources import UNKNOWN_TO_FLEET
from epp.policy.plugins import Startable


class Context:
    """A `PluginContext` with plug-ins by name; `below` draws what it is given, then 0.

    Listeners are subscribed to the fleet if there is one.
    """

    first_of_its_type = True

    def __init__(self, drawn=(), fleet=None, **named):
        self.drawn = list(drawn)
        self.fleet = fleet
        self.named = named
        self.listeners = []

    def below(self, most):
        """Draw a share of `most`."""
        return int(self.drawn.pop(0) * most) if self.drawn else 0

    def first_of(self, kind):
        return kind

    def plugin(self, name, kind, default=None):
        default = Told({}) if kind in UNKNOWN_TO_FLEET else default
        found = self.named.get(name.replace("-", "_"), default)
        assert isinstance(found, kind)
        return found

    def subscribe(self, kinds, listener):
        self.listeners.append(listener)
        if self.fleet is not None:
            self.fleet.subscribe(kinds, listener)


def started(struct, drawn=(), **named):
    """Return a plug-in as a configuration would start it."""
    return struct.start(Context(drawn, **named)) if isinstance(struct, Startable) else struct


class Told:
    """A producer that knows what it was told, by the candidates' names."""

    def __init__(self, told, default=None):
        self.told, self.default = told, default

    def of(self, candidates):
        return [self.told.get(each.endpoint.name, self.default) for each in candidates]

    def prefix_matches(self, request, candidates):
        return self.of(candidates)

    def in_flight(self, request, candidates):
        return self.of(candidates)

    def latencies(self, request, candidates):
        return self.of(candidates)

    def multimodal_matches(self, request, candidates):
        return self.of(candidates)


def kept(filtered):
    """Name the endpoints that a filter kept."""
    return [each.endpoint.name for each in filtered]
