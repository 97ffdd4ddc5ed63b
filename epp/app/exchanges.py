"""Builds the settings of exchanges from the options of a picker."""

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from epp.app.discovery import Discovery
from epp.app.options import ServeOptions
from epp.model.fleet import Fleet
from epp.model.request import InferenceRequest
from epp.policy.plugins import RequestProcessor, ResponseProcessor, headers_of, request_of
from epp.protocol.extproc.debug_headers import (
    decision_header,
    queue_duration_header,
    served_header,
)
from epp.protocol.extproc.messages import BodyMode
from epp.protocol.extproc.record import RequestRecord
from epp.protocol.extproc.response import HeaderSource
from epp.protocol.extproc.settings import ExchangeSettings, Headers
from epp.system.logs import Log
from epp.values import replaced

_log = Log(__name__)

_UNSEEN_BODY: Final = {
    "effect": "endpoints are picked by load alone, and no request waits for room",
    "remedy": "set request_body_mode: FULL_DUPLEX_STREAMED in the ext_proc filter",
}

Resolve = Callable[[InferenceRequest], InferenceRequest]


def exchange_settings(
    options: ServeOptions,
    resolve: Resolve | None,
    *,
    keep_body: bool,
    begin_span: Callable[[RequestRecord], Headers] | None = None,
    list_models: Callable[[], bytes] | None = None,
) -> ExchangeSettings:
    """Return the settings of a picker's exchanges.

    `resolve` applies the API's objects to a request before plug-ins see it; None if there are none.
    `list_models` returns the answer to `GET /v1/models`; None: an endpoint answers.
    """
    settings = options.settings
    scheduling = settings.scheduling
    header_sources: list[HeaderSource] = []
    if options.show_decision:
        header_sources.append(decision_header)
    if settings.report_served:
        header_sources.append(served_header)
    if settings.flow.gate is not None:
        header_sources.append(queue_duration_header)
    header_sources += [
        _header_source(f"response processor {scheduling.name_of(each)}", each)
        for each in scheduling.response_processors
    ]
    steps: list[Resolve] = [resolve] if resolve else []
    if not options.heed_subset:
        steps.append(lambda request: replaced(request, subset=None))
    steps += [
        _step(f"request processor {scheduling.name_of(each)}", each)
        for each in scheduling.request_processors
    ]
    return ExchangeSettings(
        max_body_bytes=options.max_body_bytes,
        header_sources=tuple(header_sources),
        request_orca=options.request_orca,
        emit_scores=options.emit_scores,
        keep_body=keep_body,
        most_wait=options.buffered_wait,
        begin_span=begin_span,
        list_models=list_models,
        on_unseen_body=cache(_warn_of_unseen_body),
        apis=settings.parsers.apis,
        propagate_priority=settings.propagate_priority,
        reporters=tuple(each.report for each in scheduling.usage_reporters),
        resolve=_in_turn(steps),
    )


def _warn_of_unseen_body(mode: BodyMode) -> None:
    _log.warning("request_bodies.unseen", mode=mode.name, **_UNSEEN_BODY)


def models_page(options: ServeOptions, fleet: Fleet) -> Callable[[], bytes] | None:
    """Return the list of a fleet's models; None if endpoints answer that themselves."""
    if not options.settings.data_layer.answers_models:
        return None
    from epp.app.observing.served_models import ServedModels  # noqa: PLC0415 (rarely needed)

    return ServedModels(fleet, int(time.time()), time.monotonic).page


def resolve_by(discovery: Discovery, below: Callable[[int], int]) -> Resolve | None:
    """Return a function that applies the current routing rules; None if there are never any."""
    if discovery.routing is None:
        return None

    def resolve(request: InferenceRequest) -> InferenceRequest:
        rules = discovery.routing
        return request if rules is None else rules.resolve(request, below)

    return resolve


def _in_turn(steps: Sequence[Resolve]) -> Resolve | None:
    """Return a function that takes these steps; None without any."""
    if len(steps) <= 1:
        return steps[0] if steps else None

    def resolved(request: InferenceRequest) -> InferenceRequest:
        for step in steps:
            request = step(request)
        return request

    return resolved


def _step(name: str, processor: RequestProcessor) -> Resolve:
    """Return a step in which a plug-in reads a request."""
    return lambda request: request_of(name, processor.process_request(request))


def _header_source(name: str, processor: ResponseProcessor) -> HeaderSource:
    """Return a source of a plug-in's headers for a response."""

    def headers(record: RequestRecord) -> Headers:
        if record.request is None or record.decision is None:
            return ()
        returned = processor.response_headers(record.request, record.decision, record.served)
        return headers_of(name, returned)

    return headers
