"""OpenTelemetry's variables: what each means, and what is said of one that cannot be used."""

import pytest

from epp.adapters.tracing.settings import SERVICE_NAME, tracing_settings
from epp.protocol.trace_context import TraceSampling


def found(**environ):
    return tracing_settings(environ, "p")


def test_the_defaults_are_llm_d_routers():
    settings = found()
    assert settings.sampling == TraceSampling(0.1)
    assert (settings.exporter, settings.service_name, settings.pool) == ("grpc", SERVICE_NAME, "p")
    assert (settings.delay, settings.batch, settings.queue) == (5.0, 512, 2048)
    assert settings.warnings == ()


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        ("always_on", TraceSampling(1.0, parent_based=False)),
        ("always_off", TraceSampling(0.0, parent_based=False)),
        ("traceidratio", TraceSampling(0.5, parent_based=False)),
        ("parentbased_always_on", TraceSampling(1.0)),
        ("parentbased_always_off", TraceSampling(0.0)),
        ("parentbased_traceidratio", TraceSampling(0.5)),
    ],
)
def test_samplers(sampler, expected):
    environ = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": "0.5"}
    assert found(**environ).sampling == expected


@pytest.mark.parametrize(
    ("environ", "name", "value"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "exporter", "http/protobuf"),
        (
            {
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
            },
            "exporter",
            "grpc",
        ),
        ({"OTEL_TRACES_EXPORTER": "console"}, "exporter", "console"),
        ({"OTEL_SERVICE_NAME": "a"}, "service_name", "a"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "a=b,service.name=c"}, "service_name", ""),
        ({"OTEL_RESOURCE_ATTRIBUTES": "a=b"}, "service_name", SERVICE_NAME),
        ({"OTEL_RESOURCE_ATTRIBUTES": "a=b, service.name =c"}, "service_name", ""),
        ({"OTEL_RESOURCE_ATTRIBUTES": "peer.service.name=c"}, "service_name", SERVICE_NAME),
        ({"OTEL_BSP_SCHEDULE_DELAY": "100"}, "delay", 0.1),
        ({"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "7"}, "batch", 7),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "9"}, "queue", 9),
    ],
)
def test_a_variable_is_heeded(environ, name, value):
    settings = found(**environ)
    assert getattr(settings, name) == value
    assert settings.warnings == ()


@pytest.mark.parametrize(
    "environ", [{"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_SDK_DISABLED": "true"}]
)
def test_the_environment_may_turn_traces_off(environ):
    assert found(**environ) is None


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", "`jaeger_remote` is not one of always_on, "),
        ("OTEL_TRACES_SAMPLER_ARG", "2", "`2` is not a number of 0 to 1; it is 0.1"),
        ("OTEL_TRACES_SAMPLER_ARG", "nan", "`nan` is not a number"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "it is otlp"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "it is grpc"),
        ("OTEL_BSP_SCHEDULE_DELAY", "soon", "it is 5000"),
    ],
)
def test_what_cannot_be_used_counts_as_not_set_and_is_said(name, value, told):
    settings = found(**{name: value})
    assert (settings.sampling, settings.exporter, settings.delay) == (
        TraceSampling(0.1),
        "grpc",
        5.0,
    )
    (warning,) = settings.warnings
    assert warning.startswith(f"{name}: ")
    assert told in warning
