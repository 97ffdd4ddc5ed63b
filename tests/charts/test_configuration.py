"""What the chart hands to the picker, the proxy and the probes is what these take."""

import subprocess

import pytest
import yaml

from epp.cli import main
from epp.config import POLICIES, load
from epp.demo.envoy import envoy_binary
from tests.charts import values as v
from tests.charts.helm import objects, only


def rendered(name):
    return objects("warmpick", v.CASES[name])


@pytest.mark.parametrize("name", v.CASES)
def test_the_picker_takes_its_configuration(name, tmp_path, capsys):
    things = rendered(name)
    container = only(things, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    (file,) = [
        each.removeprefix("--config-file=/config/")
        for each in container["args"]
        if each.startswith("--config-file")
    ]
    texts = only(things, "ConfigMap", "rel-epp")["data"]
    path = tmp_path / file
    path.write_text(texts[file])
    assert main(["check", str(path)]) == 0
    warning = capsys.readouterr().err
    assert ("/models/llama" in warning) == (name == "tokens")


def test_the_default_configuration_is_the_default_policy():
    text = only(rendered("defaults"), "ConfigMap")["data"]["default-plugins.yaml"]
    assert load(text).profile == load(POLICIES["least-ttft"]).profile


@pytest.mark.parametrize("flags", [{}, {"secure-serving": False}, {"bind-address": "::"}])
def test_envoy_takes_its_configuration(flags, tmp_path):
    things = objects("warmpick", v.merged(v.CASES["standalone"], v.epp(flags=flags)))
    path = tmp_path / "envoy.yaml"
    path.write_text(only(things, "ConfigMap", "rel-epp-envoy")["data"]["envoy.yaml"])
    clusters = {
        each["name"]: each
        for each in yaml.safe_load(path.read_text())["static_resources"]["clusters"]
    }
    assert ("transport_socket" in clusters["epp"]) == ("secure-serving" not in flags)
    done = subprocess.run(
        [str(envoy_binary()), "--mode", "validate", "--log-level", "error", "-c", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
