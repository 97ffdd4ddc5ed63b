"""Numbers that a data layer's extractors found, under the names that plug-ins use for them."""

import math

import msgspec

from epp.errors import ConfigError
from epp.model.candidate import Candidate
from epp.model.endpoint import DCGM_EXTRACTOR, attribute_key
from epp.policy.attribute_sources import NumberAttributes
from epp.policy.plugins import Candidates, PluginContext

CORE_EXTRACTOR = "core-metrics-extractor"
"""The producer of the attributes that configurations define, under whatever name it has there."""


class Attribute(msgspec.Struct, frozen=True):
    """One attribute of endpoints: `source`, if not None, knows it better than their load."""

    name: str
    key: str
    source: NumberAttributes | None = None

    def values(self, candidates: Candidates) -> list[float | None]:
        """Return the value of each candidate, in their order; None if it has no number."""
        return [self._value(each) for each in candidates]

    def _value(self, candidate: Candidate) -> float | None:
        if self.source is not None:
            value = self.source.number(candidate.endpoint, self.name)
        else:
            value = candidate.load.attributes.get(self.key)
        return value if value is not None and math.isfinite(value) else None


def find_attribute(context: PluginContext, name: str, producer: str | None) -> Attribute:
    """Return the attribute of a name and a producer. Raises `ConfigError` for an unknown producer.

    None stands for `core-metrics-extractor`, whose attributes the configuration names; an empty
    producer for any.
    """
    if producer is None:
        short, slash, last = name.rpartition("/")
        # llm-d-router 0.10 names its attribute by both: `GPUUtilization/dcgm-extractor`.
        if short and last == DCGM_EXTRACTOR:
            return find_attribute(context, short, last)
        if slash:
            raise ConfigError(
                f"attribute `{name}` has a `/`: name its producer with `producer`; empty: any"
            )
        return Attribute(name, attribute_key(name, CORE_EXTRACTOR))
    found = context.plugin(producer, object, _ANYONE)
    source = found if isinstance(found, NumberAttributes) else None
    return Attribute(name, attribute_key(name, producer), source)


_ANYONE = object()
