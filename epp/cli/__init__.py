"""The command `epp`: its subcommands, their flags, and errors as one line on stderr."""
