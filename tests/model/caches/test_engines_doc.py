"""Walks the places that `docs/engines.md` lists for an engine: all of them, and no others."""

import re
from pathlib import Path

import pytest

from epp.model.caches.choice import MODEL_OF_ENGINE, MODELS, SINGLE_TIER, CacheSpec
from epp.model.caches.contract import CacheModel
from epp.protocol.metrics.metric_names import ENGINES
from tests.model.caches.test_choice import CLASSES
from tests.model.caches.test_contract import KINDS

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "engines.md").read_text()
ADDING = TEXT.partition("## Adding an engine\n")[2]
CONTRACT = sorted(
    name for name in vars(CacheModel) if name in {"__len__", "__iter__"} or name[0] != "_"
)


def rows(title):
    """The rows of the table whose header begins with `title`, without the header."""
    table = re.search(rf"^\| {re.escape(title)}.*\n\|[-|]+\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    assert table is not None
    return [line.strip("|").split("|") for line in table[1].splitlines()]


def build(model):
    return CacheSpec(model=model, capacity=640, block=16).build()


def test_every_cache_model_has_a_row_and_no_row_is_of_none():
    assert [re.findall(r"`([^`]+)`", row[0]) for row in rows("label")] == [
        [name] for name in MODELS
    ]


def test_every_engine_has_its_label_value_in_the_table_of_metrics():
    values = [value for row in rows("engine") for value in re.findall(r"`([^`]+)`", row[0])]
    assert sorted(values) == sorted(ENGINES)


def test_engines_are_given_models_that_there_are():
    assert MODEL_OF_ENGINE.keys() <= ENGINES.keys()
    assert set(MODEL_OF_ENGINE.values()) <= MODELS.keys()


@pytest.mark.parametrize("model", MODELS)
def test_every_cache_model_has_the_whole_contract(model):
    cache = build(model)
    assert [name for name in CONTRACT if not hasattr(cache, name)] == []
    assert len(CONTRACT) > 20


@pytest.mark.parametrize("model", MODELS)
def test_every_cache_model_is_in_the_contract_suite_with_and_without_a_second_tier(model):
    assert {bool(offload) for name, _, offload in KINDS if name == model} == {False, True}
    assert model in CLASSES
    assert model in SINGLE_TIER or build(model).offload_tier is None


@pytest.mark.parametrize("model", MODELS)
def test_every_cache_model_has_tests_of_its_own_rules(model):
    words = type(build(model)).__module__.removeprefix("epp.model.caches.").split(".")
    assert (ROOT / "tests" / "model" / "caches" / f"test_{words[0]}.py").is_file()


def test_every_place_that_is_named_is_there():
    places = re.findall(r"`((?:epp|tests)/[\w/]+\.py)`", ADDING)
    assert len(set(places)) >= 8
    assert [place for place in places if not (ROOT / place).is_file()] == []
