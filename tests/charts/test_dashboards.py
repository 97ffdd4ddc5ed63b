"""Grafana's dashboards: what Grafana takes, and that they read what the picker exports."""

import itertools
import json
import re

import pytest

from docs.site.reference import families
from epp.app.workers.exposition import RULES
from tests.charts import values as v
from tests.charts.helm import CHARTS, objects, only
from tests.prometheus import TARGET_LABELS, exported, selectors, unknown

FILES = sorted((CHARTS / "warmpick" / "files" / "dashboards").glob("*.json"))
BOARDS = {path.stem: json.loads(path.read_text()) for path in FILES}
PANELS = [
    pytest.param(board, panel, id=f"{name}:{panel['title']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    if panel["type"] != "row"
]
UNITS = {"none", "short", "s", "reqps", "ops", "percentunit", "bytes"}
"""Grafana's ids of units that are used here."""
COLUMNS = 24
LABEL = re.compile(r"\{\{(\w+)\}\}")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def queries(board):
    return [each["expr"] for panel in board["panels"] for each in panel.get("targets", ())]


@pytest.mark.parametrize("name", BOARDS)
def test_each_can_be_told_apart(name):
    board = BOARDS[name]
    assert board["uid"] == name
    assert board["title"].startswith("Warmpick")
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    assert all(isinstance(each, int) and each > 0 for each in ids)


@pytest.mark.parametrize("name", BOARDS)
def test_nothing_lies_upon_anything_else(name):
    taken = [
        (x, y)
        for panel in BOARDS[name]["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert {x for x, _ in taken} == set(range(COLUMNS))
    assert {y for _, y in taken} == set(range(max(y for _, y in taken) + 1))


@pytest.mark.parametrize("name", BOARDS)
def test_the_data_source_and_the_pickers_can_be_chosen(name):
    variables = BOARDS[name]["templating"]["list"]
    assert [each["name"] for each in variables] == ["datasource", "namespace", "job"]
    assert all(each.get("datasource", SOURCE) == SOURCE for each in variables)
    asked = [each["query"]["query"] for each in variables if each["type"] == "query"]
    assert [query for query in asked if unknown(query)] == []
    chosen = {"namespace", "job"}
    for query in queries(BOARDS[name]):
        assert all(chosen <= labels for _, labels in selectors(query)), query


@pytest.mark.parametrize(("board", "panel"), PANELS)
def test_each_panel_is_explained_and_has_a_unit(board, panel):
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["datasource"] == SOURCE
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    names = [each["refId"] for each in panel["targets"]]
    assert names == list("ABCDEFGH"[: len(names)])
    titles = [each["title"] for each in board["panels"]]
    assert titles.count(panel["title"]) == 1


@pytest.mark.parametrize(("board", "panel"), PANELS)
def test_each_panel_reads_what_the_picker_exports(board, panel):
    assert board["schemaVersion"] >= 36
    for query in (each["expr"] for each in panel["targets"]):
        assert selectors(query)
        assert unknown(query) == []


@pytest.mark.parametrize(("board", "panel"), PANELS)
def test_a_legend_names_labels_that_the_query_keeps(board, panel):
    assert panel in board["panels"]
    for target in panel["targets"]:
        kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"]))))
        assert set(LABEL.findall(target["legendFormat"])) <= kept
        (grouped,) = itertools.islice(
            (exported()[name] | TARGET_LABELS for name, _ in selectors(target["expr"])), 1
        )
        assert kept <= grouped


KINDS = {family.name: family.kind for family in families()}
SUMMED = re.compile(r"\bsum *(?:by \([^)]*\))? *\((\w+)\{")


@pytest.mark.parametrize(("board", "panel"), PANELS)
def test_what_all_replicas_say_of_one_pool_is_not_added_up(board, panel):
    assert panel in board["panels"]
    summed = [name for each in panel["targets"] for name in SUMMED.findall(each["expr"])]
    # As of workers: each has some of the requests, and all believe the same of endpoints.
    alike = [name for name in summed if RULES.get(name, max)(1, 1) == 1]
    assert [name for name in alike if KINDS[name] == "gauge"] == []


def test_grafanas_sidecar_finds_them():
    made = only(
        objects("warmpick", v.merged(v.POOL, v.DASHBOARDS)), "ConfigMap", "rel-epp-dashboards"
    )
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {path.name: path.read_text().rstrip("\n") for path in FILES} == made["data"]
    assert len(json.dumps(made)) < 1 << 19


def test_a_folder_and_a_label_of_ones_own():
    ones_own = v.epp(
        monitoring={
            "dashboards": {"labels": {"dash": "yes"}, "annotations": {"grafana_folder": "LLM"}}
        }
    )
    things = objects("warmpick", v.merged(v.POOL, v.DASHBOARDS, ones_own))
    metadata = only(things, "ConfigMap", "rel-epp-dashboards")["metadata"]
    assert metadata["labels"]["dash"] == "yes"
    assert metadata["annotations"] == {"grafana_folder": "LLM"}


def test_without_being_asked_for_there_are_none():
    names = [thing["metadata"]["name"] for thing in objects("warmpick", v.POOL)]
    assert "rel-epp-dashboards" not in names
