"""Every cluster of every Envoy configuration that is given has limits above Envoy's defaults."""

import itertools
import json
import re
from pathlib import Path

import pytest
import yaml

from epp.up.proxy import ProxySettings, proxy_config
from tests.charts import values as v
from tests.charts.helm import objects

ROOT = Path(__file__).parents[1]
MARK = "static_resources"
"""What stands in every configuration of Envoy that has clusters of its own."""
LIMITS = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
LEAST = 10_000
RENDERED = "charts/warmpick/files/envoy.yaml"
FROM_NOTHING = "epp/up/proxy.py"


def given():
    """Give the files for operators that have a configuration in them."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    others = [
        each for folder in ("charts", "manifests", "epp") for each in (ROOT / folder).rglob("*.*")
    ]
    kinds = {".md", ".py", ".yaml", ".yml", ".tpl", ".txt", ".json"}
    files = {each for each in [*pages, *others] if each.suffix in kinds and each.is_file()}
    return [str(each.relative_to(ROOT)) for each in files if MARK in each.read_text()]


def blocks(text):
    """Give the documents in a Markdown file or a YAML file."""
    fenced = re.findall(r"^```ya?ml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for each in fenced or [text]:
        yield from yaml.safe_load_all(each)


def nested(value):
    """Give the configurations in a document, those in its texts (a ConfigMap) too."""
    if isinstance(value, dict) and MARK in value:
        yield value
    elif isinstance(value, dict):
        yield from itertools.chain.from_iterable(map(nested, value.values()))
    elif isinstance(value, list):
        yield from itertools.chain.from_iterable(map(nested, value))
    elif isinstance(value, str) and MARK in value:
        yield from nested(yaml.safe_load(value))


def configurations(name):
    """Give the configurations of a file."""
    if name == RENDERED:
        return list(nested([objects("warmpick", values) for values in v.CASES.values()]))
    if name == FROM_NOTHING:
        return [json.loads(proxy_config(UP))]
    return list(nested(list(blocks((ROOT / name).read_text()))))


UP = ProxySettings(ip="10.0.0.9", port=1, picker_port=2, models_port=3, folder=Path("/x"))


@pytest.mark.parametrize("name", sorted({"docs/gateway.md", RENDERED, FROM_NOTHING, *given()}))
def test_every_cluster_has_limits_of_its_own(name):
    found = configurations(name)
    assert found, "no configuration is understood in this file"
    for config in found:
        for cluster in config[MARK]["clusters"]:
            (limits,) = cluster.get("circuit_breakers", {}).get("thresholds", [{}])
            lacking = [each for each in LIMITS if limits.get(each, 0) < LEAST]
            assert not lacking, cluster["name"]
