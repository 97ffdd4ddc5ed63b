"""A port of this machine for servers that come and go, or never come."""

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """Give a port that is free to those who name it, and given to nobody who asks for any.

    Between two servers, a port that is not held may be given to another test, whose server would
    then be reached instead. Connections to one that is held are refused while nobody listens:
    SO_REUSEADDR lets others bind it as long as the socket that holds it does not listen itself.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        yield port
