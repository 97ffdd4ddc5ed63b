"""Every snippet of every page is read by what it is written for."""

import json
from copy import deepcopy

import pytest
import yaml
from model_server.command import checked, complete, read_file
from model_server.lora import read_adapters

from tests.charts import values as v
from tests.charts.helm import refused_or_rendered
from tests.docs.pages import blocks
from tests.envoy_config import complaint
from tests.prometheus import promtool, unknown
from tests.test_gateway_doc import COMPLETE

ELSEWHERE = {
    "kind": "tests/house/test_docs.py",
    "static_resources": "tests/test_gateway_doc.py",
    "load_balancing_policy": "tests/test_gateway_doc.py",
    "transport_socket": "tests/test_gateway_doc.py",
}
"""Keys of YAML that other tests read, and which."""


def launcher(path):
    checked(complete(read_file(path), lambda: "gpu"))
    return ""


def adapters(path):
    assert read_adapters(path, "model").present
    return ""


def rules(path):
    assert unknown(path.read_text()) == []
    return promtool("check", "rules", path)


def chart(path):
    things, refused = refused_or_rendered(
        "warmpick", v.merged(v.POOL, yaml.safe_load(path.read_text()))
    )
    assert things
    return refused


def part_of_filter(path):
    config = deepcopy(COMPLETE)
    (listener,) = config["static_resources"]["listeners"]
    (manager,) = listener["filter_chains"][0]["filters"]
    (filtering,) = [
        each["typed_config"]
        for each in manager["typed_config"]["http_filters"]
        if each["name"] == "envoy.filters.http.ext_proc"
    ]
    filtering |= yaml.safe_load(path.read_text())
    whole = path.with_name("envoy.yaml")
    whole.write_text(yaml.safe_dump(config))
    return complaint(whole)


READERS = {"model": launcher, "adapters": adapters, "groups": rules, "inferenceExtension": chart}
READERS |= {"grpc_service": part_of_filter}
"""What reads a snippet of YAML, by a key that only such have."""
YAML = [
    pytest.param(each.text, id=str(each))
    for each in blocks("yaml")
    if not ELSEWHERE.keys() & yaml.safe_load(each.text).keys()
]
JSON = [pytest.param(each.text, id=str(each)) for each in blocks("json")]
QUERIES = [
    pytest.param(query, id=str(each))
    for each in blocks("promql")
    for query in each.text.strip().split("\n\n")
]


@pytest.mark.parametrize("text", YAML)
def test_yaml_is_taken_by_its_reader(text, tmp_path):
    (reader,) = [READERS[key] for key in yaml.safe_load(text) if key in READERS]
    path = tmp_path / "snippet.yaml"
    path.write_text(text)
    assert reader(path) == ""


@pytest.mark.parametrize("text", JSON)
def test_json_is_json(text):
    assert json.loads(text)


@pytest.mark.parametrize("query", QUERIES)
def test_prometheus_takes_a_query_and_a_picker_exports_what_it_names(query, tmp_path):
    assert query.count("warmpick_") > 0
    path = tmp_path / "rules.yaml"
    rule = {"record": "a", "expr": query}
    path.write_text(yaml.safe_dump({"groups": [{"name": "a", "rules": [rule]}]}))
    assert rules(path) == ""


def test_no_snippet_is_in_a_language_that_nothing_reads():
    fences = {each.language for each in blocks()}
    assert fences == {"", "bash", "console", "json", "promql", "python", "sh", "toml", "yaml"}
