from pathlib import Path

import pytest

from epp.cli.go_arguments import GoArgumentParser
from epp.cli.serve_flags import add_serve
from epp.cli.up_flags import add_up, up_options
from epp.config.file import POLICIES, load
from epp.errors import ConfigError
from epp.up.servers import ModelServer

URL = "http://10.0.0.11:8000"
NO_FILE = load(POLICIES["least-ttft"])


def options(*argv, settings=NO_FILE, **environ):
    parser = GoArgumentParser()
    add_up(parser)
    return up_options(parser.parse_args(argv), settings, environ)


def test_a_url_is_enough():
    found = options(URL)
    assert found.servers == (ModelServer("http", "10.0.0.11", 8000),)
    assert (found.host, found.port, found.metrics_port) == ("127.0.0.1", 8080, 0)
    assert found.policy == "least-ttft"
    assert found.picker_flags == (
        "--policy=least-ttft",
        "--poll-models",
        "--scrape-interval=1.000000000",
        "--observe-responses=auto",
        "--max-body-bytes=67108864",
        "--debug-headers=false",
        "--drain-timeout=0",
    )


@pytest.mark.parametrize(
    "argv",
    [
        [URL, "http://10.0.0.12:8000"],
        ["--worker-urls", URL, "http://10.0.0.12:8000"],
        ["--worker-urls", URL, "--worker-urls", "http://10.0.0.12:8000"],
        [URL, "--worker-urls", "http://10.0.0.12:8000", "--port", "1"],
        [URL, "--debug-headers", "http://10.0.0.12:8000"],
    ],
)
def test_servers_are_named_as_other_routers_have_it(argv):
    assert [each.host for each in options(*argv).servers] == ["10.0.0.11", "10.0.0.12"]


@pytest.mark.parametrize(
    ("argv", "name", "flag"),
    [
        (["--policy=linear"], "linear", "--policy=linear"),
        (["--config-file=/x.yaml"], "/x.yaml", "--config-file=/x.yaml"),
        (["--config-text=a: b"], "--config-text", "--config-text=a: b"),
    ],
)
def test_the_policy_is_the_pickers(argv, name, flag):
    found = options(URL, *argv)
    assert (found.policy, found.picker_flags[0]) == (name, flag)


@pytest.mark.parametrize(("interval", "seconds"), [("50us", 5e-5), ("1m30s", 90.0)])
def test_the_picker_reads_the_interval_that_is_given(interval, seconds):
    picker = GoArgumentParser()
    add_serve(picker)
    flags = options(URL, "--scrape-interval", interval).picker_flags
    assert picker.parse_args(flags).scrape_interval == pytest.approx(seconds)


def test_a_configuration_may_name_the_endpoints_file():
    settings = load(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
        "plugins:\n- {type: file-discovery, parameters: {path: /e.yaml}}\n"
        "dataLayer: {discovery: {pluginRef: file-discovery}}\n"
    )
    assert options(settings=settings).endpoints_path == Path("/e.yaml")
    assert options(URL, settings=settings).endpoints_path is None


def test_recording_and_shadow_are_the_pickers():
    flags = ("--record=r", "--record-max-bytes=2Mi", "--shadow=linear", "--tracing")
    found = options(URL, *flags).picker_flags
    wanted = {f"--record={Path('r').absolute()}", "--record-max-bytes=2097152", "--shadow=linear"}
    assert wanted <= set(found)
    assert "--tracing" in found
    assert not any(
        flag.startswith(("--record", "--shadow", "--tracing")) for flag in options(URL).picker_flags
    )


def test_the_key_stays_where_it_is():
    found = options(URL, "--upstream-api-key-env=KEY", KEY="sk-1")
    assert found.api_key_env == "KEY"
    assert "sk-1" not in repr(found)


REFUSED = {
    "nothing": ([], "no model servers: give URLs, as in `epp up http://10.0.0.11:8000`"),
    "both": ([URL, "--endpoints-file=x"], "--endpoints-file and URLs: give only one of these"),
    "half": ([URL, "--tls-key=x"], "--tls-key: it requires --tls-cert"),
    "no https": (
        [URL, "--insecure-upstream"],
        "--insecure-upstream: it has no effect, because no server uses https",
    ),
    "no https to check": (
        [URL, "--upstream-ca-file=x"],
        "--upstream-ca-file: it has no effect, because no server uses https",
    ),
    "checked and not": (
        ["https://a", "--upstream-ca-file=x", "--insecure-upstream"],
        "--upstream-ca-file and --insecure-upstream: give only one of these",
    ),
    "a key": ([URL, "--upstream-api-key-env=sk-1"], "not the name of an environment variable"),
    "no key": ([URL, "--upstream-api-key-env=NONE"], "NONE is empty or not set"),
    "two lines": ([URL, "--upstream-api-key-env=TWO"], "the value of TWO is not an API key"),
    "no room": ([URL, "--record=r", "--record-max-bytes=1Ki"], "1024 bytes are too few"),
    "no such shadow": ([URL, "--shadow=none.yaml"], "--shadow: "),
    "a path": ([f"{URL}/v1"], "leave out `/v1`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    argv, said = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        options(*argv, TWO="sk-1\nx: y")
    assert said in str(caught.value)
    assert "sk-1" not in str(caught.value)


@pytest.mark.parametrize(
    "argv",
    [
        ["--pory", "1"],
        ["--port=http"],
        ["--port=65536"],
        ["--drain-timeout=long"],
        ["--policy=cache_aware"],
    ],
)
def test_values_of_another_kind_are_usage_errors(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        options(URL, *argv)
    assert caught.value.code == 2
    assert argv[0].partition("=")[0] in capsys.readouterr().err
