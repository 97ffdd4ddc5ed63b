"""The flags and environment variables of llm-d-router that have no counterpart of the same name.

A picker that is started with one of them logs once what it does here. The tables include flags of
old releases, and of GIE's endpoint picker; flags that llm-d-router refuses are refused.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Literal

import msgspec

from epp.cli.configuration import add_overrides
from epp.cli.types import BOOL, boolean, duration, one_of, quantity, unless_empty
from epp.errors import ConfigError

Effect = Literal["mapped", "without_effect"]


class AcceptedFlag(msgspec.Struct, frozen=True):
    """A flag whose values are checked; `why`, its help text, says what it does here.

    Nothing is logged for a value in `quiet`: it asks for what happens anyway.
    """

    effect: Effect
    name: str
    type: Callable[[str], object]
    why: str
    quiet: tuple[object, ...] = ()


class Notice(msgspec.Struct, frozen=True):
    """A log line about something given: the event, the flag or the variables, and the reason."""

    event: str
    name: str
    why: str


_LOG_TIMES = ("epoch", "millis", "nano", "iso8601", "rfc3339", "rfc3339nano")
_LOG_LEVELS = ("debug", "info", "warn", "error", "dpanic", "panic", "fatal")

_mapped, _idle = partial(AcceptedFlag, "mapped"), partial(AcceptedFlag, "without_effect")
FLAGS = (
    _mapped(
        "--enable-cert-reload",
        boolean,
        "certificates in --cert-path and --metrics-cert-dir are always followed",
    ),
    _idle("--allow-experimental-plugins", boolean, "every plug-in type may be used"),
    _idle(
        "--refresh-prometheus-metrics-interval",
        duration,
        "the pool's gauges are computed when /metrics is read",
    ),
    _idle(
        "--metrics-staleness-threshold",
        duration,
        "the pool's gauges count the reports of the last 10 s, or of three intervals if longer",
    ),
    _idle(
        "--grpc-max-send-msg-size",
        unless_empty(quantity),
        "replies are pieces of at most 62000 bytes, or as long as a body that arrived whole",
    ),
    _idle(
        "--plugin-state-staleness-threshold",
        duration,
        "a request's state is dropped with its stream, at the latest after --request-timeout",
    ),
    _mapped(
        "--zap-devel",
        boolean,
        "sets --log-format if that is not given: true is console, false json",
    ),
    _idle(
        "--zap-stacktrace-level",
        one_of(*_LOG_LEVELS),
        "every exception that is logged has its traceback",
    ),
    _idle(
        "--zap-time-encoding",
        one_of(*_LOG_TIMES),
        "times of log lines are ISO 8601, in UTC",
        quiet=("iso8601", "rfc3339", "rfc3339nano"),
    ),
)

_EXTRACTOR = (
    "the flag was removed: name metrics under `engineConfigs` in the parameters of a"
    " core-metrics-extractor"
)
_FIXED_NAME = "the protocol fixes its name (GIE proposal 004)"

REMOVED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "--total-queued-requests-metric": (
        (
            "vllm:num_requests_waiting",
            "sglang:num_queue_reqs",
            "trtllm_num_requests_waiting",
            "nv_trt_llm_request_metrics{request_type=waiting}",
        ),
        _EXTRACTOR,
    ),
    "--total-running-requests-metric": (
        (
            "vllm:num_requests_running",
            "sglang:num_running_reqs",
            "trtllm_num_requests_running",
            "nv_trt_llm_request_metrics{request_type=scheduled}",
        ),
        _EXTRACTOR,
    ),
    "--kv-cache-usage-percentage-metric": (
        (
            "vllm:kv_cache_usage_perc",
            "vllm:gpu_cache_usage_perc",
            "sglang:token_usage",
            "trtllm_kv_cache_utilization",
            "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",
        ),
        _EXTRACTOR,
    ),
    "--lora-info-metric": (("vllm:lora_requests_info", ""), _EXTRACTOR),
    "--cache-info-metric": (
        ("vllm:cache_config_info", "sglang:cache_config_info", "trtllm_cache_config_info"),
        _EXTRACTOR,
    ),
    "--destination-endpoint-hint-key": (("x-gateway-destination-endpoint",), _FIXED_NAME),
    "--destination-endpoint-hint-metadata-namespace": (("envoy.lb",), _FIXED_NAME),
}
"""Flags of old releases: the accepted values, and why all others are refused.

These ask for what happens anyway: an engine is recognised by its page. KServe's templates up to
0.17 pass the first ones, GIE's chart `inferencepool` those of the other engines, some in quotes.
"""

_TRACING = "OTEL_"
_PREDICTOR = "latency is predicted in this process: no training or prediction server is asked"
_NO_SPANS = "requests are traced if --tracing says so"
_GO = "it sets up Go's runtime, which this program does not have"

VARIABLES = {
    _TRACING: _NO_SPANS,
    "LATENCY_": _PREDICTOR,
    "TRAINING_SERVER_URL": _PREDICTOR,
    "PREDICTION_SERVER_URL": _PREDICTOR,
    "VLLM_API_KEY": "prompts are rendered with the API key of the client's request",
    "ENABLE_EXPERIMENTAL_": "write featureGates into the configuration",
    "GOMAXPROCS": _GO,
    "GOMEMLIMIT": _GO,
    "GOGC": _GO,
    "GODEBUG": _GO,
}
"""Variables without effect here; a name that ends in `_` is a prefix."""


def add_llm_d_router(parser: argparse.ArgumentParser) -> None:
    """Add the flags; one that is not given is None."""
    group = parser.add_argument_group("of llm-d-router, accepted")
    for flag in FLAGS:
        shown = BOOL if flag.type is boolean else {"type": flag.type, "metavar": "VALUE"}
        why = f"{flag.effect.replace('_', ' ')}: {flag.why}"
        group.add_argument(flag.name, **shown, help=why)
    add_overrides(group)
    for name, (values, _) in REMOVED.items():
        group.add_argument(name, metavar="NAME", help=f"removed; `{values[0]}` is accepted")


def check_removed(arguments: argparse.Namespace) -> None:
    """Raise `ConfigError` for a removed flag with any but its accepted values."""
    for name, (accepted, why) in REMOVED.items():
        value = _value(arguments, name)
        if value is not None and str(value).strip('"') not in accepted:
            raise ConfigError(f"`{value}` cannot be used: {why}", name)


def notices(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Iterator[Notice]:
    """Yield a notice for each of these flags and variables that was given, in the tables' order."""
    for flag in FLAGS:
        value = _value(arguments, flag.name)
        if value is not None and value not in flag.quiet:
            yield Notice(f"flag.{flag.effect}", flag.name, flag.why)
    for name in REMOVED:
        if _value(arguments, name) is not None:
            yield Notice("flag.without_effect", name, "its value is what the picker uses anyway")
    for known, why in VARIABLES.items():
        if known == _TRACING and arguments.tracing:
            continue
        names = [name for name in sorted(environ) if _is(name, known) and environ[name]]
        if names:
            yield Notice("environment.without_effect", ", ".join(names), why)


def _is(name: str, known: str) -> bool:
    return name.startswith(known) if known.endswith("_") else name == known


def _value(arguments: argparse.Namespace, name: str) -> object:
    return getattr(arguments, name.removeprefix("--").replace("-", "_"))
