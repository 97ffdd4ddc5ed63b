"""The command `epp`: its options, output and exit status."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from epp import __version__, compiled
from epp.adapters.tls import certificate
from epp.cli.main import main
from epp.config.file import POLICIES, load
from tests.native.built import needs_native

ENDPOINTS = "endpoints: [{name: a, address: 127.0.0.1, port: 8000}]"


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "file.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


@pytest.mark.parametrize("policy", POLICIES)
def test_check_prints_the_effective_configuration(policy, written, capsys):
    assert main(["check", written(POLICIES[policy])]) == 0
    said = capsys.readouterr()
    assert load(said.out).profile == load(POLICIES[policy]).profile
    assert said.err == ""


SECTION = """
flowControl:
  maxBytes: 10
  defaultPriorityBand: {maxRequests: 5}
  saturationDetector: {pluginRef: utilization-detector}
"""


@pytest.mark.parametrize(
    ("gates", "said"),
    [
        ("featureGates: [flowControl]", {"flowControl.maxBytes": "honoured"}),
        (
            "featureGates: [flowControl=false]",
            dict.fromkeys(
                ["flowControl.maxBytes", "flowControl.defaultPriorityBand"],
                "without effect here, because feature gate `flowControl` is off",
            ),
        ),
    ],
)
def test_check_calls_nothing_honoured_whose_feature_gate_is_off(gates, said, written, capsys):
    assert main(["check", written(gates + SECTION)]) == 0
    rows = re.findall(
        r"^#   (flowControl\.\w+) +\S+  +(.*)$", capsys.readouterr().out, re.MULTILINE
    )
    assert dict(rows) == said


EVIL = "\x1b[2J\x9b31m\u202e\u2028\x7f"


@pytest.mark.parametrize(
    "text",
    [
        f"plugins: [{{type: {json.dumps(EVIL)}}}]",
        f"plugins: [{{type: random-picker, name: {json.dumps(EVIL)}}}]",
        f"plugins: [{{type: random-picker, parameters: {{{json.dumps(EVIL)}: 1}}}}]",
        f"{json.dumps(EVIL)}: 1",
        EVIL,
    ],
)
def test_check_prints_nothing_that_a_terminal_obeys(text, written, capsys):
    main(["check", written(text)])
    said = capsys.readouterr()
    assert all(line.isprintable() for each in said for line in each.split("\n"))


def test_what_argparse_refuses_is_one_line_that_no_terminal_obeys(capsys):
    with pytest.raises(SystemExit):
        main(["check", "a", f"--x{EVIL}\nepp: forged"])
    said = capsys.readouterr().err
    assert all(line.isprintable() for line in said.split("\n"))
    assert "\nepp: forged" not in said


def test_a_configuration_may_come_from_a_pipe_and_has_an_end(capsys):
    reading, writing = os.pipe()
    os.write(writing, POLICIES["round-robin"].encode())
    os.close(writing)
    assert main(["check", f"/dev/fd/{reading}"]) == 0
    os.close(reading)
    assert "round-robin" in capsys.readouterr().out
    assert main(["check", "/dev/zero"]) == 2
    assert "/dev/zero is longer than 16777216 bytes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        (POLICIES["round-robin"].encode(), 0, "round-robin"),
        (b"plugins: [", 2, "epp: -: line 2, column 1: not valid YAML"),
        (b"\xff", 2, "epp: CONFIG: - is not UTF-8 text"),
    ],
)
def test_a_configuration_may_come_from_standard_input(text, status, said, epp):
    ran = epp("check", "-", given=text)
    assert ran.returncode == status
    assert said in ran.stdout + ran.stderr


def test_an_error_of_a_configuration_names_its_file(written, capsys):
    path = written("plugins: [{type: zzz}]")
    said = "plugins[0].type: unknown plug-in"
    for words in (["serve"], ["up", "http://127.0.0.1:1"]):
        assert main([*words, f"--config-file={path}"]) == 2
        assert capsys.readouterr().err.startswith(f"epp: --config-file {path}: {said}")
    assert main(["check", path]) == 2
    assert capsys.readouterr().err.startswith(f"epp: {path}: {said}")


DISCOVERS = """
plugins: [{{type: random-picker}}, {{type: file-discovery, parameters: {{path: {bad}}}}}]
dataLayer: {{discovery: {{pluginRef: file-discovery}}}}
"""
PAGES = """
plugins:
- {{type: random-picker}}
- type: metrics-data-source
  parameters: {{scheme: https, insecureSkipVerify: false, caCertPath: {bad}}}
