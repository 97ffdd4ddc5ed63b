"""The headers of the endpoint picker protocol: those that are read, set and removed.

Names: GIE proposal 004 and llm-d-router's conventions, whose newer names win over their aliases.
"""

from collections.abc import Iterator
from math import inf
from typing import Final

from mypy_extensions import mypyc_attr

from epp.model.decision import Decision
from epp.model.endpoint import VLLM, Endpoint
from epp.model.request import DEFAULT_FAIRNESS_ID, Api, InferenceRequest, RequestId
from epp.protocol.bodies.apis import ApiTable
from epp.protocol.bodies.parsed import UNREAD, Parsed
from epp.protocol.extproc.messages import Mutation
from epp.protocol.extproc.names import (
    CONTROL_HEADERS,
    DESTINATION,
    FAIRNESS,
    LATER_NAMES,
    OBJECTIVE,
    RANK,
    REWRITE,
)
from epp.protocol.extproc.record import RequestRecord
from epp.protocol.extproc.settings import ExchangeSettings, Headers
from epp.protocol.metrics.metric_names import ENGINE_LABELS

_REQUEST_ID: Final = "x-request-id"
_MODELS: Final = "/v1/models"
_PATHS: Final = (":path", "x-original-path", "x-forwarded-path")

# Looked up once: docs/adr/0013-compiled.md says why.
_OTHER: Final = Api.OTHER


@mypyc_attr(free_list_len=1, acyclic=True)
class RequestFacts:
    """The facts in a request's headers; `method` is empty before these arrive.

    `api` is None if no parser reads the path. `injected` has the names of control headers, which
    the model server must not get.
    """

    def __init__(
        self,
        headers: dict[str, str],
        method: str = "",
        api: Api | None = _OTHER,
        injected: tuple[str, ...] = (),
    ) -> None:
        self.headers: Final = headers
        self.method: Final = method
        self.api: Final = api
        self.injected: Final = injected

    @staticmethod
    def of(headers: dict[str, str], apis: ApiTable) -> "RequestFacts":
        """Read the method, and the API from the first path that names one.

        A gateway that has rewritten `:path` keeps the client's path in one of the other headers.
        """
        method, api = headers.get(":method", ""), apis.otherwise
        for name in _PATHS:
            if name in headers and api is apis.otherwise:
                api = apis.api_of(headers[name])
        injected = [name for name in headers if name in CONTROL_HEADERS]
        return RequestFacts(headers, method, api, tuple(sorted(injected)) if injected else ())

    @property
    def asks_for_models(self) -> bool:
        """Whether it is OpenAI's `GET /v1/models`, below any prefix."""
        paths = [self.headers.get(name, "").partition("?")[0] for name in _PATHS]
        return self.method == "GET" and any(path.endswith(_MODELS) for path in paths)

    def request(  # noqa: PLR0913, PLR0917 (what it is made of)
        self,
        record: RequestRecord,
        parsed: Parsed | None,
        subset: tuple[str, ...] | None,
        body: bytes = b"",
        most_wait: float = inf,
        response_id: str = "",
    ) -> InferenceRequest:
        """Return the request as routing needs it; `body` is for plug-ins that read more of it.

        `parsed` is None for a body that was not seen or could not be read. The proxy lets the
        request wait for `most_wait` seconds. `response_id` is the id of an earlier response that
        the request names.
        """
        rewrite = objective = fairness_id = ""
        if self.injected:
            rewrite = "" if parsed is None else _first(self.headers, REWRITE)
            objective = _first(self.headers, OBJECTIVE)
            fairness_id = _first(self.headers, FAIRNESS)
        parsed = parsed or UNREAD
        return InferenceRequest(
            id=record.id,
            size=record.request_bytes,
            most_wait=most_wait,
            api=self.api or _OTHER,
            model=parsed.model,
            target_model=rewrite or parsed.model,
            prompts=parsed.prompts,
            stream=parsed.stream,
            max_tokens=parsed.max_tokens,
            n=parsed.n,
            cache_salt=parsed.cache_salt,
            multimodal=parsed.multimodal,
            skip_reading_prefix_cache=parsed.skip_reading_prefix_cache,
            headers=self.headers,
            subset=subset,
            objective=objective,
            fairness_id=fairness_id or DEFAULT_FAIRNESS_ID,
            body=body,
            response_id=response_id,
        )

    def response_id(self) -> str:
        """Return the id of the response that the path names; empty without one."""
        from epp.protocol.response_ids import id_in_path  # noqa: PLC0415 (slow to load, often unused)

        for name in _PATHS:
            if found := id_in_path(self.headers.get(name, "")):
                return found
        return ""


