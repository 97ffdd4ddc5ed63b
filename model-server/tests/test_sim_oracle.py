"""The simulator's scheduler and pool beside vLLM's own, step by step."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ORACLE = Path(__file__).with_name("oracle.py")


@pytest.mark.vllm
def test_every_step_hit_free_queue_and_event_is_vllms(tmp_path):
    model = tmp_path / "tiny"
    build = [sys.executable, "-m", "model_server.tiny_model", str(model), "--size", "tiny"]
    subprocess.run(build, check=True, capture_output=True, timeout=120)
    compared = subprocess.run(
        [sys.executable, str(ORACLE), str(model), "25"],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert compared.returncode == 0, compared.stderr[-3000:]
    totals = json.loads(compared.stdout.splitlines()[-1])
    assert totals["steps"] > 5000
    assert totals["preemptions"] > 20
    assert totals["hit_tokens"] > 10_000
    assert totals["events"] > 5000
    assert totals["resets"] > 20
