"""The ZMQ sockets of a replica: encrypted, authenticated, bounded, and read on the event loop."""

import asyncio
from collections.abc import Callable
from typing import Final

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from epp.adapters.replicas.settings import Keys, ReplicaSettings
from epp.protocol.replicas.messages import LONGEST

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]

_QUEUE: Final = 10_000
"""Messages that are queued for a peer that does not read (ZMQ_SNDHWM), and from it."""
_HANDSHAKE_SECONDS: Final = 5
"""How long a connection may take to prove that it has the secret."""
_KEEPALIVE_SECONDS, _KEEPALIVES = 5, 2
"""Silence after which TCP asks a peer whether it is there, and how often, before it is gone.

ZMTP's own heartbeats end the process in libzmq 4.3.5 (its issues 4364 and 4767).
"""
_UNREAD_SECONDS: Final = 30
"""How long what was sent may be on its way, or a peer may read nothing, until it is gone.

While anything is on its way TCP asks nothing: it sends that again, each time after twice as long,
for a quarter of an hour. A network that was cut for a minute would be mended a minute later.
"""
_CONNECT_SECONDS: Final = 2
"""How long it may take to connect. The system would try for two minutes, more rarely each time."""
_TURN_SECONDS: Final = 0.001
"""How long messages are read at a stretch while others wait for the event loop."""
_DOMAIN: Final = b"replicas"
_ZAP: Final = "inproc://zeromq.zap.01"
"""ZeroMQ RFC 27: where libzmq asks whether a connection may be."""
_ZAP_FRAMES: Final = 9
_WATCHED: Final = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
)
_SEALED_BYTES: Final = 64
"""What a message is longer by where it is encrypted, at most (CurveZMQ)."""


