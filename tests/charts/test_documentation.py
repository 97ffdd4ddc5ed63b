"""The commands in docs/kubernetes.md and in the charts' notes are ones that can be followed."""

import itertools
import re
import shlex

import pytest
import yaml

from epp import __version__
from tests.charts import values as v
from tests.charts.helm import CHARTS, ROOT, chart, notes, objects, only
from tests.charts.schemas import complaints
from tests.charts.test_model_server import CASES as SERVERS

PAGES = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")} | {
    "README.md": (ROOT / "README.md").read_text(),
    "crds": (ROOT / "manifests" / "crds" / "README.md").read_text(),
}
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(text):
    """Every command, a line that goes on with a backslash being one."""
    return [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]


DOCUMENTED = [
    (page, shlex.split(command, comments=True))
    for page, text in PAGES.items()
    for block in BLOCK.findall(text)
    for command in commands(block)
    if command.startswith(("helm ", "kubectl "))
]
INSTALLS = [
    words
    for _, words in DOCUMENTED
    if words[:2] == ["helm", "install"] and words[3].startswith("charts/")
]
APPLIES = [words for _, words in DOCUMENTED if words[1] == "apply" and "-k" in words]


def given(words):
    """The values of `helm install RELEASE CHART --set a.b=c ...`."""
    values: dict[str, object] = {}
    for flag, setting in itertools.pairwise(words):
        if flag in {"--set", "--set-string"}:
            values = v.both(values, nested(setting, text=flag == "--set-string"))
    return values


def nested(setting, *, text):
    """Read one setting: dots go down, `\\.` does not, `[0]` is the first of a list."""
    path, _, word = setting.partition("=")
    value = word if text else yaml.safe_load(word)
    for step in reversed(re.split(r"(?<!\\)\.", path)):
        name = step.replace("\\.", ".")
        first = name.removesuffix("[0]")
        value = {first: value if first == name else [value]}
    return value


def test_there_are_commands():
    assert len(INSTALLS) >= 4
    assert len(APPLIES) >= 3


@pytest.mark.parametrize("words", INSTALLS, ids=" ".join)
def test_what_is_installed_renders(words):
    release, folder = words[2:4]
    things = objects(folder.removeprefix("charts/"), given(words), release=release)
    assert [found for thing in things for found in complaints(thing)] == []
    assert (CHARTS / folder.removeprefix("charts/")).is_dir()


@pytest.mark.parametrize("words", APPLIES, ids=" ".join)
def test_what_is_applied_is_there(words):
    assert (ROOT / words[words.index("-k") + 1] / "kustomization.yaml").is_file()


@pytest.mark.parametrize("name", SERVERS)
def test_what_the_notes_of_model_servers_say_installs_their_picker(name):
    (words,) = [
        shlex.split(command)
        for command in commands(notes("model-server", SERVERS[name]))
        if command.startswith("helm install")
    ]
    things = objects("warmpick", given(words), release=words[2])
    (pool,) = [each["spec"] for each in things if each["kind"] == "InferencePool"]
    servers = objects("model-server", SERVERS[name])
    (group,) = [
        each["spec"] for each in servers if each["kind"] in {"Deployment", "LeaderWorkerSet"}
    ]
    template = group.get("template") or group["leaderWorkerTemplate"]["leaderTemplate"]
    assert pool["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_values_that_are_named_exist():
    found = re.findall(r"`(inference(?:Extension|Pool)(?:\.\w+)+)", PAGES["kubernetes.md"])
    of_gateways = {"inferenceExtension.enabled"}
    known = yaml.safe_load((CHARTS / "warmpick" / "values.yaml").read_text())
    for path in {*found} - of_gateways:
        value = known
        for step in path.split("."):
            assert step in value, path
            value = value[step]


@pytest.mark.parametrize("name", ["warmpick", "model-server"])
def test_a_chart_is_of_this_version(name):
    assert chart(name).metadata["version"] == chart(name).metadata["appVersion"] == __version__


@pytest.mark.parametrize("preferred", [False, True])
def test_a_pool_of_ones_own_names_the_service_that_the_charts_pool_names(preferred):
    gke = {"name": "gke", "gke": {"preferredBackends": {"enabled": preferred}}}
    values = v.merged(v.POOL, {"provider": gke})
    service = only(objects("warmpick", values), "InferencePool")["spec"]["endpointPickerRef"][
        "name"
    ]
    text = notes("warmpick", v.merged(values, {"inferencePool": {"create": False}}))
    assert f"endpointPickerRef: {{name: {service}, port: " in text


def test_a_pool_of_ones_own_has_the_fields_of_its_version():
    older = v.merged(v.POOL, v.OLD_POOL)
    wanted = only(objects("warmpick", older), "InferencePool")["spec"]["extensionRef"]
    text = notes("warmpick", v.merged(older, {"inferencePool": {"create": False}}))
    (line,) = (each for each in text.splitlines() if each.startswith("     spec: "))
    assert yaml.safe_load(line)["spec"]["extensionRef"].items() <= wanted.items()
