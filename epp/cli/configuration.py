"""The configuration that the flags choose, and what further flags change in its text."""

import argparse
from collections.abc import Mapping
from typing import Any

import msgspec

from epp.cli.types import add_boolean, one_of, port_number
from epp.config.file import DEFAULT_POLICY, POLICIES
from epp.protocol.yaml import load_yaml

_METRICS_SOURCE = "metrics-data-source"
_PARAMETERS = {
    "model_server_metrics_scheme": "scheme",
    "model_server_metrics_path": "path",
    "model_server_metrics_port": "port",
    "model_server_metrics_https_insecure_skip_verify": "insecureSkipVerify",
}
"""Flags that llm-d-router had up to 0.9, and KServe's templates for these releases still pass; as
the parameters of the plug-in that has their place since."""


def add_overrides(group: argparse._ArgumentGroup) -> None:
    """Add the flags that change a configuration."""
    group.add_argument(
        "--model-server-metrics-scheme",
        type=one_of("http", "https"),
        metavar="SCHEME",
        help="mapped: `scheme` of the metrics-data-source that does not have one",
    )
    group.add_argument(
        "--model-server-metrics-path", metavar="PATH", help="mapped: its `path`, as above"
    )
    group.add_argument(
        "--model-server-metrics-port",
        type=port_number,
        metavar="PORT",
        help="mapped: its `port`, as above; 0 is the endpoint's",
    )
    add_boolean(
        group,
        "--model-server-metrics-https-insecure-skip-verify",
        help="mapped: its `insecureSkipVerify`, as above",
    )


def configured(text: str, arguments: argparse.Namespace) -> str:
    """Return the text of a configuration (empty: that of the policy) with what flags change in it.

    `--feature-gates` go in place of the configuration's own. Raises `ConfigError` for a text that
    is not YAML.
    """
    text = text or POLICIES[arguments.policy or DEFAULT_POLICY]
    parameters = {
        name: value
        for flag, name in _PARAMETERS.items()
        if (value := getattr(arguments, flag, None)) not in (None, "", 0) or value is False
    }
    if not arguments.feature_gates and not parameters:
        return text
    document = load_yaml(text.encode(errors="surrogateescape"))
    if not isinstance(document, dict):
        return text
    changed = _with_gates(document, arguments.feature_gates)
    return msgspec.json.encode(_with_parameters(changed, parameters)).decode()


def _with_gates(document: dict[str, Any], gates: list[str]) -> dict[str, Any]:
    given = document.get("featureGates") or []
    if not gates or not isinstance(given, list):
        return document
    named = {gate.partition("=")[0] for gate in gates}
    kept = [gate for gate in given if str(gate).partition("=")[0] not in named]
    return document | {"featureGates": [*kept, *gates]}


def _with_parameters(document: dict[str, Any], more: Mapping[str, object]) -> dict[str, Any]:
    plugins = document.get("plugins") or []
    if not more or not isinstance(plugins, list):
        return document
    changed = [_completed(each, more) for each in plugins]
    if not any(_is_source(each) for each in plugins):
        changed.append({"type": _METRICS_SOURCE, "parameters": dict(more)})
    return document | {"plugins": changed}


def _is_source(plugin: object) -> bool:
    return isinstance(plugin, dict) and plugin.get("type") == _METRICS_SOURCE


def _completed(plugin: Any, more: Mapping[str, object]) -> Any:  # noqa: ANN401 (what YAML holds)
    """Return a plug-in with parameters that it does not have; others as they are."""
    if not _is_source(plugin) or not isinstance(plugin.get("parameters") or {}, dict):
        return plugin
    return plugin | {"parameters": {**more, **(plugin.get("parameters") or {})}}
