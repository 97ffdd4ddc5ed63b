"""This machine's own addresses."""

import contextlib
import socket


def loopbacks():
    """The loopback address of each family that this machine has, as in a URL."""
    found = ["127.0.0.1"]
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        found.append("[::1]")
    return found
