"""Runs over a Ray cluster. Those that want one are skipped where the extra `ray` is missing."""

import json
import socket
import subprocess
import sys

import pytest

from epp.cli.main import main

TRAFFIC = ("replay", "chat:sessions=6,rate=4", "--policy", "round-robin", "--pods", "2", "--json")


@pytest.fixture(scope="module")
def cluster():
    """A head of one node in this process; give its address."""
    ray = pytest.importorskip("ray", reason="wants warmpick[ray]")
    context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield context.address_info["gcs_address"]
    ray.shutdown()


def replayed(*more):
    command = [sys.executable, "-m", "epp", *TRAFFIC, "--seeds", "2", *more]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout) | {"command": ""}


@pytest.mark.filterwarnings("default")  # of Ray's own
def test_a_run_is_what_it_is_wherever_it_takes_place(cluster):
    assert replayed("--ray", cluster) == replayed("--jobs", "1")


def test_an_address_where_nobody_listens(capsys):
    pytest.importorskip("ray", reason="wants warmpick[ray]")
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        assert main([*TRAFFIC, "--ray", address]) == 2
    assert f"--ray: no Ray cluster answers at {address}" in capsys.readouterr().err
