"""Tests marked `vllm` need real vLLM."""

from tests.needs_vllm import pytest_runtest_setup

__all__ = ["pytest_runtest_setup"]
