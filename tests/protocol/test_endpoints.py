import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import ConfigError
from epp.model.endpoint import H2C, HTTPS, Endpoint
from epp.protocol.endpoints import endpoints_steps, parse_endpoints
from epp.protocol.steps import finish

FULL = b"""
endpoints:
  - name: a
    namespace: prod
    address: 10.0.0.1
    port: 8000
    labels: {app: vllm, llm-d.ai/engine-type: vllm}
  - {name: b, address: "FD00::0001", port: 8001}
"""


def test_every_field_and_every_default():
    a, b = parse_endpoints(FULL)
    assert (a.id, a.target) == ("prod/a", "10.0.0.1:8000")
    assert a.labels == {"app": "vllm", "llm-d.ai/engine-type": "vllm"}
    assert (b.id, b.target, b.labels) == ("default/b", "[fd00::1]:8001", {})


def test_an_ipv4_address_in_ipv6_is_that_of_ipv4():
    # Envoy connects to no host of a list that is written so, and calls it `[::ffff:10.0.0.1]`.
    for address in ("::ffff:10.0.0.1", "::FFFF:a00:1"):
        assert rows(f"endpoints: [{{name: a, address: '{address}', port: 1}}]") == [
            ("default/a", "10.0.0.1:1", None)
        ]


def test_an_empty_list_is_a_list():
    assert parse_endpoints(b"endpoints: []") == ()


def test_a_key_without_a_value_is_as_good_as_absent():
    # What a template leaves whose list or labels are empty; llm-d-router reads it so.
    assert parse_endpoints(b"endpoints:\n") == ()
    empty = "{name: a, namespace: , address: 10.0.0.1, port: 1, labels: , appProtocol: }"
    plain = "{name: a, address: 10.0.0.1, port: 1}"
    nameless = "{name: a, namespace: '', address: 10.0.0.1, port: 1}"
    expected = parse_endpoints(f"endpoints: [{plain}]".encode())
    assert parse_endpoints(f"endpoints: [{empty}]".encode()) == expected
    assert parse_endpoints(f"endpoints: [{nameless}]".encode()) == expected


def test_ports_may_be_text_as_llm_d_router_writes_them():
    assert rows('endpoints: [{name: a, address: 10.0.0.1, port: "8000"}]') == [
        ("default/a", "10.0.0.1:8000", None)
    ]


ADDRESSES = {"eu.example.com": "192.0.2.1", "us.example.com": "2001:db8::1"}


def clusters(text):
    found = finish(endpoints_steps(text.encode(), lambda name, _port: ADDRESSES.get(name, "")))
    return [(each.name, each.target, each.metrics_host) for each in found]


def test_a_cluster_has_the_address_of_its_name_and_its_metrics_at_the_name():
    assert clusters(
        """endpoints:
        - {name: eu, address: eu.example.com, port: "443"}
        - {name: us, address: us.example.com, port: 443, labels: {metricsAddress: m.us.example.com}}
        - {name: ip, address: 10.0.0.1, port: 443,
           labels: {metricsAddress: "fd00::1", metricsPort: "9090"}}
        - {name: odd, address: 10.0.0.2, port: 443, labels: {metricsPort: "9090"}}
        - {name: lost, address: nowhere.example.com, port: 443}
        """
    ) == [
        ("eu", "192.0.2.1:443", "eu.example.com:443"),
        ("us", "[2001:db8::1]:443", "m.us.example.com:443"),
        ("ip", "10.0.0.1:443", "[fd00::1]:9090"),
        ("odd", "10.0.0.2:443", "10.0.0.2:443"),
    ]


def test_the_labels_of_clusters_mean_nothing_for_pods():
    text = b"endpoints: [{name: a, address: 10.0.0.1, port: 1, labels: {metricsAddress: x y}}]"
    assert parse_endpoints(text)[0].metrics_host == ""


@pytest.mark.parametrize(
    ("entry", "place", "problem"),
    [
        ("address: Eu.Example.com, port: 1", "address", "neither an IP address nor a host name"),
        ("address: a..b, port: 1", "address", "neither an IP address nor a host name"),
        ("address: a/b, port: 1", "address", "neither an IP address nor a host name"),
        ("address: 10.0.0.1, port: 1, labels: {metricsAddress: 'a b'}", "labels", "neither"),
        (
            "address: 10.0.0.1, port: 1, labels: {metricsAddress: a, metricsPort: '0'}",
            "labels",
            "'0' is not a port",
        ),
        ("address: eu.example.com, port: '70000'", "port", "'70000' is not a port"),
    ],
)
def test_what_is_no_cluster_names_its_place(entry, place, problem):
    with pytest.raises(ConfigError, match=problem) as error:
        clusters(f"endpoints: [{{name: a, {entry}}}]")
    assert error.value.place == f"endpoints[0].{place}"


