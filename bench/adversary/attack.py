"""An attack as data: what is done, to what kind of picker, and what may come of it."""

import os
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from bench.adversary.ground import Ground, Setting

WORST_MS = 50.0 if (os.cpu_count() or 1) > 2 else 100.0
"""What others may wait more than those of a picker that is let be; the attacker has one core."""
MAX_MB = 256.0
BYTES_FACTOR = 4.0
FLOOR_MB = 48.0
"""Growth that is not judged: what allocators take at once, code that is used the first time."""
REMAINS_MB = 128.0
"""Freed memory that glibc keeps (64 MiB, `epp.system.memory`), and caches that fill."""
SETTLE_S = 10.0

Group = Literal[
    "bodies",
    "pages",
    "tls",
    "labels",
    "uploads",
    "endpoints-file",
    "descriptors",
    "frames",
    "connections",
    "responses",
    "more",
]
Strike = Callable[[Ground], Awaitable[int]]
"""Attacks, and returns the bytes that it sent. Raises `BoundBroken`."""


class BoundBroken(Exception):
    """Something else than latency and memory is not as it must be; the message says what."""


class Attack(msgspec.Struct, frozen=True, kw_only=True):
    """`seconds` is the longest it may go on. `least_mb` may be taken whatever was sent."""

    name: str
    group: Group
    strike: Strike
    setting: Setting = Setting()
    seconds: float = 15.0
    worst_ms: float = WORST_MS
    least_mb: float = FLOOR_MB
    most_mb: float = MAX_MB


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one attack. `broken` says every bound that was not kept, in words."""

    name: str
    group: str
    transport: str
    worst_ms: float
    control_ms: float
    held_ms: float
    """The event loop was held for this long at most, by the bounds of its histogram; CPU time."""
    requests: int
    errors: int
    sent_mb: float
    grown_mb: float
    after_mb: float
    seconds: float
    broken: tuple[str, ...]


def allowed_mb(attack: Attack, sent: int) -> float:
    """The growth of memory that this many bytes may cause."""
    return max(attack.least_mb, min(attack.most_mb, BYTES_FACTOR * sent / (1 << 20)))
