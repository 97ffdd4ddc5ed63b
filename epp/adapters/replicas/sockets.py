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
"""The most messages that are queued for a peer that does not read, and from a peer."""
_HANDSHAKE_SECONDS: Final = 5
"""How long a connection may take to prove that it has the secret."""
_KEEPALIVE_SECONDS, _KEEPALIVES = 5, 2
"""Seconds of silence before a TCP keepalive probe, and the unanswered ones that end a connection.

ZMTP's own heartbeats end the process in libzmq 4.3.5 (its issues 4364 and 4767).
"""
_UNREAD_SECONDS: Final = 30
"""How long sent bytes may stay unacknowledged, or a peer may read nothing, until it is gone.

Meanwhile TCP sends no keepalive probes. It sends the bytes again, each time after twice as long,
for a quarter of an hour; after a network failure of a minute, recovery could take another minute.
"""
_CONNECT_SECONDS: Final = 2
"""How long connecting may take. The system would try for two minutes, ever more rarely."""
_TURN_SECONDS: Final = 0.001
"""How long messages are read at a stretch while other tasks wait for the event loop."""
_DOMAIN: Final = b"replicas"
_ZAP: Final = "inproc://zeromq.zap.01"
"""ZeroMQ RFC 27: where libzmq asks whether a connection is allowed."""
_ZAP_FRAMES: Final = 9
_WATCHED: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
_SEALED_BYTES: Final = 64
"""How many bytes encryption adds to a message, at most (CurveZMQ)."""


class SocketReader:
    """Calls `handle` with the frames of each message that a socket receives.

    `reached`: the last message could be sent.
    """

    def __init__(self, socket: Socket, handle: Callable[[list[bytes]], None]) -> None:
        self.socket: Final = socket
        self.reached = False
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
        """Read the queued messages, for one turn.

        zmq_getsockopt(3), ZMQ_FD: the descriptor is edge-triggered, so all messages must be read
        before waiting for it again.
        """
        end = self._loop.time() + _TURN_SECONDS
        while not self._closed:
            if not self._has_message():
                self._reads = False
                return
            try:
                self._handle(self.socket.recv_multipart(zmq.NOBLOCK))
            except BaseException:  # the next one is read all the same
                self._loop.call_soon(self._read)
                raise
            if self._loop.time() > end:
                self._loop.call_soon(self._read)
                return

    def _has_message(self) -> bool:
        """Return whether a message is queued; to ask costs a sixth of what `zmq.Again` does."""
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def send(self, frames: list[bytes]) -> bool:
        """Send a message if there is room; return whether there was."""
        if self._closed:
            return False
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK)
            self.reached = True
        except zmq.ZMQError:  # EAGAIN: it does not read; EHOSTUNREACH: the peer is gone
            self.reached = False
        # zmq_send(3) may consume the signal that a message has come.
        if self._has_message():
            self._read_soon()
        return self.reached

    def close(self) -> None:
        """Close the socket, and drop what is unsent."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._descriptor)
            self.socket.close(linger=0)


def tcp_endpoint(address: str, port: int) -> str:
    """Return the endpoint of an address and a port; port 0 is any free one."""
    host = f"[{address}]" if ":" in address else address or "*"
    return f"tcp://{host}:{port or '*'}"


def bound_port(socket: Socket) -> int:
    """Return the port of a socket that listens at a TCP endpoint."""
    bound = bytes(socket.getsockopt_string(zmq.LAST_ENDPOINT), "ascii")
    return int(bound.rpartition(b":")[2])


def listener(context: Context, keys: Keys, endpoint: str) -> Socket:
    """Return a socket that listens for replicas. Raises `zmq.ZMQError`."""
    options: dict[int, int | bytes] = {
        zmq.CURVE_SERVER: 1,
        zmq.CURVE_SECRETKEY: keys.secret,
        zmq.ZAP_DOMAIN: _DOMAIN,
        zmq.ZAP_ENFORCE_DOMAIN: 1,  # only what `Gatekeeper` allows
        zmq.ROUTER_MANDATORY: 1,
        zmq.ROUTER_HANDOVER: 1,
    }
    socket = _socket(context, zmq.ROUTER, options)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError:
        socket.close(linger=0)
        raise
    return socket


def connection(context: Context, keys: Keys, settings: ReplicaSettings, endpoint: str) -> Socket:
    """Return a socket that connects to a replica, now or once that listens."""
    first, most = settings.reconnect
    options: dict[int, int | bytes] = {
        zmq.CURVE_SERVERKEY: keys.public,
        zmq.CURVE_PUBLICKEY: keys.public,
        zmq.CURVE_SECRETKEY: keys.secret,
        zmq.IMMEDIATE: 1,  # nothing is queued before it is connected
        zmq.CONNECT_TIMEOUT: 1000 * _CONNECT_SECONDS,
        zmq.RECONNECT_IVL: round(1000 * first),
        zmq.RECONNECT_IVL_MAX: round(1000 * most),
    }
    socket = _socket(context, zmq.DEALER, options)
    socket.connect(endpoint)
    return socket


def _socket(context: Context, kind: int, options: dict[int, int | bytes]) -> Socket:
    """Return a socket of a kind with its limits and these options."""
    limits: dict[int, int | bytes] = {
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
    socket = context.socket(kind)
    for option, value in (limits | options).items():
        socket.setsockopt(option, value)
    return socket


class Gatekeeper:
    """Allows connections with the replicas' key, and refuses others (ZeroMQ RFC 27, ZAP)."""

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
        """Stop answering: no more connections are allowed."""
        self._reader.close()


class StrangerWatch:
    """Calls `stranger` for each connection to a socket that ends before it is authenticated.

    libzmq does not say which connection was authenticated. If a replica's ends while a stranger's
    is being authenticated, the stranger is counted at once and not later.
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
        """Stop watching."""
        self._watched.disable_monitor()
        self._reader.close()
