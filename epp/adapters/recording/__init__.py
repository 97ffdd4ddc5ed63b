"""Recordings of traffic: noted on the event loop, written by a thread."""
