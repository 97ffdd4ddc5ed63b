"""Protocols and formats of other systems, as data and state machines without I/O."""
