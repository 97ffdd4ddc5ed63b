"""Tests marked `vllm` need real vLLM: without it they are skipped loudly, or fail on demand.

A conftest imports the hook and so has it for the tests beside it and below.
"""

import importlib
import os

import pytest

engine = importlib.import_module("model_server.engine")  # by name: mypy cannot find it
DEMAND = "WARMPICK_REQUIRE_VLLM"


@pytest.hookimpl(tryfirst=True)  # before fixtures, which start vLLM
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let a test run, fail or be skipped with one line that says what is missing."""
    if item.get_closest_marker("vllm") is None or engine.is_installed():
        return
    if os.environ.get(DEMAND) == "1":
        pytest.fail(engine.HOW_TO_GET_VLLM)
    reason = f"NOT TESTED: {item.name}: {engine.HOW_TO_GET_VLLM}"
    capture = item.config.pluginmanager.get_plugin("capturemanager")
    terminal = item.config.pluginmanager.get_plugin("terminalreporter")
    if capture is not None and terminal is not None:
        with capture.global_and_fixture_disabled():
            terminal.write_line(f"\n{reason}", red=True, bold=True)
    pytest.skip(reason)
