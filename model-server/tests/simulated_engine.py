"""The simulator with the command line of `vllm serve`: flags that it has not are left out."""

import sys
from pathlib import Path

from model_server.simulator.cli import main

KNOWN = {
    "--host": "--host",
    "--port": "--port",
    "--served-model-name": "--served-model-name",
    "--max-loras": "--max-loras",
    "--shutdown-timeout": "--drain-seconds",
    "--kv-events-config": "--kv-events-config",
}
"""vLLM's flags, and what the simulator calls them."""


def known(arguments):
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    return [word for flag, value in pairs if flag in KNOWN for word in (KNOWN[flag], value)]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("\n".join(sys.argv[2:]))
    sys.exit(main([*known(sys.argv[2:]), "--step-ms", "20"]))
