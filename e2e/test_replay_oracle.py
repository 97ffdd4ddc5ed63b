"""The scheduler and blocks of simulated engines beside vLLM's own, step by step."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.vllm
def test_every_step_hit_preemption_and_free_queue_is_vllms(tmp_path):
    model = tmp_path / "tiny"
    path = os.pathsep.join(map(str, (ROOT, ROOT / "model-server", ROOT / "model-server" / "tests")))

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *command],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    run("model_server.tiny_model", str(model), "--size", "tiny").check_returncode()
    compared = run("e2e.replay_oracle", str(model), "25")
    assert compared.returncode == 0, compared.stderr[-3000:]
    totals = json.loads(compared.stdout.splitlines()[-1])
    assert totals["steps"] > 10_000
    assert totals["at_once"] > 3000
    assert totals["preemptions"] > 100
    assert totals["hit_tokens"] > 50_000
