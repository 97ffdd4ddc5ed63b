"""Every Envoy configuration for operators removes the control headers of clients, all of them."""

import pytest

from epp.policy.disaggregation import handler, kv_source
from epp.policy.handlers import DATA_PARALLEL
from epp.policy.producers import identity, predicted_latency
from epp.protocol.extproc import names
from tests.test_envoy_clusters import FROM_NOTHING, MARK, RENDERED, configurations, given

GIVEN = sorted({"docs/gateway.md", RENDERED, FROM_NOTHING, *given()})


def managers(config):
    """The HTTP managers that ask the picker."""
    for listener in config[MARK]["listeners"]:
        for chain in listener["filter_chains"]:
            for each in chain["filters"]:
                manager = each["typed_config"]
                filters = [one["name"] for one in manager["http_filters"]]
                if "envoy.filters.http.ext_proc" in filters:
                    yield manager


@pytest.mark.parametrize("name", GIVEN)
def test_a_gateway_removes_before_and_behind_the_picker(name):
    found = [manager for config in configurations(name) for manager in managers(config)]
    assert found, "no configuration here asks the picker"
    for manager in found:
        (early,) = manager["early_header_mutation_extensions"]
        removed = [each["remove"] for each in early["typed_config"]["mutations"]]
        assert sorted(removed) == sorted(names.HEADERS_OF_PICKER)
        (host,) = manager["route_config"]["virtual_hosts"]
        behind = set(host["request_headers_to_remove"]) - {names.DESTINATION}
        assert behind == set(names.HEADERS_OF_CLIENTS)


def test_what_clients_tell_the_picker_reaches_it():
    read = {
        *names.OBJECTIVE,
        *names.FAIRNESS,
        *names.REWRITE,
        *predicted_latency.TTFT_HEADERS,
        *predicted_latency.TPOT_HEADERS,
    }
    assert read <= set(names.HEADERS_OF_CLIENTS)
    assert set(identity._FAIRNESS_HEADERS) == set(names.FAIRNESS)


def test_what_the_picker_tells_model_servers_reaches_them():
    told = {
        names.DESTINATION,
        names.RANK,
        handler.PREFILLER,
        handler.ENCODERS,
        kv_source.KV_SOURCE,
        DATA_PARALLEL,
        *names.LATER_NAMES.values(),
        names.DECISION,
    }
    assert told <= set(names.HEADERS_OF_PICKER)
    assert set(names.HEADERS_OF_PICKER).isdisjoint(names.HEADERS_OF_CLIENTS)
