"""What the chart hands to the picker, the proxy and the probes is what these take."""

import pytest
import yaml

from epp.adapters.kube.kube_settings import KubeSettings
from epp.cli.main import main
from epp.cli.pool_flags import pool_of
from epp.config.file import POLICIES, load
from tests.charts import values as v
from tests.charts.helm import objects, only
from tests.charts.picker import arguments
from tests.envoy_config import complaint


def rendered(name):
    return objects("warmpick", v.CASES[name])


@pytest.mark.parametrize("name", v.CASES)
def test_the_picker_takes_its_flags(name):
    things = rendered(name)
    said = arguments(things)
    pool = pool_of(said, "", {"NAMESPACE": "inf", "POD_NAME": "rel-epp-6d5f-x2x"})
    selected = name in {"selector", "selector-leader", "standalone"}
    assert isinstance(pool.source, KubeSettings)
    assert (pool.source.namespace, pool.name) == ("inf", "rel-epp" if selected else "rel")
    assert pool.source.elect == (name in {"leader", "selector-leader"})
    assert said.health_checking == (name in {"standalone", "pool-beside-envoy"})
    assert said.metrics_endpoint_auth == (name != "selector-leader")
    # All of the grace period but what comes before SIGTERM and what stopping takes.
    pause = 0 if said.ha_enable_leader_election else 20
    assert said.drain_timeout == (120 if name == "tuned" else 125 - pause)
    assert (said.cert_path is not None) == (name in {"secret", "certificate"})


def test_flags_of_ones_own_reach_the_picker():
    said = arguments(rendered("tuned"))
    assert (said.max_body_bytes, said.debug_headers) == (64 << 20, True)
    assert (said.log_level, said.log_format) == ("debug", "console")
    assert arguments(rendered("pool-beside-envoy")).secure_serving is False
    assert arguments(rendered("defaults")).log_format == "json"


@pytest.mark.parametrize(
    ("name", "most_bytes", "volume"),
    [
        ("recorded", 500_000_000, {"emptyDir": {}}),
        (
            "recorded-on-a-claim",
            1 << 30,
            {"persistentVolumeClaim": {"claimName": "recordings"}},
        ),
    ],
)
def test_recordings_have_a_volume(name, most_bytes, volume):
    things = rendered(name)
    said = arguments(things)
    assert (str(said.record), said.record_max_bytes) == ("/recording", most_bytes)
    pod = only(things, "Deployment")["spec"]["template"]["spec"]
    assert {"name": "recording", **volume} in pod["volumes"]
    (container,) = pod["containers"]
    assert {"name": "recording", "mountPath": "/recording"} in container["volumeMounts"]


@pytest.mark.parametrize("name", v.CASES)
def test_the_picker_takes_its_configuration(name, tmp_path, capsys):
    things = rendered(name)
    file = arguments(things).config_file.name
    texts = only(things, "ConfigMap", "rel-epp")["data"]
    path = tmp_path / file
    path.write_text(texts[file])
    assert main(["check", str(path)]) == 0
    warning = capsys.readouterr().err
    assert ("/models/llama" in warning) == (name == "tokens")


@pytest.mark.parametrize(
    ("said", "path"),
    [
        ({}, "/prometheus/metrics"),
        ({"path": "/metrics"}, "/prometheus/metrics"),
        ({"path": "/stats"}, "/stats"),
    ],
)
def test_metrics_of_trtllm_serve_are_read_where_it_has_them(said, path):
    server = {"inferencePool": {"modelServerType": "trtllm-serve"}}
    things = objects("warmpick", v.merged(v.POOL, server, v.epp(metricsDataSource=said)))
    file = yaml.safe_load(only(things, "ConfigMap")["data"]["default-plugins.yaml"])
    (source,) = [each for each in file["plugins"] if each["type"] == "metrics-data-source"]
    assert source["parameters"]["path"] == path


def test_the_default_configuration_is_the_default_policy():
    text = only(rendered("defaults"), "ConfigMap")["data"]["default-plugins.yaml"]
    assert load(text).profile == load(POLICIES["least-ttft"]).profile


@pytest.mark.parametrize(
    "flags", [{}, {"secure-serving": False}, {"bind-address": "::"}, {"bind-address": "[::]"}]
)
def test_envoy_takes_its_configuration(flags, tmp_path):
    things = objects("warmpick", v.merged(v.CASES["standalone"], v.epp(flags=flags)))
    path = tmp_path / "envoy.yaml"
    path.write_text(only(things, "ConfigMap", "rel-epp-envoy")["data"]["envoy.yaml"])
    clusters = {
        each["name"]: each
        for each in yaml.safe_load(path.read_text())["static_resources"]["clusters"]
    }
    assert ("transport_socket" in clusters["epp"]) == ("secure-serving" not in flags)
    assert complaint(path) == ""


@pytest.mark.parametrize(
    ("flags", "addresses"),
    [
        # A kubelet asks a pod of an IPv6 cluster at its IPv6 address.
        ({}, ["0.0.0.0", "::"]),
        ({"bind-address": "::"}, ["::"]),
        ({"bind-address": "[::]"}, ["::"]),
        ({"bind-address": "0.0.0.0"}, ["0.0.0.0"]),
    ],
)
def test_envoy_listens_on_both_families_unless_told_otherwise(flags, addresses):
    things = objects("warmpick", v.merged(v.CASES["standalone"], v.epp(flags=flags)))
    text = only(things, "ConfigMap", "rel-epp-envoy")["data"]["envoy.yaml"]
    for listener in yaml.safe_load(text)["static_resources"]["listeners"]:
        places = [listener, *listener.get("additional_addresses", ())]
        sockets = [each["address"]["socket_address"] for each in places]
        assert [each["address"] for each in sockets] == addresses
        assert len({each["port_value"] for each in sockets}) == 1
        assert sockets[-1].get("ipv4_compat", False) == (addresses == ["::"])
