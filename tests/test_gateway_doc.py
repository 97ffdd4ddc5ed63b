"""The Envoy configurations in docs/gateway.md are ones that Envoy takes."""

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.envoy_config import complaint

PAGE = (Path(__file__).parents[1] / "docs" / "gateway.md").read_text()
COMPLETE, OVERRIDE, TLS = (
    yaml.safe_load(block)
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    if not block.startswith("apiVersion:")
)


def cluster(config: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in config["static_resources"]["clusters"] if each["name"] == name]
    assert isinstance(found, dict)
    return found


def original_dst() -> dict[str, Any]:
    return deepcopy(COMPLETE)


def override_host() -> dict[str, Any]:
    config = original_dst()
    pool = cluster(config, "pool")
    for key in ("lb_policy", "original_dst_lb_config"):
        del pool[key]
    where = {"socket_address": {"address": "127.0.0.1", "port_value": 8000}}
    pool |= {"type": "STATIC", **OVERRIDE}
    pool["load_assignment"] = {
        "cluster_name": "pool",
        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": where}}]}],
    }
    return config


def tls() -> dict[str, Any]:
    config = original_dst()
    cluster(config, "epp").update(TLS)
    return config


@pytest.mark.parametrize("make", [original_dst, override_host, tls])
def test_envoy_takes_it(make, tmp_path):
    path = tmp_path / "envoy.yaml"
    path.write_text(yaml.safe_dump(make()))
    assert complaint(path) == ""
