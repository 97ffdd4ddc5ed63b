"""Whatever a parameter is: an error with its place as the file is read, or picks that work."""

import random
from typing import Any

import pytest
from msgspec.json import encode

from epp.config.catalogue import PLUGINS
from epp.config.file import load
from epp.errors import ConfigError
from tests.config.odd_parameters import BEYOND, KINDS, WITHIN, at, paths, pick, put, text_of, whole

DRAWS = 20


def refusal(text, picked):
    """Return why a configuration is refused; empty if it loads and picks.

    `picked` has those that have picked, with every default written out: they do not pick again.
    """
    refused = None
    try:
        settings = load(text)
    except ConfigError as error:
        refused = error
    else:
        effective = encode(settings.effective)
        if effective not in picked:
            picked.add(effective)
            pick(settings)
    if refused is None:
        return ""
    assert refused.place
    assert "\n" not in str(refused)
    return refused.problem


def numbers(parameters):
    found = ((path, at(parameters, path)) for path in paths(parameters))
    return [path for path, each in found if type(each) in {int, float}]


@pytest.mark.parametrize("kind", PLUGINS)
def test_each_parameter_with_each_odd_value(kind):
    parameters = whole(kind)
    picked: set[bytes] = set()
    assert not refusal(text_of(kind, parameters), picked)
    for path in paths(parameters):
        for alike in KINDS:
            for value in alike:
                why = refusal(text_of(kind, put(parameters, path, value)), picked)
                if value is alike[0] and "is expected, not" in why:
                    break


@pytest.mark.parametrize("kind", PLUGINS)
def test_all_numbers_at_once(kind):
    """Sums and products of the largest and smallest numbers that are taken are numbers."""
    parameters, chance = whole(kind), random.Random(kind)  # noqa: S311 (chance, not secrets)
    there = numbers(parameters)
    picked: set[bytes] = set()
    for _ in range(DRAWS if there else 0):
        drawn = parameters
        for path in there:
            if chance.random() < 0.6:
                number = chance.choice(WITHIN)
                drawn = put(drawn, path, type(at(parameters, path))(number))
        refusal(text_of(kind, drawn, chance.choice(WITHIN)), picked)


@pytest.mark.parametrize("number", BEYOND)
def test_numbers_beyond_all_measure_are_refused_wherever_they_are(number):
    refused: tuple[tuple[str, Any, Any, str], ...] = (
        ("queue-scorer", {"x": [{"y": number}]}, 1, "plugins[0].parameters.x[0].y"),
        ("disagg-profile-handler", {}, number, "schedulingProfiles[0].plugins[0].weight"),
    )
    for kind, parameters, weight, place in refused:
        with pytest.raises(ConfigError, match="out of range") as raised:
            load(text_of(kind, parameters, weight))
        assert raised.value.place == place
