"""Every command of every page can be given: its flags, its names and its files are there."""

import importlib.util
import itertools
import re
import subprocess
import tomllib

import pytest
from model_server.command import parser as launcher
from model_server.simulator.cli import parser as simulator

from bench.__main__ import _parser as benchmarks
from docs.site.pages import ROOT
from epp.cli.go_arguments import with_command
from epp.cli.main import _parser
from epp.cli.several_pools import parse
from tests.docs.pages import PAGES, commands, scripts

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
CHARTS = {f"charts/{path.name}" for path in (ROOT / "charts").iterdir()}
OTHERS = {
    *(".", "cat", "cd", "curl", "grep", "head", "jobs", "jq", "kill", "openssl", "printf", "seq"),
    *("sleep", "wait", "zcat"),
    *("envoy", "git", "inference-perf", "istioctl", "kind"),
}
"""Programs that are not of this repository, which are checked to be written as a shell takes it."""
SCRIPTS = [pytest.param(each.text, id=str(each)) for each in scripts()]
COMMANDS = [(each, words) for each in scripts() for words in commands(each.text)]


def epp(words):
    parse(_parser(), with_command(words))


def make(words):
    given = [word for word in words if "=" not in word]
    assert set(given) <= TARGETS


def pip(words):
    assert words[0] == "install"
    for word in words[1:]:
        name, _, extras = word.rstrip("]").partition("[")
        if name in {"warmpick", "."}:
            assert {*filter(None, extras.split(","))} <= PROJECT["optional-dependencies"].keys()
        elif name.startswith("./"):
            assert (ROOT / name / "pyproject.toml").is_file()


def helm(words):
    if words[0] in {"install", "upgrade", "template"}:
        assert words[2] in CHARTS or not words[2].startswith("charts/")


def kubectl(words):
    for flag, value in itertools.pairwise(words):
        if flag == "-k":
            assert (ROOT / value / "kustomization.yaml").is_file()
        if flag == "-f" and value.startswith("manifests/"):
            assert (ROOT / value).exists()


def docker(words):
    for flag, value in itertools.pairwise(words):
        assert flag != "-f" or (ROOT / value).is_file()


def python(words):
    if words[0] == "-m":
        module, rest = words[1], words[2:]
        assert importlib.util.find_spec(module) is not None
        if module in MODULES:
            MODULES[module]().parse_args([re.sub(r"\$\w+", "1", word) for word in rest])
    else:
        assert (ROOT / words[0]).exists()


MODULES = {
    "bench": benchmarks,
    "model_server.launch": lambda: launcher(""),
    "model_server.simulator": simulator,
}
CHECKS = {
    "docker": docker,
    "epp": epp,
    "make": make,
    "pip": pip,
    "helm": helm,
    "kubectl": kubectl,
    "python": python,
    "python3": python,
    "python3.12": python,
}


def test_there_are_commands():
    assert {words[0] for _, words in COMMANDS} > {"epp", "helm", "kubectl", "make", "pip"}


@pytest.mark.parametrize("text", SCRIPTS)
def test_a_shell_takes_it(text):
    whole = re.sub(r"<[a-z ]+>", "PLACEHOLDER", text)
    shell = ["/bin/bash", "-n"]
    asked = subprocess.run(shell, input=whole, text=True, stderr=subprocess.PIPE, check=False)
    assert (asked.returncode, asked.stderr) == (0, "")


@pytest.mark.parametrize(
    "words",
    [pytest.param(words, id=f"{each}: {' '.join(words)[:60]}") for each, words in COMMANDS],
)
def test_a_command_can_be_given(words):
    program = words[0].rpartition("/")[2]
    if program in CHECKS:
        CHECKS[program](words[1:])
    else:
        defined = re.findall(r"^(\w+)\(\) \{", "\n".join(PAGES.values()), re.MULTILINE)
        assert program in {*OTHERS, *defined}
