"""The events of one request: that it is sent, what is seen of its response, and how it ends.

They are plain classes, which compiled code reads without a look-up; other events are in
`events.py`.
"""

from enum import Enum
from typing import Final

from mypy_extensions import mypyc_attr

from epp.model.endpoint import EndpointId, Target
from epp.model.quote import Quote
from epp.model.request import RequestId, Usage
from epp.values import Value


@mypyc_attr(free_list_len=1, acyclic=True)
class Admitted(Value):
    """A request was sent to an endpoint. Its quote may come from another fleet.

    `prefill_endpoint_id`, if not None, computes its prompt in place of the endpoint, which gets
    the blocks of it. `encode_endpoint_id`, if not None, encodes the prompt's images and sounds.
    """

    def __init__(
        self,
        quote: Quote,
        endpoint_id: EndpointId,
        prefill_endpoint_id: EndpointId | None = None,
        encode_endpoint_id: EndpointId | None = None,
    ) -> None:
        self.quote: Final = quote
        self.endpoint_id: Final = endpoint_id
        self.prefill_endpoint_id: Final = prefill_endpoint_id
        self.encode_endpoint_id: Final = encode_endpoint_id


class Served(Value):
    """The proxy reported the target that served the request; it may not be the one picked.

    If several endpoints have that target, the one with the request's rank served it. `retried`: the
    proxy says that it tried more than once.
    """

    def __init__(self, request_id: RequestId, target: Target, *, retried: bool = False) -> None:
        self.request_id: Final = request_id
        self.target: Final = target
        self.retried: Final = retried


@mypyc_attr(free_list_len=1, acyclic=True)
class FirstToken(Value):
    """The first byte of a streamed body was seen: the prefill is over."""

    def __init__(self, request_id: RequestId) -> None:
        self.request_id: Final = request_id


class ResponseNamed(Value):
    """The response has an id, by which later requests may continue it, or ask for it."""

    def __init__(self, request_id: RequestId, response_id: str) -> None:
        self.request_id: Final = request_id
        self.response_id: Final = response_id


class Generated(Value):
    """A streamed response has come in this many pieces so far, or tokens if this is a guess."""

    def __init__(self, request_id: RequestId, pieces: int) -> None:
        self.request_id: Final = request_id
        self.pieces: Final = pieces


@mypyc_attr(free_list_len=1, acyclic=True)
class Finished(Value):
    """The response ended; it was streamed in `generated` pieces, 0 if it was not streamed."""

    def __init__(
        self, request_id: RequestId, usage: Usage | None = None, generated: int = 0
    ) -> None:
        self.request_id: Final = request_id
        self.usage: Final = usage
        self.generated: Final = generated

    @property
    def tokens(self) -> int:
        """The tokens of the response as reported, else its pieces."""
        return self.generated if self.usage is None else self.usage.completion_tokens


class Failure(Enum):
    """How an endpoint failed a request that it should have served."""

    GATEWAY = "gateway"
    """It could not be reached, or reset the connection before any answer: 502, 503.

    A 503 with `retry-after` does not count: the endpoint is only busy.
    """
    ERROR = "error"
    """It answered with another 5xx, or not in time; the request itself may be the cause."""
    EMPTY = "empty"
    """It answered with 200 and an empty body, although the request asked for output."""
    BUSY = "busy"
    """It shed the request: 429, or 503 with `retry-after`. That is no sign of a fault."""


class Aborted(Value):
    """The exchange ended before its response did, after `generated` pieces of it.

    If it was not observed, `generated` is a guess, in tokens. `refused`: the endpoint never got the
    request. `failure` is how the endpoint failed; None if it is not to blame, because the client
    left or its request was invalid. `served`: the proxy reported the endpoint that served it. If
    the proxy does so for other requests, a failure without it is the proxy's own. `computed`: how
    many tokens of a single prompt were computed or cached by then, if it ended before any output.
    None: the fleet estimates it for its listeners.
    """

    def __init__(  # noqa: PLR0913, PLR0917 (what is seen of it)
        self,
        request_id: RequestId,
        generated: int = 0,
        refused: bool = False,  # noqa: FBT001, FBT002
        failure: Failure | None = None,
        served: bool = False,  # noqa: FBT001, FBT002
        computed: int | None = None,
    ) -> None:
        self.request_id: Final = request_id
        self.generated: Final = generated
        self.refused: Final = refused
        self.failure: Final = failure
        self.served: Final = served
        self.computed: Final = computed


class Unobserved(Value):
    """The request was sent, and nothing more will be seen of it.

    `begun`: the head of a good response was seen.
    """

    def __init__(self, request_id: RequestId, begun: bool = False) -> None:  # noqa: FBT001, FBT002
        self.request_id: Final = request_id
        self.begun: Final = begun
