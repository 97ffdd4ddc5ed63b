"""The configuration that the flags choose, and the changes that further flags make to it."""

import argparse
from collections.abc import Mapping
from typing import Any

import msgspec

from epp.cli.files import named, read_text
from epp.cli.types import BOOL, PORT, one_of
from epp.config.file import DEFAULT_POLICY, POLICIES, Settings, load
from epp.config.schema import check_numbers
from epp.protocol.yaml import load_yaml

_METRICS_SOURCE = "metrics-data-source"
_PARAMETERS = {
    "model_server_metrics_scheme": "scheme",
    "model_server_metrics_path": "path",
    "model_server_metrics_port": "port",
    "model_server_metrics_https_insecure_skip_verify": "insecureSkipVerify",
}
"""Flags of llm-d-router up to 0.9, which KServe's templates still pass, and the parameters of the
metrics-data-source that replaced them."""
_MODELS_SOURCE, _MODELS_RESPONDER = "models-data-source", "models-responder"


def add_overrides(group: argparse._ArgumentGroup) -> None:
    """Add the flags that change a configuration."""
    group.add_argument(
        "--model-server-metrics-scheme",
        type=one_of("http", "https"),
        metavar="SCHEME",
        help="mapped: `scheme` of the metrics-data-source, if that has none",
    )
    group.add_argument(
        "--model-server-metrics-path", metavar="PATH", help="mapped: its `path`, as above"
    )
    group.add_argument(
        "--model-server-metrics-port",
        **PORT,
        help="mapped: its `port`, as above; 0 is the endpoint's",
    )
    group.add_argument(
        "--model-server-metrics-https-insecure-skip-verify",
        **BOOL,
        help="mapped: its `insecureSkipVerify`, as above",
    )


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return the configuration that the flags choose. Raises `ConfigError`."""
    if arguments.config_file is not None:
        text = read_text(arguments.config_file, "--config-file")
        with named(f"--config-file {arguments.config_file}"):
            return load(configured(text, arguments))
    # An empty text is llm-d-router's default; in a policy by name, only flags' parts may be wrong.
    added = "--feature-gates" if arguments.feature_gates else "--model-server-metrics-path"
    with named("--config-text" if arguments.config_text else added):
        return load(configured(arguments.config_text or "", arguments))


def policy_name(arguments: argparse.Namespace) -> str:
    """Return the name of the chosen policy: a file's path, `--config-text` or a policy's name."""
    if arguments.config_file is not None:
        return str(arguments.config_file)
    return "--config-text" if arguments.config_text else arguments.policy or DEFAULT_POLICY


def configured(text: str, arguments: argparse.Namespace) -> str:
    """Return the text of a configuration with the changes that flags make.

    An empty text stands for `--policy`. A gate in `--feature-gates` overrides the same gate in the
    text. Raises `ConfigError` for a text that is not YAML, or has a number that is out of range.
    """
    text = text or POLICIES[arguments.policy or DEFAULT_POLICY]
    parameters = {
        name: value
        for flag, name in _PARAMETERS.items()
        if (value := getattr(arguments, flag, None)) or value is False
    }
    poll_models = getattr(arguments, "poll_models", False)
    if not arguments.feature_gates and not parameters and not poll_models:
        return text
    document = load_yaml(text.encode(errors="surrogateescape"))
    if not isinstance(document, dict):
        return text
    check_numbers(document, "")  # JSON has no infinity
    changed = _with_gates(document, arguments.feature_gates)
    if poll_models:
        changed = _with_models(changed)
    return msgspec.json.encode(_with_parameters(changed, parameters)).decode()


def _with_gates(document: dict[str, Any], gates: list[str]) -> dict[str, Any]:
    given = document.get("featureGates") or []
    if not gates or not isinstance(given, list):
        return document
    named = {gate.partition("=")[0] for gate in gates}
    kept = [gate for gate in given if str(gate).partition("=")[0] not in named]
    return document | {"featureGates": [*kept, *gates]}


def _with_models(document: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with a models-responder, if it does not poll lists of models."""
    plugins = document.get("plugins") or []
    layer = document.get("dataLayer", document.get("data"))
    layer = {} if layer is None else layer
    sources = (layer.get("sources") or []) if isinstance(layer, dict) else None
    if not isinstance(plugins, list) or not isinstance(sources, list):
        return document
    polled = [each.get("pluginRef") for each in sources if isinstance(each, dict)]
    if _names_of(_MODELS_RESPONDER, plugins) or any(
        name in polled for name in _names_of(_MODELS_SOURCE, plugins)
    ):
        return document
    return document | {"plugins": [*plugins, {"type": _MODELS_RESPONDER}]}


def _names_of(kind: object, plugins: list[Any]) -> list[str]:
    """Return the names of the plug-ins of a type."""
    given = [each for each in plugins if isinstance(each, dict) and each.get("type") == kind]
    return [str(each.get("name") or kind) for each in given]


def _with_parameters(document: dict[str, Any], more: Mapping[str, object]) -> dict[str, Any]:
    plugins = document.get("plugins") or []
    if not more or not isinstance(plugins, list):
        return document
    changed = [_completed(each, more) for each in plugins]
    if not _names_of(_METRICS_SOURCE, plugins):
        changed.append({"type": _METRICS_SOURCE, "parameters": dict(more)})
    return document | {"plugins": changed}


def _completed(plugin: Any, more: Mapping[str, object]) -> Any:  # noqa: ANN401 (what YAML holds)
    """Return a metrics-data-source with the parameters that it lacks, any other as it is."""
    named = _names_of(_METRICS_SOURCE, [plugin])
    if not named or not isinstance(plugin.get("parameters") or {}, dict):
        return plugin
    return plugin | {"parameters": {**more, **(plugin.get("parameters") or {})}}
