"""The command line: `epp serve`, `epp check` and `epp demo`."""
