"""The connections of one replica with all others: each sends to each, and nothing waits.

A replica listens at one port, and connects to the ports of all others, to which it sends. Answers
come back on the connection that brought the question. A message that cannot be sent at once is
dropped: receivers find out what they miss. The workers of one process are replicas, each with a
socket in a common folder; if there are replicas elsewhere, each worker has a port, too.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

import zmq

from epp.adapters.replicas.settings import Keys, ReplicaSettings
from epp.adapters.replicas.sockets import (
    Context,
    Gatekeeper,
    SocketReader,
    StrangerWatch,
    bound_port,
    connection,
    listener,
    tcp_endpoint,
)
from epp.errors import ConfigError
from epp.protocol.replicas.messages import THIS_IS_YOU, Receive
from epp.system.host_names import HostNames, of_one_family
from epp.system.logs import Log

_log = Log(__name__)

_MAX_PEERS: Final = 256
_MAX_SOCKETS: Final = 4 * _MAX_PEERS
_LINGER_SECONDS: Final = 0.1
"""How long sockets, which send in a thread of their own, have for unsent messages."""


class ReplicaMesh:
    """Sends messages to all other replicas, and passes what they send to `receive`.

    What cannot be sent at once is dropped, and counted as `unsent`. `stranger` is called for each
    connection that is refused because it lacks the secret. Messages of other workers of this
    process go to `near`. Before `open` and after `close` nothing is sent.
    """

    def __init__(  # noqa: PLR0913 (where it listens, and whom it calls)
        self,
        settings: ReplicaSettings,
        keys: Keys,
        bind_address: str,
        receive: Receive,
        stranger: Callable[[], None],
        *,
        near: Receive | None = None,
    ) -> None:
        self.unsent = self.port = 0
        self._settings: Final = settings
        self._keys: Final = keys
        self._bind_address: Final = bind_address
        self._six: Final = ":" in bind_address and bind_address != "::"
        self._receive: Final = receive
        self._near: Final = near or receive
        self._stranger: Final = stranger
        self._names: Final = HostNames(answers=self._answering)
        self._connections: dict[str, SocketReader] = {}
        self._own: set[str] = set()
        self._problems: set[str] = set()
        self._context: Context | None = None
        self._soon: Final = asyncio.Event()
        self._closing: list[Callable[[], None]] = []

    @property
    def known(self) -> int:
        """How many addresses of other replicas are known."""
        return len(self._connections)

    def open(self) -> None:
        """Listen. Raises `ConfigError` if the port cannot be bound."""
        context: Context = zmq.Context()
        context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        self._context = context
        gatekeeper = Gatekeeper(context, self._keys)
        self._closing.append(gatekeeper.close)
        for endpoint, receive in self._endpoints():
            self._listen(context, endpoint, receive)

    def _endpoints(self) -> Iterator[tuple[str, Receive]]:
        """Yield each endpoint to listen at, and what handles the messages that come there."""
        settings = self._settings
        if settings.siblings is not None:
            yield settings.siblings.endpoint(settings.siblings.number), self._near
        if settings.peers or settings.siblings is None:
            yield tcp_endpoint(self._bind_address, settings.port), self._receive

    def _listen(self, context: Context, endpoint: str, receive: Receive) -> None:
        try:
            socket = listener(context, self._keys, endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(
                f"cannot listen for replicas at {endpoint}: {error}", "--replicas-port"
            ) from error
        if endpoint.startswith("tcp:"):
            self.port = bound_port(socket)

        def received(frames: list[bytes]) -> None:
            sender, *rest = frames
            receive(_only(rest), lambda answer: reader.send([sender, answer]))

        reader = SocketReader(socket, received)
        watch = StrangerWatch(socket, self._stranger)
        self._closing += (watch.close, reader.close)

    async def run(self) -> None:
        """Follow the addresses of the others; never returns."""
        while True:
            await self.look_up()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.look_up):
                    await self._soon.wait()
            self._soon.clear()

    def look_up_soon(self) -> None:
        """Look up addresses now: a message came from a replica at an unknown one."""
        self._soon.set()

    async def look_up(self) -> None:
        """Look up the names of the others, and connect to new addresses."""
        loop, siblings = asyncio.get_running_loop(), self._settings.siblings
        found = dict.fromkeys(siblings.others() if siblings is not None else ())
        for peer in self._settings.peers:
            resolved = await loop.run_in_executor(None, self._names.resolve, peer.host, peer.port)
            if resolved.problem and resolved.problem not in self._problems:
                self._problems.add(resolved.problem)
                _log.warning("replicas.name", problem=resolved.problem)
            # One that was reached by both families would be told, and counted, twice.
            addresses = of_one_family(resolved.addresses, six=self._six)
            found |= dict.fromkeys(tcp_endpoint(ip, peer.port) for ip in addresses)
        self._connect_to([each for each in found if each not in self._own][:_MAX_PEERS])

    def _answering(self, addresses: Collection[str], port: int) -> Collection[str]:
        """Return the addresses that messages reach: only strangers try without the secret."""
        reached = {endpoint for endpoint, each in list(self._connections.items()) if each.reached}
        return [each for each in addresses if tcp_endpoint(each, port) in reached]

    def _connect_to(self, endpoints: list[str]) -> None:
        if self._context is None:
            return
        for gone in self._connections.keys() - set(endpoints):
            self._connections.pop(gone).close()
        for endpoint in endpoints:
            if endpoint not in self._connections:
                socket = connection(self._context, self._keys, self._settings, endpoint)
                answered = partial(self._answered, endpoint)
                self._connections[endpoint] = SocketReader(socket, answered)

    def send(self, message: bytes) -> int:
        """Send a message to all; return how many it could be sent to."""
        sent = sum([each.send([message]) for each in self._connections.values()])
        self.unsent += len(self._connections) - sent
        return sent

    def _answered(self, endpoint: str, frames: list[bytes]) -> None:
        """Handle a message that came on a connection of this replica's own."""
        if frames == [THIS_IS_YOU]:
            self._own.add(endpoint)
            self._connections.pop(endpoint).close()
            return
        connected = self._connections[endpoint]
        receive = self._receive if endpoint.startswith("tcp:") else self._near
        receive(_only(frames), lambda answer: connected.send([answer]))

    async def stop(self) -> None:
        """Send the rest, and close."""
        await asyncio.sleep(_LINGER_SECONDS)
        self.close()

    def close(self) -> None:
        """Close all connections."""
        for each in self._connections.values():
            each.close()
        self._connections = {}
        for close in self._closing:
            close()
        self._closing = []
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None


def _only(frames: list[bytes]) -> bytes:
    """Return the frame of a message that has one; else an empty one, which is malformed."""
    return frames[0] if len(frames) == 1 else b""
