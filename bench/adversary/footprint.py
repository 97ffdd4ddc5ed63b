"""What a process holds while it is attacked: memory and files, by /proc."""

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

MB = 1 << 20
LIMIT_MB = 2048
"""The chart's memory limit: what passes it is killed here as the kernel kills it there."""
_SAMPLE_S = 0.02
_RESET_PEAK = "5"
"""What /proc/PID/clear_refs takes to set `VmHWM` back to the present (proc(5))."""


class Footprint:
    """One process's memory in MiB, watched while the context is open."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="footprint", daemon=True)
        self.killed = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def reset(self) -> float:
        """Let the peak begin at the present, which is returned."""
        with suppress(OSError):
            Path(f"/proc/{self._pid}/clear_refs").write_text(_RESET_PEAK, encoding="ascii")
        return self.now

    @property
    def now(self) -> float:
        """Resident at present; 0 of a process that has ended."""
        return self._status("VmRSS:")

    @property
    def peak(self) -> float:
        """The most that was resident since `reset`."""
        return LIMIT_MB if self.killed else self._status("VmHWM:")

    @property
    def files(self) -> int:
        """Open files, of which a connection is one."""
        try:
            return sum(1 for _ in Path(f"/proc/{self._pid}/fd").iterdir())
        except OSError:
            return 0

    def _status(self, name: str) -> float:
        with suppress(OSError):
            text = Path(f"/proc/{self._pid}/status").read_text(encoding="ascii")
            for line in text.splitlines():
                if line.startswith(name):
                    return int(line.split()[1]) / 1024
        return 0.0

    def _watch(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            if self.now > LIMIT_MB and not self.killed:
                self.killed = True
                with suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)
