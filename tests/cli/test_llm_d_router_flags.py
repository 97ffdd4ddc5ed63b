"""llm-d-router's flags and variables: each is read, and what has no effect is said."""

import argparse
import re
from pathlib import Path

import pytest

from epp.cli.llm_d_router_flags import FLAGS, REMOVED, VARIABLES, check_removed, notices
from epp.cli.serve_flags import add_serve, log_settings
from epp.errors import ConfigError

DOCUMENTED = {
    "--allow-experimental-plugins": "true",
    "--cert-path": "/c",
    "--config-file": "f",
    "--disable-endpoint-subset-filter": "true",
    "--drain-timeout": "30s",
    "--emit-endpoint-scores": "true",
    "--enable-cert-reload": "true",
    "--enable-grpc-stream-metrics": "true",
    "--enable-pprof": "false",
    "--endpoint-selector": "app=vllm",
    "--endpoint-target-ports": "8000,8001",
    "--fairness-id-metric-label-limit": "100",
    "--feature-gates": "flowControl=false",
    "--grpc-health-port": "9003",
    "--grpc-max-recv-msg-size": "16Mi",
    "--grpc-max-send-msg-size": "16MiB",
    "--grpc-port": "9002",
    "--ha-enable-leader-election": "true",
    "--health-checking": "true",
    "--metrics-cert-dir": "/m",
    "--metrics-client-ca-file": "/m/ca.crt",
    "--metrics-endpoint-auth": "false",
    "--metrics-port": "9090",
    "--metrics-staleness-threshold": "2s",
    "--plugin-state-staleness-threshold": "5m",
    "--pool-group": "inference.networking.k8s.io",
    "--pool-name": "p",
    "--pool-namespace": "n",
    "--refresh-metrics-interval": "50ms",
    "--refresh-prometheus-metrics-interval": "5s",
    "--secure-serving": "true",
    "--tls-cipher-suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_AES_128_GCM_SHA256",
    "--tls-min-version": "VersionTLS12",
    "--tracing": "true",
    "--v": "2",
    "--zap-devel": "false",
    "--zap-encoder": "json",
    "--zap-log-level": "info",
    "--zap-stacktrace-level": "error",
    "--zap-time-encoding": "epoch",
}
"""The flags of llm-d-router's main branch, each with a value that its documentation has."""


PAGE = (Path(__file__).parents[2] / "docs" / "migrate-from-llm-d.md").read_text()


def parsed(*words):
    parser = argparse.ArgumentParser()
    add_serve(parser)
    return parser.parse_args(words)


def said(*words, **environ):
    return [(each.event, each.name) for each in notices(parsed(*words), environ)]


def test_every_flag_is_read():
    parsed(*(f"{name}={value}" for name, value in DOCUMENTED.items()))
    parsed("--config-text=x")


def test_the_page_about_moving_over_has_every_flag_and_variable():
    named = {*DOCUMENTED, *(flag.name for flag in FLAGS), *REMOVED, *VARIABLES}
    assert [name for name in sorted(named) if f"`{name}" not in PAGE] == []
    unread = set(re.findall(r"^\| `(--[a-z-]+)", PAGE, re.MULTILINE))
    parser = argparse.ArgumentParser()
    add_serve(parser)
    text = parser.format_help()
    assert [word for word in sorted(unread) if word not in text] == []


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_the_page_says_the_effect_of_a_flag(flag):
    (line,) = [each for each in PAGE.splitlines() if re.match(rf"\| .*`{flag.name}`", each)]
    assert flag.effect.replace("_", " ") in line


def test_nothing_is_said_of_what_was_not_given():
    assert said() == said("--tracing=false", HOME="/", NAMESPACE="n", POD_NAME="p") == []