def test_one_name_in_two_namespaces_is_two_endpoints():
    one = {"name": "a", "address": "10.0.0.1", "port": 1}
    text = yaml.safe_dump({"endpoints": [one, {**one, "namespace": "x", "port": 2}]}).encode()
    assert [endpoint.id for endpoint in parse_endpoints(text)] == ["default/a", "x/a"]


def rows(text):
    return [(each.id, each.target, each.rank) for each in parse_endpoints(text.encode())]


def test_one_entry_stands_for_all_ranks_of_a_server():
    assert rows("endpoints: [{name: a, address: 10.0.0.1, port: 1, dataParallelSize: 2}]") == [
        ("default/a-rank-0", "10.0.0.1:1", 0),
        ("default/a-rank-1", "10.0.0.1:1", 1),
    ]


def test_a_metrics_page_may_be_elsewhere():
    for host in ("localhost:9400", "[fd00::1]:9400", "127.0.0.1:65535"):
        text = f"endpoints: [{{name: a, address: 10.0.0.1, port: 1, metricsHost: '{host}'}}]"
        assert [each.metrics_host for each in parse_endpoints(text.encode())] == [host]


def test_an_entry_says_what_it_speaks():
    text = b"""endpoints:
- {name: a, address: 10.0.0.1, port: 1, appProtocol: kubernetes.io/h2c}
- {name: b, address: 10.0.0.2, port: 1, appProtocol: https}
- {name: c, address: 10.0.0.3, port: 1}
"""
    assert [each.app_protocol for each in parse_endpoints(text)] == [H2C, HTTPS, ""]


@pytest.mark.parametrize(
    "more", ["dataParallelRank: 3", 'labels: {warmpick.io/data-parallel-rank: "3"}']
)
def test_an_entry_can_be_one_rank(more):
    one = f"{{name: a, address: 10.0.0.1, port: 1, {more}}}"
    other = "{name: b, address: 10.0.0.1, port: 1, dataParallelRank: 0}"
    assert rows(f"endpoints: [{one}, {other}]") == [
        ("default/a", "10.0.0.1:1", 3),
        ("default/b", "10.0.0.1:1", 0),
    ]


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("", "", "empty"),
        ("# nothing\n", "", "empty"),
        ("just words", "", "a mapping is expected, not text"),
        ("{}", "", "missing required field `endpoints`"),
        ("endpoints: 5", "endpoints", "a list is expected, not a whole number"),
        ("endpoints: []\nmore: 1", "", "unknown field `more`; it takes endpoints"),
        (
            "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: []",
            "",
            "a configuration is not a file of `endpoints`; --config-file names one",
        ),
        ("plugins: []", "", "a configuration is not a file of `endpoints`; --config-file names"),
        ("endpoints: [", "line 2, column 1", "not valid YAML"),
        ("endpoints:\n\t- a", "line 2, column 1", "not valid YAML"),
        ("endpoints: [!!python/name:os.system x]", "line 1, column 13", "not valid YAML"),
        ("\xff", "", "not valid YAML"),
        ("[" * 100_000, "line 1, column 17", "nested too deeply"),
        ("- " * 100_000, "line 1, column 33", "nested too deeply"),
        ("endpoints: [3]", "endpoints[0]", "a mapping is expected, not a whole number"),
    ],
)
def test_errors_name_the_place(text, place, problem):
    with pytest.raises(ConfigError) as raised:
        parse_endpoints(text.encode("latin-1"))
    assert raised.value.place == place
    assert problem in str(raised.value)


Z = "name: z, address: 10.9.9.9, port: 9"
Y = "name: y, address: 10.9.9.9, port: 9"
A = "name: a, address: 10.0.0.1"
LABELS = 'labels: {{warmpick.io/{}: "{}"}}'
TWO = "dataParallelSize: 2"


