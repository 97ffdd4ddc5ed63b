"""The memory of this process: its limit, and what its allocator keeps of what is freed."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP, _STATM = Path("/proc/self/cgroup"), Path("/proc/self/statm")

# Parameters of mallopt(3), as in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MAX_KEPT_BYTES = 64 << 20
_MAX_HEAP_BYTES = 32 << 20
"""The largest M_MMAP_THRESHOLD that glibc accepts on 64 bits (DEFAULT_MMAP_THRESHOLD_MAX)."""


def memory_limit() -> int:
    """Return the bytes that this process may have: its container's, or the machine's."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([installed, *filter(None, map(_limit_in, _limits()))])


def _limits() -> Iterator[Path]:
    """Yield the files that may limit this process: of its control group, and of its parents."""
    yield _CGROUPS / "memory" / "memory.limit_in_bytes"  # cgroup v1, as a container sees its own
    try:
        group = _OWN_CGROUP.read_text(encoding="utf-8").partition("0::")[2].splitlines()[0]
    except (OSError, IndexError):
        group = "/"
    # cgroups(7): "0::" and the group's path, "/" if the container has a namespace of its own.
    own = _CGROUPS / group.lstrip("/")
    for folder in (own, *own.parents):
        yield folder / "memory.max"


def _limit_in(path: Path) -> int | None:
    """Return a control group's limit in bytes; None if it has none."""
    try:
        return int(path.read_bytes())
    except (OSError, ValueError):  # "max": there is no limit
        return None


def resident_bytes() -> int:
    """Return how much memory this process has; 0 if that is not known."""
    try:
        # proc(5), statm: pages of all, of what is resident, ...
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


@cache
def _libc() -> Any:  # noqa: ANN401 (what ctypes gives)
    import ctypes  # noqa: PLC0415 (only a process that serves needs it)

    return ctypes.CDLL(None)


def keep_freed_memory() -> None:
    """Make glibc reuse up to 64 MiB of freed memory instead of returning it to the kernel.

    By default a body of 220 KB is unmapped as soon as it is freed, and faulting the same pages in
    again takes two thirds of the time of its request. Other C libraries are left as they are.
    """
    mallopt = getattr(_libc(), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAX_HEAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _MAX_KEPT_BYTES)


def trim_freed_memory() -> None:
    """Return freed memory to the kernel, from amid the heap too (malloc_trim(3)).

    Takes some 0.1 s for each GB, without the interpreter's lock.
    """
    malloc_trim = getattr(_libc(), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
