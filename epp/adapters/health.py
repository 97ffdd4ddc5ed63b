"""What gateways and kubelets are told of the picker's health, whatever server they ask."""

from collections.abc import Callable

from epp.protocol import health
from epp.protocol.extproc.names import SERVICE
from epp.protocol.health import ServingStatus

_LIVE = ("liveness",)
_READY = ("", "readiness", "inference-extension", SERVICE)

Hear = Callable[[bytes], None]


class HealthServices:
    """`liveness` serves as long as the process answers; the others once the picker is ready.

    Names: GIE proposal 004 and what its conformance suite probes (`inference-extension`).
    Requests and answers are messages of `grpc.health.v1`.
    """

    def __init__(self) -> None:
        self._statuses: dict[str, ServingStatus] = {}
        self._watchers: dict[Hear, str] = {}

    def tell(self, status: ServingStatus) -> None:
        """Set whether the picker is ready; whoever watches hears of what has changed."""
        before = self._statuses
        self._statuses = dict.fromkeys(_READY, status)
        self._statuses |= dict.fromkeys(_LIVE, ServingStatus.SERVING)
        for hear, service in tuple(self._watchers.items()):
            if before.get(service) is not self._statuses.get(service):
                hear(self._answer(service))

    def check(self, request: bytes) -> bytes | None:
        """Answer `Check`; None where there is no such service. `ValueError` is for no request."""
        service = health.service_of(request)
        return self._answer(service) if service in self._statuses else None

    def list(self) -> bytes:
        """Answer `List`."""
        return health.listing(self._statuses)

    def watch(self, request: bytes, hear: Hear) -> None:
        """Answer `Watch` through `hear`, at once and whenever it changes, until `unwatch`.

        A service that is not there is unknown, and may come. Raises `ValueError` for no request.
        """
        service = health.service_of(request)
        self._watchers[hear] = service
        hear(self._answer(service))

    def unwatch(self, hear: Hear) -> None:
        """Call `hear` no more; without effect where it does not watch."""
        self._watchers.pop(hear, None)

    def _answer(self, service: str) -> bytes:
        return health.answer(self._statuses.get(service, ServingStatus.SERVICE_UNKNOWN))
