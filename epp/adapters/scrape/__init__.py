"""Polling of metrics pages over HTTP/1.1: a client of one page, and the poller of all."""
