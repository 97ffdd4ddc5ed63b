"""The plug-ins of docs/write-a-plugin.md, packaged as the page says, are found and decide."""

import importlib
import tomllib
from pathlib import Path
from typing import Any

import pytest

from epp.cli.main import main
from epp.config.file import load
from epp.errors import PickerFault
from epp.inprocess import open_picker
from epp.model.candidate import Candidate
from epp.model.endpoint import Endpoint, Load
from epp.model.request import InferenceRequest, RequestId
from tests.docs.pages import blocks
from tests.plugin_packages import install
from tests.tasks import until

PAGE = "docs/write-a-plugin.md"
COMPLETIONS = "/v1/completions"
ASKED = {"model": "m", "prompt": "Hello!"}


def fence(language, *, number=0):
    return [each.text for each in blocks(language) if each.page == PAGE][number]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    points = tomllib.loads(fence("toml"))["project"]["entry-points"]["warmpick.plugins"]
    install(tmp_path, monkeypatch, "spot_scorer", fence("python"), points)


def run(number):
    """Return the names of a fence, and run the tests in it; say how many there were."""
    namespace: dict[str, Any] = {}
    exec(compile(fence("python", number=number), PAGE, "exec"), namespace)  # noqa: S102 (the page's)
    tests = [each for name, each in namespace.items() if name.startswith("test_")]
    for each in tests:
        each()
    return namespace, len(tests)


@pytest.mark.usefixtures("installed")
def test_its_configuration_is_taken(tmp_path, capsys):
    path = tmp_path / "spot.yaml"
    path.write_text(fence("yaml"))
    assert main(["check", str(path)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("installed")
def test_the_test_of_the_page_passes():
    namespace, tests = run(1)
    assert tests == 1
    assert namespace["SpotScorer"].__module__ == "spot_scorer"


@pytest.mark.usefixtures("installed")
def test_the_test_with_a_picker_passes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("spot.yaml").write_text(fence("yaml"))
    assert run(2)[1] == 1


LAST = """
plugins: [{type: last, parameters: {mostUsers: 2}}, {type: max-score-picker}]
"""


async def test_the_one_with_state_follows_users_and_forgets(tmp_path, monkeypatch):
    points = {"last": "last_scorer:LastScorer"}
    install(tmp_path, monkeypatch, "last_scorer", fence("python", number=3), points)
    servers = [f"127.0.0.1:{port}" for port in range(1, 9)]
    async with open_picker(servers, config_text=LAST) as picker:

        async def of(user):
            """Return the endpoint of a request, and the score by which it won."""
            async with picker.pick(ASKED, {"X-User": user}, path=COMPLETIONS) as pick:
                (profile,) = pick.explain().profiles
                return pick.endpoint.target, profile.candidates[0].score

        first, unknown = await of("ann")
        assert unknown == 0
        assert await of("ann") == (first, 1)
        for user in ("bob", "cyd"):
            await of(user)
        _, dropped = await of("ann")
        assert dropped == 0
        gone, _ = await of("ann")
        await picker.set_endpoints([each for each in servers if each != gone])
        assert (await of("ann"))[1] == 0


CARBON = """
plugins:
- {type: carbon, parameters: {url: "%s", seconds: 86400, label: zone}}
- {type: max-score-picker}
"""


async def test_the_one_that_asks_a_service_scores_by_what_it_said(tmp_path, monkeypatch):
    points = {"carbon": "carbon_scorer:CarbonScorer"}
    install(tmp_path, monkeypatch, "carbon_scorer", fence("python", number=4), points)
    page = tmp_path / "grams.json"
    page.write_text('{"a": 800, "b": 200}')
    servers = [
        {"name": zone, "address": "127.0.0.1", "port": port, "labels": {"zone": zone}}
        for port, zone in enumerate("ab", 1)
    ]
    async with open_picker(servers, config_text=CARBON % page.as_uri()) as picker:
        feed = importlib.import_module("carbon_scorer").feed(page.as_uri(), 86400)
        await until(lambda: feed.grams)
        async with picker.pick(ASKED, path=COMPLETIONS) as pick:
            (profile,) = pick.explain().profiles
            assert pick.endpoint.name == "b"
            assert {each.endpoint: each.score for each in profile.candidates} == {
                "default/a": pytest.approx(0.2),
                "default/b": pytest.approx(0.8),
            }


METHODS = {
    "process_request": ("a request", "self, request"),
    "request_headers": ("pairs of texts", "self, request, decision, candidates"),
    "response_headers": ("pairs of texts", "self, request, decision, served"),
}


@pytest.mark.parametrize("returned", ["7", '"text"', "[[1, 2]]", "[[a, 1]]", "{a: b}"])
@pytest.mark.parametrize("method", METHODS)
async def test_one_that_returns_something_else_is_named(tmp_path, monkeypatch, method, returned):
    wanted, given = METHODS[method]
    module = (
        "import msgspec\n\nclass Astray(msgspec.Struct, frozen=True):\n    returned: object\n"
        f"    def {method}({given}):\n        return self.returned\n"
    )
    install(tmp_path, monkeypatch, "astray", module, {"astray": "astray:Astray"})
    astray = f"{{type: astray, parameters: {{returned: {returned}}}}}"
    text = f"plugins: [{astray}, {{type: random-picker}}]"
    async with open_picker(["127.0.0.1:1"], config_text=text) as picker:
        with pytest.raises(PickerFault, match=f"astray returned .* instead of {wanted}") as raised:
            async with picker.pick(ASKED, path=COMPLETIONS) as pick:
                pick.finished(b"{}")
    assert raised.value.reason == "plugin-fault"


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