def content_coding(headers: dict[str, str]) -> str:
    """Return the coding of a body, such as gzip (RFC 9110 §8.4.1); empty if it has none."""
    coding = headers.get("content-encoding", "")
    return "" if not coding or coding.lower() == "identity" else coding


def _first(headers: dict[str, str], names: tuple[str, ...]) -> str:
    for name in names:
        if headers.get(name):
            return headers[name]
    return ""


def request_mutation(  # noqa: PLR0913 (each changes it)
    facts: RequestFacts,
    decision: Decision,
    request_id: RequestId,
    *,
    settings: ExchangeSettings,
    content_length: int | None,
    more: Headers = (),
) -> Mutation:
    """Return the fewest changes that send a request to its destination.

    Depending on the settings, they ask for a load report in the response's headers, and contain the
    scores of the candidates. `content_length` is the length of a changed body, in bytes; None if
    the body is unchanged. The headers in `more` are set too.
    """
    # GIE proposal 004: the destination is a header, and metadata with the same value. Names are
    # in lower case (RFC 9113 §8.2): NGINX Gateway Fabric compares them as they are.
    headers = [(DESTINATION, decision.destination)]
    # vLLM serving.py `_get_data_parallel_rank`, and SGLang: a request may name the rank that it
    # is for. The picker's choice replaces the client's.
    if decision.endpoint.rank is not None:
        headers.append((RANK, str(decision.endpoint.rank)))
    if _REQUEST_ID not in facts.headers:
        headers.append((_REQUEST_ID, request_id))
    if content_length is not None:
        headers.append(("content-length", str(content_length)))
    if settings.request_orca:
        headers.append(("endpoint-load-metrics-format", "JSON"))
    if decision.headers:
        headers += _in_both_spellings(decision.headers)
    if more:
        headers += more
    removed = facts.injected
    if removed:  # a gateway may remove after it has set
        names = {name for name, _ in headers}
        removed = tuple([name for name in removed if name not in names])
    # ext_proc.proto, `clear_route_cache`, as GIE's picker sets it: the route is chosen again, for
    # it may depend on these headers.
    return Mutation(
        set_headers=tuple(headers),
        remove_headers=removed,
        clear_route_cache=True,
        destination=decision.destination,
        scores=_scores(decision) if settings.emit_scores else (),
    )


def _in_both_spellings(headers: Headers) -> Iterator[tuple[str, str]]:
    for name, value in headers:
        yield name, value
        if name in LATER_NAMES:
            yield LATER_NAMES[name], value


def _scores(decision: Decision) -> tuple[tuple[str, float], ...]:
    return tuple(
        (each.endpoint.target, float(total))
        for each, total in zip(decision.candidates, decision.totals, strict=True)
    )


def engine_priority(priority: int, endpoint: Endpoint) -> int:
    """Return a request's priority in the sense of the engine that it goes to.

    For the picker and SGLang a higher priority is more urgent, for vLLM a lower one.
    """
    labels = endpoint.labels
    engine = next((labels[each] for each in ENGINE_LABELS if each in labels), VLLM)
    return -priority if engine == VLLM else priority


BEFORE_HEADERS: Final = RequestFacts({})
"""The headers before any have arrived."""
