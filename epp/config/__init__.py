"""The configuration: the file as types, the registry of plug-ins, producers."""
