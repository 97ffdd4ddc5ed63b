"""The command `epp`: its sub-commands, its flags, and what it says of unusable ones."""
