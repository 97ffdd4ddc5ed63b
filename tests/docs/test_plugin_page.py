"""The plug-in of docs/write-a-plugin.md, packaged as the page says, is found and decides."""

import sys
import tomllib
from typing import Any

import pytest

from epp.cli.main import main
from epp.config.file import load
from epp.model.candidate import Candidate
from epp.model.endpoint import Endpoint, Load
from epp.model.request import InferenceRequest, RequestId
from tests.docs.pages import blocks

PAGE = "docs/write-a-plugin.md"


def fence(language, *, number=0):
    return [each.text for each in blocks(language) if each.page == PAGE][number]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    project = tomllib.loads(fence("toml"))["project"]
    points = project["entry-points"]["warmpick.plugins"]
    info = tmp_path / "spot_scorer-1.0.dist-info"
    info.mkdir()
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(head)
    lines = [f"{name} = {target}\n" for name, target in points.items()]
    (info / "entry_points.txt").write_text("".join(["[warmpick.plugins]\n", *lines]))
    (tmp_path / "spot_scorer.py").write_text(fence("python"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("spot_scorer", None)


@pytest.mark.usefixtures("installed")
def test_its_configuration_is_taken(tmp_path, capsys):
    path = tmp_path / "spot.yaml"
    path.write_text(fence("yaml"))
    assert main(["check", str(path)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("installed")
def test_the_test_of_the_page_passes():
    namespace: dict[str, Any] = {}
    exec(compile(fence("python", number=1), PAGE, "exec"), namespace)  # noqa: S102 (the page's)
    (test,) = [each for name, each in namespace.items() if name.startswith("test_")]
    test()
    assert namespace["SpotScorer"].__module__ == "spot_scorer"


def test_the_page_installs_the_module_of_its_class():
    project = tomllib.loads(fence("toml"))
    (target,) = project["project"]["entry-points"]["warmpick.plugins"].values()
    assert project["tool"]["setuptools"]["py-modules"] == [target.partition(":")[0]]


@pytest.mark.usefixtures("installed")
def test_it_scores_as_the_page_says():
    (scorer,) = [
        each.scorer
        for each in load(fence("yaml")).profile.scorers
        if type(each.scorer).__name__ == "SpotScorer"
    ]
    labels: tuple[dict[str, str], ...] = (
        {"example.com/capacity": "preemptible"},
        {"example.com/capacity": "other"},
        {},
    )
    endpoints = [Endpoint("default", "pod", "10.0.0.1", 8000, labels=each) for each in labels]
    candidates = [Candidate(endpoint=each, load=Load()) for each in endpoints]
    request = InferenceRequest(id=RequestId("request"))
    assert scorer.score(request, candidates) == [0, 1, 1]
