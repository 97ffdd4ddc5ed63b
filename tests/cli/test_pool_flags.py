"""The flags that choose the pool."""

import argparse
from pathlib import Path

import pytest

from epp.cli.pool_flags import pool_notices, pool_of
from epp.cli.serve_flags import add_serve
from epp.cli.types import labels, port_list
from epp.errors import ConfigError

VLLM = {"app": "vllm", "role": "decode"}


def pool(*flags, configured="", **environ):
    parser = argparse.ArgumentParser()
    add_serve(parser)
    return pool_of(parser.parse_args(flags), configured, environ)


@pytest.mark.parametrize(
    ("flags", "configured", "name"),
    [
        (["--endpoints-file=a.yaml"], "", "default"),
        (["--endpoints-file=a.yaml", "--pool-name=p"], "", "p"),
        (["--endpoints-file=a.yaml"], "b.yaml", "default"),
        ([], "a.yaml", "default"),
        (["--pool-name=p"], "a.yaml", "p"),
    ],
)
def test_a_file_wins_over_a_pool_whose_name_is_then_a_label(flags, configured, name):
    found = pool(*flags, configured=configured)
    assert (found.source, found.name) == (Path("a.yaml"), name)


@pytest.mark.parametrize(
    ("flags", "environ", "namespace"),
    [
        (["--pool-namespace=flag"], {"NAMESPACE": "environment"}, "flag"),
        ([], {"NAMESPACE": "environment"}, "environment"),
        ([], {}, "default"),
    ],
)
def test_a_pool_of_a_namespace(flags, environ, namespace):
    found = pool("--pool-name=p", *flags, **environ)
    assert (found.source.namespace, found.source.pool, found.name) == (namespace, "p", "p")
    assert (found.source.selector, found.source.elect) == (None, False)
    assert found.source.access.environ == environ


def test_more_about_a_pool():
    flags = ("--ha-enable-leader-election", "--kubeconfig=/k", "--pool-name=p")
    source = pool(*flags).source
    assert (source.elect, source.access.kubeconfig) == (True, "/k")
    assert not pool("--pool-name=p", "--ha-enable-leader-election=false").source.elect


@pytest.mark.parametrize(
    ("flags", "asked"),
    [
        (["--pool-name=p"], True),
        (["--endpoint-selector=app=vllm", "--endpoint-target-ports=8000"], True),
        (["--pool-name=p", "--metrics-endpoint-auth=false"], False),
        (["--endpoints-file=a"], False),
        (["--endpoints-file=a", "--metrics-endpoint-auth"], True),
    ],
)
def test_the_api_is_asked_about_readers_of_metrics_where_there_is_one(flags, asked):
    access = pool(*flags, "--kubeconfig=/k").metrics_access
    assert (access is not None) == asked
    assert access is None or access.kubeconfig == "/k"


@pytest.mark.parametrize(
    ("pod", "name"),
    [
        ("epp-7d9f8b6c5-x2x4z", "epp"),
        ("my-epp-7d9f8b6c5-x2x4z", "my-epp"),
        ("my-epp-7d9f8b6c5-24567", "my-epp"),
        ("epp-0", "epp"),
        ("my-epp-12", "my-epp"),
        ("epp", "epp"),
    ],
)
def test_a_selector_is_called_by_the_deployment_or_stateful_set_that_picks(pod, name):
    flags = ("--endpoint-selector=app=vllm, role=decode", "--endpoint-target-ports=8000, 8001")
    found = pool(*flags, POD_NAME=pod)
    assert (found.source.selector, found.source.ports) == (VLLM, (8000, 8001))
    assert found.name == found.source.pool == name
    assert pool(*flags).name == "default"
    again = (flags[0], "--endpoint-target-ports=8000,8000", "--endpoint-target-ports=8001")
    assert pool(*again).source.ports == (8000, 8001)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (
            [
                *("--endpoints-file=a", "--pool-name=p", "--pool-namespace=n"),
                *("--endpoint-target-ports=1", "--ha-enable-leader-election"),
            ],
            ["--pool-namespace", "--endpoint-target-ports", "--ha-enable-leader-election"],
        ),
        (["--pool-name=p", "--endpoint-target-ports=1"], ["--endpoint-target-ports"]),
        (["--pool-name=p", "--pool-namespace=n", "--ha-enable-leader-election"], []),
        (["--endpoint-selector=a=b", "--endpoint-target-ports=1"], []),
    ],
)
def test_flags_without_meaning_for_the_source_are_said(flags, names):
    assert noticed(flags) == names


def noticed(flags, configured=""):
    parser = argparse.ArgumentParser()
    add_serve(parser)
    arguments = parser.parse_args(flags)
    said = pool_notices(arguments, pool_of(arguments, configured, {}).source)
    return [each.name for each in said]


def test_a_selector_beside_a_file_of_the_configuration_has_no_effect():
    # llm-d-router's flags require it, or a pool, even then.
    flags = ["--endpoint-selector=a=b", "--endpoint-target-ports=1"]
    assert pool(*flags, configured="a.yaml").source == Path("a.yaml")
    assert noticed(flags, "a.yaml") == ["--endpoint-selector", "--endpoint-target-ports"]


SELECTED = "--endpoint-selector=app=vllm"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "no endpoints: name an InferencePool with --pool-name"),
        (["--pool-name=p", "--pool-group=x"], "--pool-group: no InferencePools are known in `x`"),
        ([SELECTED], "--endpoint-target-ports: takes 1 to 8 ports"),
        (
            [SELECTED, "--endpoint-target-ports=1,2,3,4,5,6,7,8,9"],
            "--endpoint-target-ports: takes 1 to 8 ports",
        ),
        (
            [SELECTED, "--pool-name=p"],
            "--endpoint-selector and --pool-name: give only one of these",
        ),
        (
            [SELECTED, "--endpoints-file=a"],
            "--endpoints-file and --endpoint-selector: give only one of",
        ),
    ],
)
def test_flags_that_do_not_go_together(flags, said):
    with pytest.raises(ConfigError) as raised:
        pool(*flags)
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize(
    ("text", "read"),
    [("app=vllm,role=decode", VLLM), ("a/b=", {"a/b": ""}), (" a = b ", {"a": "b"})],
)
def test_selectors(text, read):
    assert labels(text) == read


@pytest.mark.parametrize(
    "text",
    [
        "app",
        "!app",
        "app!=vllm",
        "app in (a, b)",
        "env in (prod,staging),tier!=frontend",
        "app=vllm,role notin (prefill)",
        "size>3",
    ],
)
def test_selectors_that_the_api_evaluates(text):
    assert labels(text) == text
    flags = (f"--endpoint-selector={text}", "--endpoint-target-ports=8000")
    assert pool(*flags).source.selector == text


@pytest.mark.parametrize("text", ["", "=vllm", "app=vllm,", "app in", "app in (a", "a b", "a=b c"])
def test_no_selectors(text):
    with pytest.raises(argparse.ArgumentTypeError, match="write app=vllm,role=decode"):
        labels(text)


@pytest.mark.parametrize("text", ["", "0", "8000,", "x", "70000", "8000;8001"])
def test_no_ports(text):
    with pytest.raises(argparse.ArgumentTypeError, match="write"):
        port_list(text)
