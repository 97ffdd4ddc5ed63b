"""`python -m model_server.simulator`."""

import sys

from model_server.simulator.cli import main

if __name__ == "__main__":
    sys.exit(main())
