"""`python -m model_server.leash PARENT COMMAND...`: a command that does not outlive its parent.

Linux sends the command SIGTERM when the process PARENT (a process id) is gone, however it went,
SIGKILL included. The request survives execve, so this process becomes the command.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(parent: int, command: list[str]) -> None:
    """Become `command`, or exit if the parent ended before the kernel could watch it."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:  # elsewhere than on Linux the command runs without a leash
        prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() == parent:
        os.execvp(command[0], command)  # noqa: S606 - a list of arguments and no shell is the point


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