EMPTY = (
    "--cert-path",
    "--config-file",
    "--config-text",
    "--endpoint-selector",
    "--grpc-max-recv-msg-size",
    "--grpc-max-send-msg-size",
    "--metrics-cert-dir",
    "--metrics-client-ca-file",
    "--tls-cipher-suites",
    "--tls-min-version",
)


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_value_is_as_if_the_flag_was_not_given(name):
    # Charts and templates write what a value holds, if only nothing.
    assert vars(parsed(f"{name}=")) == vars(parsed())
    assert said(f"{name}=") == []


def test_an_empty_configuration_does_not_exclude_the_other():
    assert parsed("--config-text=", "--config-file=f").config_file == Path("f")
    assert parsed("--config-text=x", "--config-file=").config_text == "x"


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_a_flag_without_a_counterpart_is_said_once(flag):
    word = f"{flag.name}={DOCUMENTED[flag.name]}"
    assert said(word, word) == [(f"flag.{flag.effect}", flag.name)]


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_without_effect_is_said(name):
    given = f"{name}X" if name.endswith("_") else name
    assert said(**{given: "1"}) == [("environment.without_effect", given)]
    assert said(**{given: ""}) == []


def test_the_variables_of_traces_are_heeded_where_there_are_traces():
    assert said("--tracing", OTEL_SERVICE_NAME="epp") == []


def test_variables_of_one_reason_are_one_line():
    environ = {"OTEL_SERVICE_NAME": "epp", "OTEL_TRACES_SAMPLER": "x", "OTELLO": "y"}
    names = "OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER"
    assert said(**environ) == [("environment.without_effect", names)]


@pytest.mark.parametrize(
    "name",
    [
        "--total-queued-requests-metric",
        "--total-running-requests-metric",
        "--kv-cache-usage-percentage-metric",
        "--lora-info-metric",
        "--cache-info-metric",
    ],
)
def test_a_flag_that_was_removed_names_its_successor(name):
    with pytest.raises(ConfigError, match=f"{name}: `x:y` cannot be used.*core-metrics-extractor"):
        check_removed(parsed(f"{name}=x:y"))


def test_a_removed_flag_may_name_what_is_read_anyway():
    word = "--kv-cache-usage-percentage-metric=vllm:kv_cache_usage_perc"  # KServe up to 0.17
    check_removed(parsed(word))
    assert said(word) == [("flag.without_effect", "--kv-cache-usage-percentage-metric")]


@pytest.mark.parametrize(
    "words",
    [
        ['--total-queued-requests-metric="sglang:num_queue_reqs"'],
        ["--total-queued-requests-metric", "nv_trt_llm_request_metrics{request_type=waiting}"],
        ['--total-running-requests-metric="trtllm_num_requests_running"'],
        [
            "--kv-cache-usage-percentage-metric",
            "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",
        ],
        ["--kv-cache-usage-percentage-metric", "vllm:gpu_cache_usage_perc"],  # GIE up to 0.5
        ["--lora-info-metric", ""],
        ['--cache-info-metric="sglang:cache_config_info"'],
    ],
)
def test_a_removed_flag_may_be_the_inferencepool_charts_for_another_engine(words):
    check_removed(parsed(*words))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--zap-log-level=debug", "-v=1"], ("debug", None)),
        (["--zap-log-level=5"], ("debug", None)),
        (["--zap-log-level=error", "-v=5"], ("error", None)),
        (["--zap-log-level=panic"], ("error", None)),
        (["--zap-devel=false"], ("info", "json")),
        (["--zap-devel"], ("info", "console")),
        (["--zap-devel", "--zap-encoder=json"], ("info", "json")),
    ],
)
def test_zaps_flags_set_level_and_form(words, expected):
    level, form = log_settings(parsed(*words))
    assert (level, form if expected[1] else None) == expected


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["--pool-nam", "p"], 2, "did you mean `--pool-name`"),
        (["--config-file=/nowhere"], 2, "epp: --config-file: cannot read /nowhere"),
        ([], 2, "COMMAND"),
    ],
)
def test_the_status_of_what_cannot_be_used_is_2(words, status, told, epp):
    asked = epp(*words)
    assert asked.returncode == status
    assert told in asked.stderr
