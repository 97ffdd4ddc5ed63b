"""How the C library deals with the memory of messages."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_KEPT_BYTES = 64 << 20
_MOST_OF_HEAP = 32 << 20


def keep_freed() -> None:
    """Let freed memory be used again, 64 MiB of it at most, in place of giving it back at once.

    glibc gives back what is large as soon as it is free: a body of 220 KB then takes two thirds
    of its time to fault the same pages in again. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _MOST_OF_HEAP)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
