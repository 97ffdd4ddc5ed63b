"""Every Envoy configuration for operators takes what model servers take."""

import pytest

from tests.test_control_headers import GIVEN, managers
from tests.test_envoy_clusters import configurations


@pytest.mark.parametrize("name", GIVEN)
def test_old_clients_and_websockets_are_served(name):
    for config in configurations(name):
        for manager in managers(config):
            assert manager["http_protocol_options"] == {
                "accept_http_10": True,
                "default_host_for_http_10": "localhost",
            }
            assert manager["upgrade_configs"] == [{"upgrade_type": "websocket"}]
