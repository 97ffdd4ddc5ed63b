"""The settings of an exchange."""

from collections.abc import Callable
from typing import Final

from epp.model.request import InferenceRequest, Usage
from epp.protocol.bodies.apis import DEFAULT_APIS, ApiTable
from epp.protocol.extproc.messages import BodyMode
from epp.protocol.extproc.record import RequestRecord
from epp.values import Value

Headers = tuple[tuple[str, str], ...]
"""Names and values of headers to set."""

Reported = tuple[str, str, float]
"""A namespace of dynamic metadata, a key in it, and a value."""


class ExchangeSettings(Value):
    """Settings that all exchanges of a picker share, except `end_early`."""

    def __init__(  # noqa: PLR0913 (one fact each)
        self,
        *,
        max_body_bytes: int = 64 << 20,
        header_sources: tuple[Callable[[RequestRecord], Headers], ...] = (),
        request_orca: bool = False,
        emit_scores: bool = False,
        keep_body: bool = False,
        resolve: Callable[[InferenceRequest], InferenceRequest] | None = None,
        apis: ApiTable = DEFAULT_APIS,
        propagate_priority: bool = False,
        reporters: tuple[Callable[[Usage], Reported | None], ...] = (),
        most_wait: float = 0.1,
        begin_span: Callable[[RequestRecord], Headers] | None = None,
        list_models: Callable[[], bytes] | None = None,
        on_unseen_body: Callable[[BodyMode], None] | None = None,
        end_early: bool = False,
    ) -> None:
        self.max_body_bytes: Final = max_body_bytes
        """The longest request body; a longer one is answered with status 413."""
        self.header_sources: Final = header_sources
        """Each gives response headers for the client."""
        self.request_orca: Final = request_orca
        """Ask model servers for load reports in their response headers."""
        self.emit_scores: Final = emit_scores
        """Send the score of each endpoint to the proxy."""
        self.keep_body: Final = keep_body
        """Hand the director the body of a request until it has decided."""
        self.resolve: Final = resolve
        """Sets the priority and the model of a request by the API's objects.

        None: there are none."""
        self.apis: Final = apis
        """The APIs whose bodies are read, by path."""
        self.propagate_priority: Final = propagate_priority
        """Write a request's priority into its body, for the engine's own scheduler."""
        self.reporters: Final = reporters
        """Each gives a number about a response's usage.

        The proxy gets it as metadata with the last message of the response."""
        self.most_wait: Final = most_wait
        """Seconds for which a decision may take if the proxy's `message_timeout` runs meanwhile.

        That is in every body mode but full duplex (Envoy 1.40)."""
        self.begin_span: Final = begin_span
        """Begins the span of a request that was decided on; gives headers for the model server.

        None: there are no traces."""
        self.list_models: Final = list_models
        """Returns what `GET /v1/models` is answered with, as JSON, or raises `RequestError`.

        None: an endpoint answers it."""
        self.on_unseen_body: Final = on_unseen_body
        """Called for each request whose body would be read, but is not shown in this mode."""
        self.end_early: Final = end_early
        """Close the stream once a streamed response has begun.

        Only if the proxy continues alone and the director needs no more."""
