"""The flags `--record`, `--shadow` and `--tracing`: what they mean, what cannot be meant."""

import argparse

import pytest

from epp.cli.main import main
from epp.cli.observer_flags import add_observers, recording_of, shadow_of, tracing_of
from epp.config.file import POLICIES
from epp.errors import ConfigError
from epp.policy.pickers import RandomPicker

ENDPOINTS = "endpoints: [{name: a, address: 127.0.0.1, port: 8000}]"


def parsed(*argv, **more):
    parser = argparse.ArgumentParser()
    add_observers(parser)
    other = {"config_file": None, "config_text": None, "policy": None} | more
    return parser.parse_args(argv, argparse.Namespace(**other))


def test_nothing_is_recorded_or_compared_unless_it_is_wanted():
    assert recording_of(parsed(), "pool", "") is None
    assert shadow_of(parsed()) is None
    assert tracing_of(parsed(), {"OTEL_TRACES_EXPORTER": "otlp"}, "pool") is None


def test_traces_are_as_the_environment_says():
    settings = tracing_of(parsed("--tracing"), {"OTEL_SERVICE_NAME": "mine"}, "pool")
    assert settings is not None
    assert (settings.service_name, settings.pool) == ("mine", "pool")
    assert tracing_of(parsed("--tracing"), {"OTEL_SDK_DISABLED": "true"}, "pool") is None


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({}, "least-ttft"),
        ({"policy": "linear"}, "linear"),
        ({"config_text": "plugins: []"}, "--config-text"),
    ],
)
def test_a_recording_says_which_pool_and_configuration(more, name, tmp_path):
    arguments = parsed("--record", str(tmp_path), "--record-max-bytes=2Mi", **more)
    settings = recording_of(arguments, "a-pool", "llama")
    assert settings is not None
    assert (settings.folder, settings.most_bytes) == (tmp_path, 2 << 20)
    assert (settings.pool, settings.configuration) == ("a-pool", name)
    assert settings.base_model == "llama"


def test_a_recording_of_no_size_is_refused(tmp_path):
    arguments = parsed("--record", str(tmp_path), "--record-max-bytes=4K")
    with pytest.raises(ConfigError, match="--record-max-bytes: 4000 bytes are too few"):
        recording_of(arguments, "pool", "")


@pytest.mark.parametrize("policy", POLICIES)
def test_a_shadow_is_a_policy_by_name(policy):
    found = shadow_of(parsed("--shadow", policy))
    assert found is not None
    assert (found[0], found[1].profile.name) == (policy, "default")


@pytest.mark.parametrize(("label", "name"), [("", "mine"), ("next=", "next")])
def test_a_shadow_is_a_file(label, name, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("plugins: [{type: random-picker}]")
    found = shadow_of(parsed("--shadow", f"{label}{path}"))
    assert found is not None
    assert found[0] == name
    assert isinstance(found[1].profile.picker, RandomPicker)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "mine.yaml: No such file or directory"),
        (b"\xff", "mine.yaml is not UTF-8 text"),
        (b"plugins: [{type: queue-score}]", "plugins[0].type: unknown plug-in type `queue-score`"),
    ],
)
def test_a_shadow_that_cannot_be_is_refused_with_the_flag(text, said, tmp_path, capsys):
    path, endpoints = tmp_path / "mine.yaml", tmp_path / "endpoints.yaml"
    endpoints.write_text(ENDPOINTS)
    if text is not None:
        path.write_bytes(text)
    assert main(["serve", f"--endpoints-file={endpoints}", f"--shadow={path}"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("epp: --shadow")
    assert said in printed


def test_a_policy_that_was_misspelt_is_named():
    with pytest.raises(ConfigError, match="did you mean `round-robin`"):
        shadow_of(parsed("--shadow", "round-robbin"))
