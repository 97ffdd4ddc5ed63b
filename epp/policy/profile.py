"""A scheduling profile: filters in order, weighted scorers, one picker."""

import msgspec

from epp.policy.plugins import Filter, Picker, Scorer


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
