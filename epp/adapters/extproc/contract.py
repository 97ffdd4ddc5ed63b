"""What both transports know of the conversations that they carry."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec
import structlog

from epp.adapters.extproc.limits import Limits
from epp.errors import Overloaded, PickerFault, RequestError
from epp.model.request import Decision
from epp.protocol.extproc.messages import Message, Reply
from epp.protocol.extproc.record import RequestRecord

log = structlog.get_logger()

RESET_SECONDS = 0.05
"""How long after its end a stream that said what it would send may still turn out to be reset.

Envoy ends a stream that it gives up, and resets it a moment later; grpcio tells both apart only
then.
"""


class Conversation(Protocol):
    """What a transport needs of an exchange (`epp.protocol.extproc.exchange.Exchange`)."""

    record: RequestRecord

    @property
    def pending(self) -> bool:
        """Whether a decision is awaited."""

    @property
    def over(self) -> bool:
        """Whether everything has been said."""

    @property
    def has_more(self) -> bool:
        """Whether more of a long body is to follow once the replies given so far are read."""

    @property
    def announced(self) -> bool:
        """Whether the proxy said what it would send: an earlier end is then a reset."""

    def receive(self, message: Message, now: float) -> Sequence[Reply]:
        """Take a message."""

    def resume(self, outcome: Decision | RequestError, now: float) -> Sequence[Reply]:
        """Take the decision that was pending."""

    def proceed(self, now: float) -> Sequence[Reply]:
        """Let more of a long body follow."""

    def fail(self, error: RequestError, now: float) -> Sequence[Reply]:
        """Give up with an error."""

    def half_closed(self, now: float) -> None:
        """Hear that the peer sends no more."""

    def cancelled(self, now: float) -> None:
        """Hear that the peer is gone."""


Awaiting = Callable[[RequestRecord], Awaitable[Decision | RequestError]]
"""Waits for a decision that its director called pending."""


class ExtProcSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how to listen.

    `tls` is a (key, certificate chain) pair in PEM, None for plaintext. Sizes are in bytes.
    `decision_timeout` bounds a pending decision, in seconds. `limits` are the native transport's.
    """

    address: str = "0.0.0.0"  # noqa: S104 (a pod is reached from outside)
    port: int = 9002
    tls: tuple[bytes, bytes] | None = None
    max_receive_bytes: int = 65 << 20
    max_send_bytes: int = -1
    decision_timeout: float = 60.0
    limits: Limits = Limits()


class HealthSource(Protocol):
    """Answers `grpc.health.v1` (`epp.adapters.health.HealthServices`).

    `ValueError` is raised for what is no request.
    """

    def check(self, request: bytes) -> bytes | None:
        """Answer `Check`; None where there is no such service."""

    def list(self) -> bytes:
        """Answer `List`."""

    def watch(self, request: bytes, hear: Callable[[bytes], None]) -> None:
        """Answer `Watch`, at once and whenever it changes."""

    def forget(self, hear: Callable[[bytes], None]) -> None:
        """Answer one who watches no more."""


class HealthServer(Protocol):
    """A plaintext server with nothing but health."""

    @property
    def port(self) -> int:
        """Where it listens, after `start`."""

    async def start(self, address: str, port: int) -> None:
        """Bind and serve. Raises `OSError` or `RuntimeError` where the port is taken."""

    async def stop(self) -> None:
        """Close the port and all connections."""


class ExtProcServer(Protocol):
    """Either transport.

    It is made of `open_exchange`, which makes one exchange given the time, `clock`, which tells
    it, settings, and whom to wait for where a decision is pending.
    """

    transport: str
    """Its name."""

    def __init__(
        self,
        open_exchange: Callable[[float], Conversation],
        clock: Callable[[], float],
        settings: ExtProcSettings,
        awaiting: Awaiting = ...,
    ) -> None: ...

    @property
    def port(self) -> int:
        """Where it listens, after `start`."""

    @property
    def streams(self) -> int:
        """How many streams are open."""

    def offer_health(self, health: HealthSource) -> None:
        """Answer health checks too; before `start`."""

    def renew(self, tls: tuple[bytes, bytes]) -> None:
        """Serve with this pair from the next handshake on; after `start`, and with TLS only."""

    async def start(self) -> None:
        """Bind and serve. Raises `OSError` or `RuntimeError` where the port is taken."""

    async def stop(self, grace: float) -> None:
        """Take no more streams; give those that are open `grace` seconds to end."""

    async def quiet(self, seconds: float) -> None:
        """Wait until no stream is open, and none has been for `seconds`."""


class Streams:
    """Counts the streams that are open. `clock` tells the time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.open = 0
        self._clock = clock
        self._last_end = clock()
        self._none = asyncio.Event()
        self._none.set()

    def opened(self) -> None:
        """Count one more."""
        self.open += 1
        self._none.clear()

    def closed(self, now: float) -> None:
        """Count one less."""
        self.open -= 1
        self._last_end = now
        if not self.open:
            self._none.set()

    async def quiet(self, seconds: float) -> None:
        """Wait until no stream is open, and none has been for `seconds`."""
        while True:
            await self._none.wait()
            left = self._last_end + seconds - self._clock()
            if left <= 0:
                return
            await asyncio.sleep(left)


async def undecided(record: RequestRecord) -> Decision | RequestError:
    """Wait for nobody: a director that calls a decision pending is alone in that."""
    return PickerFault(f"no one decides on request {record.id}")


async def decided(
    awaiting: Awaiting, record: RequestRecord, seconds: float
) -> Decision | RequestError:
    """Wait for a decision; that there is none in time is one too."""
    try:
        async with asyncio.timeout(seconds):
            return await awaiting(record)
    except TimeoutError:
        return Overloaded("no decision in time", reason="decision-timeout", retry_after=1)


def broken(exchange: Conversation, error: Exception, now: float) -> Sequence[Reply]:
    """Log an exchange that raised, and let it say so to the client."""
    log.error("exchange.failed", request_id=exchange.record.id, exc_info=error)
    return exchange.fail(PickerFault(f"the picker failed: {type(error).__name__}"), now)
