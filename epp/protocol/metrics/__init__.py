"""Metrics pages and ORCA load reports of model servers, read into `Load`s."""
