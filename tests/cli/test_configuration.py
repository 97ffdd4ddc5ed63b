"""Flags that change a configuration: gates, and where metrics pages are."""

import argparse

import pytest

from epp.cli.configuration import configured
from epp.cli.serve_flags import add_serve
from epp.config.file import POLICIES, load
from epp.errors import ConfigError
from epp.protocol.yaml import load_yaml


def merged(text, *flags):
    parser = argparse.ArgumentParser()
    add_serve(parser)
    return configured(text, parser.parse_args(flags))


def document(text, *flags):
    found = load_yaml(merged(text, *flags).encode())
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("text", "gates", "expected"),
    [
        ("plugins: []", "a", ["a"]),
        ("featureGates: [a=true, b]", "a=false,c", ["b", "a=false", "c"]),
        ("featureGates:", "a", ["a"]),
    ],
)
def test_gates_of_the_command_line_go_before_the_configurations(text, gates, expected):
    assert document(text, f"--feature-gates={gates}")["featureGates"] == expected


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("[]", "--feature-gates=a"),
        ("3", "--poll-models"),
        ("featureGates: 3", "--feature-gates=a"),
        ("plugins: 3", "--model-server-metrics-scheme=https"),
        ("a: b", "--feature-gates="),
    ],
)
def test_a_configuration_that_cannot_be_changed_is_left_to_who_reads_it(text, flag):
    assert merged(text) == text
    assert load_yaml(merged(text, flag).encode()) == load_yaml(text.encode())


@pytest.mark.parametrize("flags", [[], ["--feature-gates=flowControl"], ["--poll-models"]])
def test_a_number_that_is_not_finite_is_an_error_whatever_is_changed(flags):
    text = "plugins: [{type: load-aware-scorer, parameters: {threshold: .inf}}]"
    with pytest.raises(ConfigError, match=r"^plugins\[0\]\.parameters\.threshold: inf is out of"):
        load(merged(text, *flags))


def test_no_text_is_the_policys():
    assert merged("") == POLICIES["least-ttft"]
    assert merged("", "--policy=linear") == POLICIES["linear"]


SCHEME = "--model-server-metrics-scheme=https"


@pytest.mark.parametrize(
    ("text", "flags", "expected"),
    [
        ("plugins: []", [SCHEME], {"scheme": "https"}),
        ("kind: x", [SCHEME], {"scheme": "https"}),
        ("plugins: [{type: metrics-data-source}]", [SCHEME], {"scheme": "https"}),
        (
            "plugins: [{type: metrics-data-source, parameters: {scheme: http, path: /p}}]",
            [SCHEME, "--model-server-metrics-port=8081"],
            {"port": 8081, "scheme": "http", "path": "/p"},
        ),
        (
            "",
            [
                "--model-server-metrics-path=/metrics",
                "--model-server-metrics-https-insecure-skip-verify=false",
                "--model-server-metrics-port=0",
            ],
            {"path": "/metrics", "insecureSkipVerify": False},
        ),
    ],
)
def test_where_metrics_pages_are(text, flags, expected):
    plugins = document(text, *flags)["plugins"]
    (source,) = [each for each in plugins if each["type"] == "metrics-data-source"]
    assert source["parameters"] == expected
    assert [each for each in plugins if each is not source and "parameters" in each] == []


def test_models_are_polled_beside_what_is_configured():
    settings = load(merged("", "--poll-models", "--policy=linear"))
    metrics, models = settings.data_layer.pages
    assert (metrics.load, models.source.path, models.source.every) == (True, "/v1/models", 5)
    assert (models.models, models.serves_others, settings.warnings) == (True, True, ())
    assert [each.name for each in settings.scheduling.profiles.values()] == ["default"]


def test_a_configuration_that_polls_models_itself_is_left_alone():
    text = """
plugins: [{type: models-data-source, name: models, parameters: {interval: 1m}}]
dataLayer: {sources: [{pluginRef: models}]}
"""
    assert document(text, "--poll-models") == load_yaml(text.encode())
    answering = "plugins: [{type: models-responder, name: answers}]"
    for other in ("plugins: 3", "{plugins: [], dataLayer: []}", answering):
        assert document(other, "--poll-models") == load_yaml(other.encode())


@pytest.mark.parametrize(
    ("plugins", "interval", "serves_others"),
    [
        ("{type: models-data-source, name: m, parameters: {interval: 1m}}", 60, True),
        ("{type: models-data-extractor, parameters: {refuseUnlisted: true}}", 5, False),
        ("{type: models-data-extractor, name: e}", 5, True),
        ("{type: metrics-data-source}", 5, True),
    ],
)
def test_models_are_polled_by_the_plugins_that_nothing_refers_to(plugins, interval, serves_others):
    settings = load(merged(f"plugins: [{plugins}]", "--poll-models"))
    models = settings.data_layer.pages[-1]
    assert (models.models, models.source.every) == (True, interval)
    assert models.serves_others is serves_others
    assert settings.data_layer.answers_models
    assert settings.warnings == ()


def test_models_are_polled_beside_the_sources_of_an_older_configuration():
    text = """
apiVersion: inference.networking.x-k8s.io/v1alpha1
plugins: [{type: dcgm-data-source}, {type: dcgm-extractor}]
data: {sources: [{pluginRef: dcgm-data-source, extractors: [{pluginRef: dcgm-extractor}]}]}
"""
    kinds = {each.source.kind for each in load(merged(text, "--poll-models")).data_layer.pages}
    assert kinds == {"metrics-data-source", "dcgm-data-source", "models-data-source"}
