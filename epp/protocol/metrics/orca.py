"""Load reports in response headers: ORCA, Open Request Cost Aggregation."""

import math
from collections.abc import Mapping

import msgspec

from epp.model.endpoint import Target
from epp.model.events import OrcaReported
from epp.model.request import RequestId

KV_USAGE = ("kv_cache_usage_perc", "kv_cache_utilization", "gpu_cache_usage_perc")
WAITING = ("num_requests_waiting", "num_waiting_requests")
RUNNING = ("num_requests_running", "num_running_requests")
"""Names of `named_metrics` that model servers use, vLLM's own first."""

_NAMED = "named_metrics"
_MAX_CHARACTERS = 2048
"""Characters of a header that are read; a report of three numbers has about a hundred."""
_MAX_REQUESTS = 1e9
"""Larger numbers of requests are ignored, as on a metrics page."""


class _Report(msgspec.Struct, frozen=True):
    named_metrics: dict[str, float] = {}


_decode = msgspec.json.Decoder(_Report).decode


def parse_orca(value: str, request_id: RequestId, target: Target) -> OrcaReported | None:
    """Read the `endpoint-load-metrics` header of the response to a request, served at `target`.

    Returns None for a header of another form (`BIN`, a base64 protobuf, is not read), a malformed
    one, and one without any of the metrics. Values that are negative, absurdly large or not
    finite are ignored. Never raises.
    """
    # ORCA's HTTP header formats (Envoy `orca_parser.cc`): `JSON {"named_metrics": {...}}` and
    # `TEXT named_metrics.<name>=<number>, ...`; the format's name is case-insensitive.
    form, _, body = value[:_MAX_CHARACTERS].strip().partition(" ")
    reader = _READERS.get(form.upper())
    metrics = reader(body) if reader else {}
    kv_usage, waiting, running = (_pick(metrics, names) for names in (KV_USAGE, WAITING, RUNNING))
    if kv_usage is None and waiting is None and running is None:
        return None
    return OrcaReported(
        request_id=request_id,
        target=target,
        kv_usage=None if kv_usage is None else min(kv_usage, 1.0),
        waiting=waiting,
        running=running,
    )


def _read_json(body: str) -> Mapping[str, float]:
    try:
        return _decode(body).named_metrics
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return {}


def _read_text(body: str) -> Mapping[str, float]:
    metrics = {}
    for pair in body.split(","):
        key, _, number = pair.partition("=")
        kind, _, name = key.strip().partition(".")
        if kind == _NAMED:
            metrics[name.strip()] = _float(number)
    return metrics


_READERS = {"JSON": _read_json, "TEXT": _read_text}


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _pick(metrics: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    usable = (metrics[name] for name in names if 0 <= metrics.get(name, math.nan) <= _MAX_REQUESTS)
    return next(usable, None)