"""
NAMED_FILES = {
    "--endpoints-file": ["--endpoints-file={bad}"],
    "file-discovery": [f"--config-text={DISCOVERS}"],
    "--cert-path": ["--cert-path={folder}", "--endpoints-file={good}"],
    "--metrics-cert-dir": ["--metrics-cert-dir={folder}", "--endpoints-file={good}"],
    "--metrics-client-ca-file": [
        *("--metrics-cert-dir={pair}", "--endpoints-file={good}"),
        "--metrics-client-ca-file={bad}",
    ],
    "--kubeconfig": ["--kubeconfig={bad}", "--pool-name=pool"],
    "--hash-secret-file": ["--hash-secret-file={folder}", "--endpoints-file={good}"],
    "--record": ["--record={bad}", "--endpoints-file={good}"],
    "metrics-data-source": [f"--config-text={PAGES}", "--endpoints-file={good}"],
}
"""Flags and settings, each with a file that cannot be used."""


@pytest.mark.parametrize("setting", NAMED_FILES)
def test_an_error_of_a_file_names_the_file_and_the_flag_or_setting(setting, tmp_path, epp):
    places = {name: tmp_path / name for name in ("bad", "good", "folder", "pair")}
    places["bad"].write_text("endpoints: [{name: a, address: x, port: 1}]")
    places["good"].write_text(ENDPOINTS)
    places["folder"].mkdir()
    places["pair"].mkdir()
    for name, content in zip(("tls.key", "tls.crt"), certificate(None), strict=True):
        (places["pair"] / name).write_bytes(content)
    flags = [each.format(**places) for each in NAMED_FILES[setting]]
    ran = epp("serve", "--transport=grpcio", *ANY_PORTS, *flags)
    last = ran.stderr.splitlines()[-1]
    assert (ran.returncode, last.startswith(f"epp: {setting}")) == (2, True), last
    assert str(tmp_path) in last


@pytest.mark.parametrize("words", [["serve", "--endpoints-file={}"], ["up", "http://127.0.0.1:1"]])
def test_a_recording_that_cannot_be_written_is_refused_at_the_start(words, written, capsys):
    endpoints = written(ENDPOINTS)
    for record in (endpoints, f"{endpoints}/recording"):
        assert main([*(word.format(endpoints) for word in words), f"--record={record}"]) == 2
        said = f"epp: --record: cannot write to the folder {record}: Not a directory\n"
        assert capsys.readouterr().err == said


PORTS = ("--metrics-port", "--grpc-health-port", "--grpc-port")
ANY_PORTS = [f"{each}=0" for each in PORTS]


@pytest.fixture
def refused(epp, written):
    """Run `epp serve`, which has to fail; return the last line that it says."""

    def serve(*flags):
        ran = epp("serve", f"--endpoints-file={written(ENDPOINTS)}", *flags)
        assert ran.returncode == 2
        return ran.stderr.splitlines()[-1]

    return serve


@pytest.mark.parametrize("transport", ["grpcio", pytest.param("native", marks=needs_native)])
@pytest.mark.parametrize("flag", PORTS)
def test_a_port_in_use_is_said_with_its_flag(flag, transport, refused):
    with socket.create_server(("", 0)) as server:
        taken = server.getsockname()[1]
        ports = [f"{each}={taken if each == flag else 0}" for each in PORTS]
        last = refused("--secure-serving=false", f"--transport={transport}", *ports)
    assert last == f"epp: {flag}: cannot listen: port {taken}: Address already in use"


@pytest.mark.parametrize("address", ["nosuch.invalid", "192.0.2.1"])  # RFC 5737: of no machine
def test_what_is_no_address_of_this_machine_is_said_with_its_flag(address, refused):
    last = refused(f"--bind-address={address}", "--metrics-port=0")
    assert last.startswith(f"epp: --bind-address: cannot listen on `{address}`: ")


@pytest.mark.parametrize("words", [["check", "{}"], ["check", "--native"]])
def test_what_cannot_be_printed_is_said_in_one_line(words, written, epp):
    path = written(POLICIES["round-robin"])
    with Path("/dev/full").open("w") as full:
        done = epp(*(word.format(path) for word in words), stdout=full.fileno())
    assert (done.returncode, done.stderr) == (1, "epp: No space left on device\n")


# Files of no length are what a full disk leaves; Python looks for a folder that it can write to.
NO_ROOM = """
import resource, tempfile
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
tempfile.tempdir = {!r} or None
"""
UP = ("up", "--port=0", "http://127.0.0.1:1")
WORKERS = ("serve", "--workers=2", "--endpoints-file=e.yaml")
NO_FOLDER = "no folder for temporary files can be written; set TMPDIR"


@pytest.mark.parametrize(
    ("words", "found", "ended"),
    [
        (UP, "", (2, f"epp: {NO_FOLDER}\n")),
        (UP, ".", (1, "epp up: File too large\n")),
        (("demo", "--report=r.html"), "", (1, f"The demo failed: {NO_FOLDER}\n")),
        pytest.param(WORKERS, "", (2, f"epp: {NO_FOLDER}\n"), marks=needs_native),
    ],
)
def test_a_start_without_room_for_temporary_files_is_refused(words, found, ended, tmp_path, epp):
    (tmp_path / "e.yaml").write_text(ENDPOINTS)
    done = epp(*words, folder=tmp_path, first=NO_ROOM.format(found))
    assert (done.returncode, done.stderr) == ended


def test_a_reader_of_what_is_printed_may_go(written, epp):
    reading, writing = os.pipe()
    os.close(reading)
    done = epp("check", written(POLICIES["round-robin"]), stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_check_warns_of_a_tokenizer_that_cannot_be_loaded(written, capsys):
    text = """