class SocketReader:
    """Calls `handle` with the frames of each message that a socket receives."""

    def __init__(self, socket: Socket, handle: Callable[[list[bytes]], None]) -> None:
        self.socket: Final = socket
        self._handle: Final = handle
        self._loop: Final = asyncio.get_running_loop()
        self._descriptor: Final[int] = socket.FD
        self._reads = False  # or will, in its turn
        self._closed = False
        self._loop.add_reader(self._descriptor, self._read_now)
        self._read_soon()

    def _read_now(self) -> None:
        if not self._reads:
            self._reads = True
            self._read()

    def _read_soon(self) -> None:
        if not self._reads:
            self._reads = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        """Read what is there, for a turn.

        zmq_getsockopt(3), ZMQ_FD: the descriptor signals edge-triggered, so that all is to be read
        before it is waited for again.
        """
        end = self._loop.time() + _TURN_SECONDS
        while not self._closed:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                self._reads = False
                return
            try:
                self._handle(frames)
            except BaseException:  # the next one is read all the same
                self._loop.call_soon(self._read)
                raise
            if self._loop.time() > end:
                self._loop.call_soon(self._read)
                return

    def send(self, frames: list[bytes]) -> bool:
        """Send a message if there is room for it; return whether there was."""
        if self._closed:
            return False
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK)
        except (zmq.Again, zmq.ZMQError):  # EHOSTUNREACH: the peer is gone
            return False
        finally:
            # zmq_send(3) takes the signal that something has come as well.
            if int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                self._read_soon()
        return True

    def close(self) -> None:
        """Close the socket, with what is not sent yet."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._descriptor)
            self.socket.close(linger=0)


def tcp_endpoint(address: str, port: int) -> str:
    """Return where a replica listens; port 0 is any free one."""
    host = f"[{address}]" if ":" in address else address or "*"
    return f"tcp://{host}:{port or '*'}"


def bound_port(socket: Socket) -> int:
    """Return the port of a socket that listens at a TCP endpoint."""
    bound = bytes(socket.getsockopt_string(zmq.LAST_ENDPOINT), "ascii")
    return int(bound.rpartition(b":")[2])


def listener(context: Context, keys: Keys, endpoint: str) -> Socket:
    """Return a socket that listens for replicas. Raises `zmq.ZMQError`."""
    socket = context.socket(zmq.ROUTER)
    _set_limits(socket)
    options: dict[int, int | bytes] = {
        zmq.CURVE_SERVER: 1,
        zmq.CURVE_SECRETKEY: keys.secret,
        zmq.ZAP_DOMAIN: _DOMAIN,
        zmq.ZAP_ENFORCE_DOMAIN: 1,  # nobody is let in unless `Gatekeeper` says so
        zmq.ROUTER_MANDATORY: 1,
        zmq.ROUTER_HANDOVER: 1,
    }
    for option, value in options.items():
        socket.setsockopt(option, value)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError:
        socket.close(linger=0)
        raise
    return socket


def connection(context: Context, keys: Keys, settings: ReplicaSettings, endpoint: str) -> Socket:
    """Return a socket that connects to a replica, now or once it is there."""
    socket = context.socket(zmq.DEALER)
    _set_limits(socket)
    first, most = settings.reconnect
    options: dict[int, int | bytes] = {
        zmq.CURVE_SERVERKEY: keys.public,
        zmq.CURVE_PUBLICKEY: keys.public,
        zmq.CURVE_SECRETKEY: keys.secret,
        zmq.IMMEDIATE: 1,  # nothing is queued for one that is not there
        zmq.CONNECT_TIMEOUT: 1000 * _CONNECT_SECONDS,
        zmq.RECONNECT_IVL: round(1000 * first),
        zmq.RECONNECT_IVL_MAX: round(1000 * most),
    }
    for option, value in options.items():
        socket.setsockopt(option, value)
    socket.connect(endpoint)
    return socket


def _set_limits(socket: Socket) -> None:
    options = {
        zmq.SNDHWM: _QUEUE,
        zmq.RCVHWM: _QUEUE,
        zmq.MAXMSGSIZE: LONGEST + _SEALED_BYTES,
        zmq.HANDSHAKE_IVL: 1000 * _HANDSHAKE_SECONDS,
        zmq.TCP_KEEPALIVE: 1,
        zmq.TCP_KEEPALIVE_IDLE: _KEEPALIVE_SECONDS,
        zmq.TCP_KEEPALIVE_INTVL: _KEEPALIVE_SECONDS,
        zmq.TCP_KEEPALIVE_CNT: _KEEPALIVES,
        zmq.TCP_MAXRT: 1000 * _UNREAD_SECONDS,
        zmq.IPV6: 1,
    }
    for option, value in options.items():
        socket.setsockopt(option, value)


class Gatekeeper:
    """Lets those in that have the replicas' key (ZeroMQ RFC 27, ZAP); the others it refuses."""

    def __init__(self, context: Context, keys: Keys) -> None:
        self._key: Final = z85.decode(keys.public)
        socket = context.socket(zmq.ROUTER)
        socket.bind(_ZAP)
        self._reader: Final = SocketReader(socket, self._answer)

    def _answer(self, frames: list[bytes]) -> None:
        if len(frames) < _ZAP_FRAMES - 1:
            return
        sender, _, version, request, domain, *_ = frames
        key = frames[8] if len(frames) == _ZAP_FRAMES and frames[7] == b"CURVE" else b""
        status = b"200" if domain == _DOMAIN and key == self._key else b"400"
        self._reader.send([sender, b"", version, request, status, b"", b"", b""])

    def close(self) -> None:
        """Let nobody in any more."""
        self._reader.close()


class StrangerWatch:
    """Calls `stranger` for each connection to a socket that ends before it proved who it is.

    libzmq does not say which connection proved it. If one of a replica ends while a stranger's has
    begun, the stranger is counted then and not later.
    """

    def __init__(self, socket: Socket, stranger: Callable[[], None]) -> None:
        self._stranger: Final = stranger
        self._unproven = 0
        self._watched: Final = socket
        self._reader: Final = SocketReader(socket.get_monitor_socket(_WATCHED), self._saw)

    def _saw(self, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)["event"]
        if event == zmq.EVENT_ACCEPTED:
            self._unproven += 1
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._unproven -= 1
        elif self._unproven > 0:  # it failed, or was given up
            self._unproven -= 1
            self._stranger()

    def close(self) -> None:
        """Watch no longer."""
        self._watched.disable_monitor()
        self._reader.close()
