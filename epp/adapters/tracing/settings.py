"""Reads those of OpenTelemetry's environment variables that the SDK and its exporters do not read.

The exporters read `OTEL_EXPORTER_OTLP_*` (endpoint, headers, timeout, compression, certificates),
and the SDK `OTEL_RESOURCE_ATTRIBUTES`. As OpenTelemetry's specification demands, a value that
cannot be used causes a warning and counts as not set.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final, Literal, TypeVar

import msgspec

from epp.protocol.trace_context import TraceSampling

Word = TypeVar("Word", bound=str)
Exporter = Literal["grpc", "http/protobuf", "console"]

SERVICE_NAME: Final = "llm-d-router/epp"
"""The name of llm-d-router's picker, by which dashboards and alerts on traces find it."""
_RATIO: Final = 0.1
"""The share of traces that llm-d-router samples."""
_SAMPLERS: Final[Mapping[str, Callable[[float], TraceSampling]]] = {
    "always_on": lambda _: TraceSampling(1.0, parent_based=False),
    "always_off": lambda _: TraceSampling(0.0, parent_based=False),
    "traceidratio": lambda ratio: TraceSampling(ratio, parent_based=False),
    "parentbased_always_on": lambda _: TraceSampling(1.0),
    "parentbased_always_off": lambda _: TraceSampling(0.0),
    "parentbased_traceidratio": TraceSampling,
}
_EXPORTERS: Final = ("otlp", "console", "none")
_PROTOCOLS: Final[tuple[Exporter, ...]] = ("grpc", "http/protobuf")


class TracingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are traced. Times are in seconds."""

    sampling: TraceSampling = TraceSampling(_RATIO)
    """Which traces are recorded."""
    exporter: Exporter = "grpc"
    """The exporter of the spans."""
    service_name: str = ""
    """The service that the spans are of; empty: the resource's attributes have it."""
    pool: str = ""
    """The pool of the requests."""
    delay: float = 5.0
    """How long spans are gathered, at most, before they are exported."""
    batch: int = 512
    """How many spans are exported at once, at most."""
    queue: int = 2048
    """How many requests may wait for their spans to be made."""
    warnings: tuple[str, ...] = ()
    """Warnings about variables."""


def tracing_settings(environ: Mapping[str, str], pool: str) -> TracingSettings | None:
    """Return the settings from the environment; None if it turns tracing off."""
    variables = _Variables(environ)
    exporter = variables.one_of("OTEL_TRACES_EXPORTER", _EXPORTERS, "otlp")
    protocol = variables.one_of("OTEL_EXPORTER_OTLP_PROTOCOL", _PROTOCOLS, "grpc")
    protocol = variables.one_of("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", _PROTOCOLS, protocol)
    if exporter == "none" or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    sampler = variables.one_of("OTEL_TRACES_SAMPLER", _SAMPLERS, "parentbased_traceidratio")
    ratio = variables.number("OTEL_TRACES_SAMPLER_ARG", _RATIO, 0.0, 1.0)
    delay = variables.number("OTEL_BSP_SCHEDULE_DELAY", 5000.0, 1.0, 600_000.0)
    batch = variables.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512.0, 1.0, 65_536.0)
    queue = variables.number("OTEL_BSP_MAX_QUEUE_SIZE", 2048.0, 1.0, 65_536.0)
    pairs = environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    named = any(pair.partition("=")[0].strip() == "service.name" for pair in pairs)
    return TracingSettings(
        sampling=_SAMPLERS[sampler](ratio),
        exporter="console" if exporter == "console" else protocol,
        service_name=environ.get("OTEL_SERVICE_NAME") or ("" if named else SERVICE_NAME),
        pool=pool,
        delay=delay / 1e3,
        batch=int(batch),
        queue=int(queue),
        warnings=tuple(variables.warnings),
    )


class _Variables:
    """Reads variables; one that cannot be used causes a warning, and has its default."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.warnings: list[str] = []

    def one_of(self, name: str, known: Collection[Word], default: Word) -> Word:
        given = self._environ.get(name, "").strip().lower()
        for word in known:
            if word == given:
                return word
        if given:
            self.warnings.append(
                f"{name}: `{given}` is not one of {', '.join(known)}; it is {default}"
            )
        return default

    def number(self, name: str, default: float, least: float, most: float) -> float:
        given = self._environ.get(name, "").strip()
        try:
            value = float(given) if given else default
        except ValueError:
            value = least - 1
        if least <= value <= most:
            return value
        self.warnings.append(
            f"{name}: `{given}` is not a number of {least:g} to {most:g}; it is {default:g}"
        )
        return default
