"""The interfaces of a transport of the ext_proc service, gRPC's statuses and content type."""

import ssl
from collections.abc import Callable
from enum import IntEnum
from typing import ClassVar, Final, Protocol

import msgspec

from epp.adapters.extproc.health import HealthServices
from epp.adapters.extproc.limits import PeerLimits
from epp.errors import RequestError
from epp.model.decision import Decision
from epp.protocol.bodies.body_reader import BodyData
from epp.protocol.extproc.director import PendingDecision
from epp.protocol.extproc.messages import Message
from epp.protocol.extproc.record import RequestRecord
from epp.protocol.extproc.step import Step


class GrpcStatus(IntEnum):
    """The statuses that a server of ours ends a call with (gRPC, `doc/statuscodes.md`)."""

    OK = 0
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13


GRPC: Final = b"application/grpc"


def is_grpc(content_type: bytes) -> bool:
    """Whether a request of this content type is a call."""
    # gRPC over HTTP/2, Requests: "application/grpc" [("+proto" / "+json" / {custom})].
    return content_type.partition(b";")[0].partition(b"+")[0].strip() == GRPC


class Outlet(Protocol):
    """A transport's side of one stream."""

    def send(self, message: bytes | tuple[bytes, BodyData]) -> None:
        """Queue a message for the peer, whole or in two parts.

        Never blocks; messages to a closed stream are dropped.
        """

    def hold(self) -> None:
        """Stop reading from the peer, apart from data in flight, while a decision is pending."""

    def release(self) -> None:
        """Read from the peer again."""

    def await_room(self) -> None:
        """Call `ExchangeDriver.drained` once the peer has read most of the sent bytes."""

    def flush(self) -> None:
        """Write messages that were sent outside of the transport's own calls."""

    def end(self, status: GrpcStatus, message: str) -> None:
        """End the stream after all sent messages; its driver is not called again."""


class MethodCall(Protocol):
    """Serves one stream. After `Stream.end` no method is called: what ends it clears `owner`."""

    def message(self, data: bytes) -> None:
        """Handle a message."""

    def ended(self) -> None:
        """Handle a half-close: the peer sends no more."""

    def growing(self, size: int) -> None:
        """Handle an incomplete message, of which `size` bytes are kept so far."""

    def drained(self) -> None:
        """Handle room: the peer has read most of what waited on a stream that was held."""

    def closed(self) -> None:
        """Handle a reset, or the connection's end: the stream is gone."""


class DrivenExchange(Protocol):
    """An exchange as its driver calls it (`epp.protocol.extproc.exchange.Exchange`)."""

    record: RequestRecord
    pending: PendingDecision | None

    @property
    def held_bytes(self) -> int:
        """How many bytes of the request's body are held."""

    @property
    def awaits_request(self) -> bool:
        """Whether it is for the peer to send more of the request before a decision."""

    def receive(self, message: Message, now: float) -> Step:
        """Handle a message."""

    def resume(self, outcome: Decision | RequestError, now: float) -> Step:
        """Continue with the decision that was pending."""

    def proceed(self, now: float) -> Step:
        """Go on with a long body."""

    def fail(self, error: RequestError, now: float) -> Step:
        """Answer with an error, and end."""

    def half_closed(self, now: float) -> Step:
        """Handle a half-close: the peer sends no more."""

    def cancelled(self, now: float) -> Step:
        """Handle a reset: the peer is gone."""


class ExtProcSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a transport: its address and its limits. Sizes are in bytes."""

    address: str = ""
    """The address to bind; none, or `::`: all, of either family."""
    port: int = 9002
    """The port to bind; 0 for any."""
    passed: bool = False
    """Whether connections come by `NativeServer.take` alone, and no port is bound."""
    tls: tuple[bytes, bytes] | None = None
    """A key and a certificate chain in PEM; None for plaintext."""
    tls_min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    """The lowest version that is accepted."""
    tls_ciphers: str = ""
    """Suites up to TLS 1.2 by OpenSSL's names, separated by colons; empty: its own choice."""
    max_held_bytes: int = 512 << 20
    """Bytes that unfinished requests may hold together (`streams.OpenStreams`)."""
    request_timeout: float = 300.0
    """Seconds that a request may take (`streams.OpenStreams`)."""
    limits: PeerLimits = PeerLimits()
    """What its peers may cost; grpcio knows some of these."""


class HealthServer(Protocol):
    """A plaintext server with nothing but health."""

    @property
    def port(self) -> int:
        """The bound port, after `start`."""

    async def start(self, address: str, port: int) -> None:
        """Bind and serve. Raises `OSError` or `RuntimeError` if the port is taken."""

    async def stop(self) -> None:
        """Close the port and all connections."""


class ExtProcServer(Protocol):
    """Either transport.

    `open_exchange` makes one exchange, given the time; `clock` returns seconds of the monotonic
    clock.
    """

    transport: ClassVar[str]
    """Its name."""

    def __init__(
        self,
        open_exchange: Callable[[float], DrivenExchange],
        clock: Callable[[], float],
        settings: ExtProcSettings,
    ) -> None: ...

    @property
    def port(self) -> int:
        """The bound port, after `start`."""

    @property
    def streams(self) -> int:
        """The number of open streams."""

    def offer_health(self, health: HealthServices) -> None:
        """Answer health checks too; before `start`."""

    async def renew(self, tls: tuple[bytes, bytes]) -> None:
        """Use this pair from the next handshake on; only after `start`, and with TLS.

        Open streams continue. Raises `OSError` or `RuntimeError` for a pair that cannot be used,
        and keeps the previous one.
        """

    async def start(self) -> None:
        """Bind and serve. Raises `OSError` or `RuntimeError` if the port is taken."""

    def drain(self) -> None:
        """Ask peers to open streams elsewhere; streams that they still open here are served.

        Open connections get a GOAWAY at once, new ones with their first stream, so gateways that
        have not noticed yet keep working. grpcio cannot do this, and does nothing.
        """

    async def stop(self, grace: float) -> None:
        """Refuse further streams; give the open ones `grace` seconds to end."""

    async def quiet(self, seconds: float) -> None:
        """Wait until no stream is open, and none has been for `seconds`."""
