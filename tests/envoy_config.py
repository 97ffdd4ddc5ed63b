"""What Envoy itself says of a configuration."""

import subprocess
from pathlib import Path

from epp.gateway.envoy import envoy_binary


def complaint(path: Path) -> str:
    """Why Envoy would not start with this file; empty where it would."""
    done = subprocess.run(
        [str(envoy_binary()), "--mode", "validate", "--log-level", "error", "-c", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    taken = done.returncode == 0 and "OK" in done.stdout
    return "" if taken else done.stderr or f"status {done.returncode}: {done.stdout}"
