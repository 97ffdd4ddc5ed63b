"""The picker's health services (`grpc.health.v1`), served by either transport."""

from collections.abc import Callable

from epp.protocol import health
from epp.protocol.extproc.names import SERVICE
from epp.protocol.health import ServingStatus

# GIE proposal 004, and the names that its conformance suite probes.
_LIVE = ("liveness",)
_READY = ("", "readiness", "inference-extension", SERVICE)

Send = Callable[[bytes], None]


class HealthServices:
    """Statuses by service: `liveness` always serves, the others while the picker is ready.

    Requests and responses are encoded messages of `grpc.health.v1`.
    """

    def __init__(self) -> None:
        self._statuses: dict[str, ServingStatus] = {}
        self._watchers: dict[Send, str] = {}

    def set_ready(self, *, ready: bool) -> None:
        """Set whether the readiness services serve; send it to the watchers of what changed."""
        status = ServingStatus.SERVING if ready else ServingStatus.NOT_SERVING
        before = self._statuses
        self._statuses = dict.fromkeys(_READY, status)
        self._statuses |= dict.fromkeys(_LIVE, ServingStatus.SERVING)
        for send, service in tuple(self._watchers.items()):
            if before.get(service) is not self._statuses.get(service):
                send(self._response(service))

    def check(self, request: bytes) -> bytes | None:
        """Return the response to `Check`; None for an unknown service.

        Raises `ValueError` for a malformed request.
        """
        # health.proto, `Check`: an unknown service is the gRPC status NOT_FOUND.
        service = health.service_of(request)
        return self._response(service) if service in self._statuses else None

    def list(self) -> bytes:
        """Return the response to `List`."""
        return health.listing(self._statuses)

    def watch(self, request: bytes, send: Send) -> None:
        """Send a response to `Watch` at once and after every change, until `unwatch`.

        Raises `ValueError` for a malformed request.
        """
        # health.proto, `Watch`: an unknown service is SERVICE_UNKNOWN, and may appear later.
        service = health.service_of(request)
        self._watchers[send] = service
        send(self._response(service))

    def unwatch(self, send: Send) -> None:
        """Send no more responses through `send`."""
        self._watchers.pop(send, None)

    def _response(self, service: str) -> bytes:
        return health.answer(self._statuses.get(service, ServingStatus.SERVICE_UNKNOWN))
