"""gRPC health checks on the native transport's port."""

from epp.adapters.extproc.connection import Status
from epp.adapters.extproc.conversation import HealthSource
from epp.native.http2 import Stream


class HealthCall:
    """One health check."""

    __slots__ = ("_health", "_stream")

    def __init__(self, stream: Stream, health: HealthSource) -> None:
        self._stream = stream
        self._health = health

    def message(self, data: bytes) -> None:
        """Answer."""
        stream, status, problem = self._stream, Status.OK, ""
        try:
            answer = self._health.check(data)
        except ValueError as error:
            status, problem = Status.INVALID_ARGUMENT, str(error)
        else:
            if answer is None:
                status, problem = Status.NOT_FOUND, "there is no such service"
            else:
                stream.send(answer)
        stream.owner = None
        stream.end(status, problem)

    def ended(self) -> None:
        """Complain: a check has one message."""
        self._stream.owner = None
        self._stream.end(Status.INVALID_ARGUMENT, "a check without a request")

    def closed(self) -> None:
        """Nothing is kept."""