@pytest.mark.parametrize(
    ("entries", "place", "problem"),
    [
        ([Z, "name: a, port: 1"], "[1]", "`address`"),
        ([f"{A}, port: 2001-02-30"], "[0].port", "'2001-02-30' is not a port, 1 to 65535"),
        ([Z, f"{A}, port: x"], "[1].port", "'x' is not a port, 1 to 65535"),
        ([Z, f"{A}, port: 0"], "[1].port", "a whole number of at least 1 is expected"),
        ([f"{A}, port: 65536"], "[0].port", "a whole number of at most 65535 is expected"),
        (
            ["name: a, address: vllm.svc, port: 1"],
            "[0].address",
            "'vllm.svc' is not an IP address, and host names are not resolved",
        ),
        (["name: a/b, address: 10.0.0.1, port: 1"], "[0].name", "matching regex"),
        (
            [f"{Z}, labels: {{x: 1}}"],
            "[0].labels[...]",
            "text is expected, not a whole number; put it in quotes",
        ),
        ([f"{Z}, weight: 1"], "[0]", "unknown field `weight`"),
        (
            [Z, "name: z, address: 10.0.0.2, port: 9"],
            "[1].name",
            "default/z is already the name of endpoints[0]",
        ),
        ([Z, Y], "[1].address", "10.9.9.9:9 is already the address of endpoints[0]"),
        ([Z, f"{Y}, {TWO}"], "[1].address", "10.9.9.9:9 is already the address of endpoints[0]"),
        (
            [f"{Z}, {TWO}", f"{Y}, dataParallelRank: 1"],
            "[1].address",
            "rank 1 of 10.9.9.9:9 is already the address of endpoints[0]",
        ),
        (
            [f"{Z}, {TWO}", "name: z-rank-1, address: 10.9.9.8, port: 9"],
            "[1].name",
            "default/z-rank-1 is already the name of endpoints[0]",
        ),
        ([f"{Z}, {TWO}, dataParallelRank: 1"], "[0].dataParallelSize", "an entry with a rank"),
        ([f"{Z}, dataParallelSize: 0"], "[0].dataParallelSize", "a whole number of at least 1"),
        ([f"{Z}, metricsHost: 'http://a:1'"], "[0].metricsHost", "matching regex"),
        ([f"{Z}, metricsHost: a"], "[0].metricsHost", "matching regex"),
        ([f"{Z}, metricsHost: 'fd00::1:9400'"], "[0].metricsHost", "matching regex"),
        ([f"{Z}, metricsHost: '[fd00]:9400'"], "[0].metricsHost", "'[fd00]' is not an IP address"),
        ([f"{Z}, metricsHost: 'a:65536'"], "[0].metricsHost", "'65536' is not a port"),
        (
            [f"{Z}, appProtocol: grpc"],
            "[0].appProtocol",
            "not one of http, https, kubernetes.io/h2c",
        ),
        ([f"{Z}, dataParallelRank: -1"], "[0].dataParallelRank", "a whole number of at least 0"),
        (
            [f"{Z}, {LABELS.format('data-parallel-rank', 'one')}"],
            "[0].labels",
            "the label warmpick.io/data-parallel-rank is not a number",
        ),
        (
            [f"{Z}, {LABELS.format('offload-tokens', '1e6')}"],
            "[0].labels",
            "the label warmpick.io/offload-tokens is not a number",
        ),
    ],
)
def test_errors_of_entries_name_the_place(entries, place, problem):
    text = "endpoints: [" + ", ".join(f"{{{entry}}}" for entry in entries) + "]"
    with pytest.raises(ConfigError) as raised:
        parse_endpoints(text.encode())
    assert raised.value.place == f"endpoints{place}"
    assert problem in str(raised.value)


@given(st.binary(max_size=60))
def test_nothing_but_a_config_error_is_raised(text):
    try:
        endpoints = parse_endpoints(text)
    except ConfigError:
        return
    assert all(isinstance(endpoint, Endpoint) for endpoint in endpoints)


def test_an_endpoint_that_few_bytes_repeat_is_refused():
    entry = "- {{name: a{0}, address: 10.0.0.1, port: {0}, dataParallelSize: 4096}}\n"
    text = "endpoints:\n" + "".join(entry.format(number) for number in range(1, 1000))
    with pytest.raises(ConfigError, match="more than 16384 endpoints in all") as raised:
        parse_endpoints(text.encode())
    assert raised.value.place == "endpoints[4]"


@pytest.mark.parametrize("field", ["name", "address", "namespace"])
def test_a_long_field_is_not_repeated_in_its_error(field):
    entry = {"name": "a", "address": "10.0.0.1", "port": 1, field: "9" * 100_000}
    with pytest.raises(ConfigError) as raised:
        parse_endpoints(yaml.safe_dump({"endpoints": [entry]}).encode())
    assert raised.value.place == f"endpoints[0].{field}"
    assert len(str(raised.value)) < 500
