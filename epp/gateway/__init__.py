"""Envoy in front of model servers with the picker beside it, as child processes of a command."""
