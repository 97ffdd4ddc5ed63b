"""Epochs, by which replicas see whether they mean the same engine, or the same start of it."""

from zlib import crc32

from epp.model.endpoint import Endpoint


def engine_epoch(endpoint: Endpoint) -> int:
    """Return a number that distinguishes the engines that have an endpoint's name in turn."""
    uid, target, rank = endpoint.engine
    return crc32(f"{uid} {target} {rank}".encode(errors="surrogateescape"))


def cache_epoch(endpoint: Endpoint, started_at: float | None) -> int:
    """Return a number that distinguishes the starts of an endpoint's engine.

    `started_at` is when its process started, as it reports.
    """
    uid, target, rank = endpoint.engine
    return crc32(f"{uid} {target} {rank} {started_at}".encode(errors="surrogateescape"))
