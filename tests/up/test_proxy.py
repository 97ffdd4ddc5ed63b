import json

import msgspec
import pytest

from epp.adapters.tls import certificate
from epp.up.proxy import (
    CERTIFICATE_FILE,
    SERVERS_FILE,
    ProxySettings,
    certificate_file,
    proxy_config,
    servers_file,
)
from epp.up.servers import Address, addresses_of, model_servers
from tests.envoy_config import complaint

HTTPS = model_servers(["https://gpu1:8443", "https://10.0.0.2"])


@pytest.fixture
def settings(tmp_path):
    key, chain = certificate(None)
    (tmp_path / "tls.key").write_bytes(key)
    (tmp_path / "tls.crt").write_bytes(chain)
    paths = (str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))
    (tmp_path / CERTIFICATE_FILE).write_text(certificate_file(*paths, tmp_path))
    (tmp_path / SERVERS_FILE).write_text(servers_file([Address("a", "10.0.0.1", 8000)]))
    return ProxySettings(
        ip="127.0.0.1", port=8080, picker_port=9002, models_port=9005, folder=tmp_path
    )


CASES = [
    {},
    {"ip": "::"},
    {"tls": True},
    {"api_key_env": "SOME_KEY"},
    {"servers": HTTPS},
    {"servers": (*HTTPS, *model_servers(["http://gpu2"])), "ca": True, "tls": True},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case) or "plain")
def test_envoy_accepts_the_configuration(case, settings):
    if case.pop("ca", False):
        case["ca_file"] = settings.folder / "tls.crt"
    path = settings.folder / "envoy.json"
    path.write_text(proxy_config(msgspec.structs.replace(settings, **case)))
    assert complaint(path) == ""


def clusters(settings):
    config = json.loads(proxy_config(settings))
    return {each["name"]: each for each in config["static_resources"]["clusters"]}


def test_a_server_is_spoken_to_by_its_name(settings):
    wanted = msgspec.structs.replace(settings, servers=HTTPS, ca_file=settings.folder / "tls.crt")
    named, numbered = clusters(wanted)["pool"]["transport_socket_matches"]
    assert named["match"] == {"server": "gpu1:8443"}
    tls = named["transport_socket"]["typed_config"]
    assert tls["sni"] == "gpu1"
    checked = tls["common_tls_context"]["validation_context"]["match_typed_subject_alt_names"]
    assert checked == [{"san_type": "DNS", "matcher": {"exact": "gpu1"}}]
    tls = numbered["transport_socket"]["typed_config"]
    assert "sni" not in tls  # RFC 6066: an IP address is none
    checked = tls["common_tls_context"]["validation_context"]["match_typed_subject_alt_names"]
    assert checked == [{"san_type": "IP_ADDRESS", "matcher": {"exact": "10.0.0.2"}}]


def test_servers_have_one_host_each_and_names_where_they_were_given():
    named, numbered = HTTPS
    addresses = [
        *addresses_of(named, ["10.0.0.1"]),
        *addresses_of(numbered, ["10.0.0.2"]),
        Address("rank-0", "10.0.0.3", 8000),
        Address("rank-1", "10.0.0.3", 8000),
    ]
    (loaded,) = json.loads(servers_file(addresses))["resources"]
    hosts = loaded["endpoints"][0]["lb_endpoints"]
    assert [each["endpoint"]["hostname"] for each in hosts] == ["gpu1:8443", "", ""]
    matched = [
        each["metadata"]["filter_metadata"]["envoy.transport_socket_match"] for each in hosts
    ]
    assert matched == [{"server": "gpu1:8443"}, {"server": "10.0.0.2:443"}, {"server": ""}]


def test_a_key_is_named_and_not_written(settings, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "sk-1")
    text = proxy_config(msgspec.structs.replace(settings, api_key_env="SOME_KEY"))
    assert "Bearer %ENVIRONMENT(SOME_KEY)%" in text
    assert "sk-1" not in text


def test_requests_can_go_past_the_picker(settings):
    config = json.loads(proxy_config(settings))
    (listener,) = config["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    models, asked, past = manager["route_config"]["virtual_hosts"][0]["routes"]
    assert (models["match"]["path"], models["route"]["cluster"]) == ("/v1/models", "models")
    assert asked["match"]["runtime_fraction"]["runtime_key"] == "up.picks"
    assert "typed_per_filter_config" not in asked
    (without,) = past["typed_per_filter_config"].values()
    assert without["disabled"]
    picking = manager["http_filters"][0]["typed_config"]["processing_mode"]
    assert picking["request_body_mode"] == "FULL_DUPLEX_STREAMED"
    assert picking["response_body_mode"] == "STREAMED"
