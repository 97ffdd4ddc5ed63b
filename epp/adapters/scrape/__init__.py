"""Polling of metrics pages over HTTP/1.1."""
