"""Of every type and parameter it is said what becomes of it, and what is said is true."""

import ast
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec
import pytest

import epp
from epp.config.catalogue import PLUGINS
from epp.config.plugins import Plugins
from epp.config.report import HONOURED, report
from epp.config.schema import EndpointPickerConfig, PluginSpec
from epp.policy.effects import effects
from epp.policy.plugins import effect_of

WANTED: dict[str, dict[str, Any]] = {
    "header-label-affinity-scorer": {"headerName": "h", "labelKey": "l"},
    "endpoint-attribute-scorer": {
        "attributeKey": "a",
        "algorithm": {"type": "linear_lower_is_better"},
    },
    "endpoint-attribute-weight-scorer": {"attributeKey": "a", "weights": {"x": 1}},
    "multicluster-topology-scorer": {"weights": {"x": 1}},
    "session-manager": {"deploymentID": "d", "hmacKeyFile": "/k"},
    "endpoint-attribute-filter": {
        "attribute": "a",
        "algorithm": {"type": "threshold", "threshold": {"operator": "LessThan", "value": 1}},
    },
    "by-label": {"label": "l", "validValues": ["x"]},
    "utilization-filter": {"conditions": [{"metric": "running-requests", "maxValue": 1}]},
    "max-saturation-detector": {"detectors": ["utilization-detector"]},
    "disaggregatedset-rollout-screener": {
        "scope": {"labelSelector": "a=b"},
        "headerSelectors": [],
        "revisionGating": {"mode": "sum", "requireRoles": {"values": ["decode"]}},
    },
    "session-id-producer": {"headerName": "h"},
    "production-stack-session-scorer": {"sessionKey": "h"},
    "request-attribute-reporter": {"attributes": [{"key": {"name": "a"}, "expression": "1"}]},
    "k8s-peer-discovery": {"selector": "a=b", "port": 1},
    "file-discovery": {"path": "/p"},
    "multicluster-file-discovery": {"path": "/p"},
    "k8s-notification-source": {"group": "", "version": "v1", "kind": "Pod"},
    "label-producer": {"labels": [{"label": "l", "attributeKey": "a"}]},
    "priority-holdback-policy": {"minCeiling": 0.5},
    "capacity-ledger": {"slotsPerEndpoint": 1, "stepTokenBudget": 1, "maxModelLen": 1},
}
"""Parameters that a type must have."""
BESIDE = {
    "max-saturation-detector": "utilization-detector",
    "pd-profile-handler": "prefix-based-pd-decider",
}
"""Plug-ins that a type needs."""


@cache
def read_names():
    """The attributes that the product's code reads, those by `getattr` and the like included."""
    names = set()
    for path in Path(epp.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                names.add(node.attr)
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)
    return names


@pytest.mark.parametrize("kind", PLUGINS)
def test_the_report_has_every_parameter(kind):
    specs = [PluginSpec(kind, parameters=WANTED.get(kind))]
    if kind in BESIDE:
        specs.append(PluginSpec(BESIDE[kind]))
    plugins = Plugins(specs, lambda _: 0)
    config = EndpointPickerConfig(plugins=specs)
    lines = report(config, plugins.structs)
    (title,) = [line for line in lines if line.startswith((f"# {kind} ", f"# {kind}  "))]
    assert title.endswith(str(effect_of(PLUGINS[kind]) or HONOURED))
    after = lines[lines.index(title) + 1 :]
    own = list(takewhile(lambda line: line.startswith("#   "), after))
    for field in msgspec.structs.fields(PLUGINS[kind]):
        rows = [line for line in own if line.startswith(f"#   {field.encode_name}")]
        assert rows, field.encode_name
        known = {HONOURED, *map(str, filter(None, (*effects(PLUGINS[kind]).values(),)))}
        known.add(str(effect_of(PLUGINS[kind])))
        assert all(any(row.endswith(said) for said in known) for row in rows)


def attribute_names(kind):
    """The Python name of every field of a struct and of its groups, by its path."""
    found = {}
    for path in effects(kind):
        holder = kind
        *groups, last = path.replace("[]", "").split(".")
        for group in groups:
            holder = group_of(holder, group)
        field = next(each for each in msgspec.structs.fields(holder) if each.encode_name == last)
        found[path] = field.name
    return found


def group_of(kind, name):
    """The struct within a field's annotation."""
    field = next(each for each in msgspec.structs.fields(kind) if each.encode_name == name)
    return next(each for each in structs_in(field.type))


def structs_in(hint):
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for inner in getattr(hint, "__args__", ()):
        yield from structs_in(inner)


@pytest.mark.parametrize("kind", PLUGINS)
def test_what_is_honoured_is_read_by_some_code(kind):
    if effect_of(PLUGINS[kind]) is not None:
        return
    said, names = effects(PLUGINS[kind]), attribute_names(PLUGINS[kind])
    groups = {path.rpartition(".")[0].removesuffix("[]") for path in said}
    honoured = [path for path, effect in said.items() if effect is None and path not in groups]
    assert [path for path in honoured if names[path] not in read_names()] == []
