"""Modules that a start must not import: they are slow, and the configuration needs none."""

import subprocess
import sys

from tests.native.built import needs_native

ABSENT = (
    *("aiohttp", "colorama", "cryptography", "difflib", "epp.protocol.replicas.facts", "grpc"),
    *("google.protobuf", "importlib.metadata", "jinja2", "kubernetes"),
    *("prometheus_client", "rich", "statistics", "tempfile", "tokenizers", "zmq"),
)
PROBE = """
import sys
import epp.cli.main, epp.app.pools
from epp import compiled
compiled.summary()
epp.cli.main._parser().parse_args(["serve"])
from epp.adapters.extproc.transports import health_server, server_class
from epp.adapters.extproc.health import HealthServices
server_class("native"), health_server("native", HealthServices())
print(*sys.modules)
"""


@needs_native
def test_nothing_is_loaded_that_is_not_needed():
    said = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert sorted(set(ABSENT) & set(said.stdout.split())) == []
