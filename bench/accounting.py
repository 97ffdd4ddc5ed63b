"""What a process tree cost, by the operating system's own accounting."""

import asyncio
import time

import msgspec
import psutil


def _tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def cpu_seconds(pid: int) -> float:
    """User and system time of the process and its living descendants, in seconds."""
    times = [process.cpu_times() for process in _tree(pid)]
    return sum(time.user + time.system for time in times)


def resident_mb(pid: int) -> float:
    """Resident memory of the process and its descendants, in units of a million bytes."""
    return float(sum(process.memory_info().rss for process in _tree(pid))) / 1e6


class Meter(msgspec.Struct, kw_only=True):
    """CPU of one process tree. `idle_cores` is taken off whatever is measured afterwards."""

    pid: int
    idle_cores: float = 0.0
    _cpu: float = 0.0
    _at: float = 0.0

    def start(self) -> None:
        """Open a window."""
        self._cpu = cpu_seconds(self.pid)
        self._at = time.monotonic()

    def stop(self) -> float:
        """Close the window: CPU seconds beyond idling, never negative."""
        used = cpu_seconds(self.pid) - self._cpu
        return max(0.0, used - self.idle_cores * (time.monotonic() - self._at))


async def idle_cores(pid: int, seconds: float) -> float:
    """Cores that the process tree uses when nobody asks it anything."""
    meter = Meter(pid=pid)
    meter.start()
    await asyncio.sleep(seconds)
    return meter.stop() / seconds