plugins:
- {type: random-picker}
- {type: token-producer, parameters: {tokenizer: /nowhere}}
"""
    assert main(["check", written(text)]) == 0
    said = capsys.readouterr()
    assert "tokenizer: /nowhere" in said.out
    assert said.err == (
        "epp: warning: cannot read /nowhere: No such file or directory;"
        " prompts would be routed as text\n"
    )


def test_check_warns_of_scores_that_have_no_effect(written, capsys):
    assert main(["check", written("plugins: [{type: queue-scorer}, {type: random-picker}]")]) == 0
    assert capsys.readouterr().err == (
        "epp: warning: plugins: the scores of `queue-scorer` would have no effect:"
        " `random-picker` ignores scores\n"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plugins: [{type: queue-score}]", "plugins[0].type: unknown plug-in type `queue-score`"),
        ("plugins: [", "line 2, column 1: not valid YAML"),
        ("", "the configuration is empty"),
        (b"\xff\xfe\xfd", "is not UTF-8 text"),
    ],
)
def test_check_prints_the_error(text, said, written, capsys):
    assert main(["check", written(text)]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("epp: ")
    assert said in printed.err
    assert "file.yaml" in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)


def test_a_file_that_is_not_there(tmp_path, capsys):
    missing = str(tmp_path / "missing.yaml")
    assert main(["check", missing]) == 2
    assert f"CONFIG: cannot read {missing}: No such file" in capsys.readouterr().err
    assert main(["check", str(tmp_path)]) == 2
    assert "Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "no endpoints: name an InferencePool with --pool-name"),
        (["--config-text", "plugins: [{type: zzz}]"], "--config-text: plugins[0].type: unknown "),
        (["--config-text", "{"], "--config-text: line 2, column 1: not valid YAML"),
        (["--feature-gates", "zzz"], "--feature-gates: featureGates[0]: no feature gate is named"),
        (["--model-server-metrics-path", "a b"], "--model-server-metrics-path: plugins[1].param"),
        (["--config-file", "/nowhere/c.yaml"], "--config-file: cannot read /nowhere/c.yaml"),
    ],
)
def test_serve_does_not_start_on_what_it_cannot_use(flags, said, capsys):
    assert main(["serve", *flags]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "said"),
    [("/nowhere/secret", "cannot read /nowhere/secret"), ("/dev/null", "/dev/null is empty")],
)
def test_a_secret_that_is_not_there(file, said, written, capsys):
    flags = ["--endpoints-file", written(ENDPOINTS), "--hash-secret-file", file]
    assert main(["serve", *flags]) == 2
    assert f"--hash-secret-file: {said}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "COMMAND is missing: choose from serve, check, up, "),
        (["fly"], "invalid choice: 'fly': choose from serve, check"),
        (["serv"], "invalid choice: 'serv': did you mean `serve`?"),
        (["serve", "--policy", "best"], "invalid choice: 'best'"),
        (["serve", "--grpc-port", "http"], "`http` is not a port"),
        (["serve", "--grpc-port", "99999"], "`99999` is not a port"),
        (["serve", "--scrape-interval", "0s"], "`0s` is not an interval"),
        (["serve", "--drain-timeout", "soon"], "`soon` is not a duration"),
        (["serve", "--max-body-bytes", "big"], "`big` is not a size"),
        (["serve", "--observe-responses", "sample:4"], "write auto, all, first or"),
        (["serve", "--secure-serving=perhaps"], "neither true nor false"),
        (["serve", "--policy", "random", "--config-text", "{}"], "not allowed with"),
        (["explain", "--last", "0"], "`0` is not a number from 1 to 100"),
        (["explain", "--last", "ten"], "`ten` is not a number from 1 to 100"),
        (["demo", "--servers", "two"], "`two` is not a whole number above 0"),
        (["demo", "--servers", "0"], "`0` is not a whole number above 0"),
        (["demo", "--seconds", "nan"], "`nan` is not a number above 0"),
        (["check"], "one of the arguments CONFIG --native is required"),
        (["check", "file", "--native"], "not allowed with"),
    ],
)
def test_wrong_usage_is_exit_code_2(argv, said, capsys):
    with pytest.raises(SystemExit) as raised:
        main(argv)
    assert raised.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([], ["serve", "check", "up", "replay", "demo", "--version"]),
        (
            ["serve"],
            ["--endpoints-file", "--config-file", "--grpc-port", "9002", "9003", "9090", "64Mi"],
        ),
        (["check"], ["CONFIG"]),
        (["up"], ["URL", "--worker-urls", "Exit status"]),
        (["replay"], ["TRACE|WORKLOAD", "--pods", "--seeds", "h100", "Exit status"]),
        (["demo"], ["loopback"]),
    ],
)
def test_help_helps(command, words, capsys):
    with pytest.raises(SystemExit) as raised:
        main([*command, "--help"])
    assert raised.value.code == 0
    said = capsys.readouterr().out
    assert [word for word in words if word not in said] == []


def test_every_option_has_a_help_text(capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    lines = capsys.readouterr().out.splitlines()
    bare = [
        line.strip()
        for line, after in zip(lines, [*lines[1:], ""], strict=True)
        if line.startswith("  --") and "  " not in line.strip() and not after.startswith("        ")
    ]
    assert bare == []


_AS_FAR_AS_ITS_OPTIONS = """
import sys
from epp.cli.main import main
status = main(["serve", "--record", ".", "--shadow", "nowhere", "--endpoints-file", sys.argv[1]])
print(status, *sorted(sys.modules))
"""


def test_serve_waits_for_nothing_that_only_other_commands_need(written):
    asked = subprocess.run(
        [sys.executable, "-c", _AS_FAR_AS_ITS_OPTIONS, written(ENDPOINTS)],
        capture_output=True,
        text=True,
        check=True,
    )
    status, *modules = asked.stdout.split()
    assert (status, "--shadow: `nowhere`" in asked.stderr) == ("2", True)
    assert "epp.app.options" in modules
    others = ("epp.replay", "epp.demo", "epp.up", "epp.cli.replay_flags", "epp.cli.up_flags")
    assert [name for name in modules if name.startswith(others)] == []


def test_as_a_program(written):
    def run(*argv):
        return subprocess.run(
            [sys.executable, "-m", "epp", *argv], capture_output=True, text=True, check=False
        )

    told = run("--version")
    assert (told.returncode, told.stdout) == (0, f"warmpick {__version__}\n")
    path = written("plugins: [{type: nothing}]")
    told = run("check", path)
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr == f"epp: {path}: plugins[0].type: unknown plug-in type `nothing`\n"


def checked_native(**environment):
    """Ask a process of its own, since what is imported stays imported."""
    return subprocess.run(
        [sys.executable, "-m", "epp", "check", "--native"],
        env=os.environ | {"WARMPICK_REQUIRE_NATIVE": ""} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_check_native_lists_each_module_its_compiler_and_fault():
    asked = checked_native(WARMPICK_NATIVE="off")
    assert (asked.returncode, asked.stderr) == (0, "")
    head, *lines, transport = asked.stdout.splitlines()
    assert head.split() == ["MODULE", "COMPILER", "STATE"]
    assert [tuple(line.split()[:2]) for line in lines] == list(compiled.MODULES.items())
    assert transport.startswith("--transport native: ")
    assert all(line.endswith(compiled.OFF) for line in lines)


def test_check_native_fails_where_modules_are_required():
    assert checked_native(WARMPICK_NATIVE="off", WARMPICK_REQUIRE_NATIVE="1").returncode == 1
