"""Metrics pages and load reports of model servers, read as `Load`s."""
