"""Tests marked `vllm` need real vLLM: without it they are skipped loudly, or fail on demand."""

import os

import pytest
from model_server.engine import HOW_TO_GET_VLLM, is_installed


def pytest_runtest_setup(item):
    if item.get_closest_marker("vllm") is None or is_installed():
        return
    if os.environ.get("WARMPICK_REQUIRE_VLLM") == "1":
        pytest.fail(HOW_TO_GET_VLLM)
    plugin = item.config.pluginmanager.get_plugin
    with plugin("capturemanager").global_and_fixture_disabled():
        line = f"\nSKIPPED {item.name}: {HOW_TO_GET_VLLM}"
        plugin("terminalreporter").write_line(line, red=True, bold=True)
    pytest.skip(HOW_TO_GET_VLLM)
