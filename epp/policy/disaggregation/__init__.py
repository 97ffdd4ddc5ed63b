"""Requests whose encoding, prefill and decoding run at endpoints of their own."""
