"""Polling of pages over HTTP/1.1 and HTTP/2: a client of one page, and the poller of all."""
