"""The command line: `epp` and its subcommands."""
