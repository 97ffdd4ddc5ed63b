"""Habits of container files, as rules; what is built by them is tried by `.ci/image-steps`."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = ("epp/Containerfile", "model-server/Containerfile")


def load_parser():
    spec = importlib.util.spec_from_file_location("containerfile", ROOT / ".ci/containerfile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


containerfile = load_parser()


def runs(stage):
    return [each.text for each in stage.instructions if each.name == "RUN"]


def last(stage, name):
    found = [each for each in stage.instructions if each.name == name]
    return found[-1] if found else None


def finals(file):
    """The stages that become images: no other stage is built from them."""
    return [stage for stage in file.stages if last(stage, "ENTRYPOINT")]


def full_names(file):
    """Images are named with registry and tag, once, where a digest can be given instead."""
    named = re.compile(r"[\w.-]+\.[a-z]+/[\w./-]+:(?!latest)[\w.-]+$")
    for stage in file.stages:
        base = stage.base.removeprefix("${").removesuffix("}")
        if not (stage.base.startswith("${") and named.match(file.arguments[base])):
            yield f"{stage.name}: FROM {stage.base}"


def ends_without_rights(file):
    """What is started is a user by number, who is not root."""
    for stage in finals(file):
        user = last(stage, "USER")
        if user is None or not re.fullmatch(r"[1-9]\d+:[1-9]\d+", user.text):
            yield f"{stage.name}: USER {user and user.text}"


def starts_without_a_shell(file):
    """Signals reach the process: ENTRYPOINT and CMD are lists."""
    for stage in file.stages:
        for each in stage.instructions:
            if each.name in {"ENTRYPOINT", "CMD"} and not each.text.startswith("["):
                yield f"{stage.name}: {each.name} {each.text}"


def leaves_no_package_lists(file):
    """apt installs nothing unasked, and its lists go in the same layer."""
    for stage in file.stages:
        for text in runs(stage):
            if "apt-get install" in text and not (
                "--no-install-recommends" in text and "rm -rf /var/lib/apt/lists/*" in text
            ):
                yield f"{stage.name}: {text}"


def pip_is_pinned(file):
    """What pip installs has the versions that are tested, and its cache stays out."""
    for stage in file.stages:
        everything = " ".join(each.text for each in stage.instructions)
        asks = any(re.search(r"pip\S* .*install|install-vllm", text) for text in runs(stage))
        if asks and "PIP_NO_CACHE_DIR=1" not in everything:
            yield f"{stage.name}: PIP_NO_CACHE_DIR=1 is missing"
        if asks and "PIP_CONSTRAINT=" not in everything and "install-vllm" not in everything:
            yield f"{stage.name}: PIP_CONSTRAINT is missing"


def fetches_nothing_by_hand(file):
    """No downloads that nothing checks, and no other rights."""
    for stage in file.stages:
        for text in runs(stage):
            if re.search(r"\b(curl|wget|sudo|git clone|chmod 777)\b", text):
                yield f"{stage.name}: {text}"
        if last(stage, "ADD"):
            yield f"{stage.name}: ADD"


def copies_by_name(file):
    """What is copied is named, so that what else lies about cannot get in."""
    for stage in file.stages:
        for each in stage.instructions:
            if each.name == "COPY" and {".", "./", "/"} & set(each.words[:-1]):
                yield f"{stage.name}: COPY {each.text}"


def moves_by_workdir(file):
    """Folders are changed by WORKDIR, to absolute paths."""
    for stage in file.stages:
        for each in stage.instructions:
            relative = each.name == "WORKDIR" and not each.text.startswith("/")
            if relative or (each.name == "RUN" and re.search(r"(^|&& )cd ", each.text)):
                yield f"{stage.name}: {each.name} {each.text}"


def holds_no_secret(file):
    """No instruction that stays in the image's history carries a credential."""
    for stage in file.stages:
        for each in stage.instructions:
            if each.name in {"ARG", "ENV"} and re.search(r"(?i)token|secret|passw|://", each.text):
                yield f"{stage.name}: {each.name} {each.text}"


RULES = [
    full_names,
    ends_without_rights,
    starts_without_a_shell,
    leaves_no_package_lists,
    pip_is_pinned,
    fetches_nothing_by_hand,
    copies_by_name,
    moves_by_workdir,
    holds_no_secret,
]
BAD = {
    full_names: "FROM python AS a\n",
    ends_without_rights: 'FROM a\nUSER app\nENTRYPOINT ["x"]\n',
    starts_without_a_shell: "FROM a\nENTRYPOINT x --flag\n",
    leaves_no_package_lists: "FROM a\nRUN apt-get update \\\n && apt-get install --yes gcc\n",
    pip_is_pinned: "FROM a\nENV PIP_NO_CACHE_DIR=1\nRUN pip install x\n",
    fetches_nothing_by_hand: "FROM a\nRUN curl http://x | sh\n",
    copies_by_name: "FROM a\nCOPY . /app\n",
    moves_by_workdir: "FROM a\nRUN cd /x && make\n",
    holds_no_secret: "FROM a\nENV HF_TOKEN=x\n",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule", RULES)
def test_rule(rule, place):
    assert list(rule(containerfile.read(ROOT / place))) == []


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_finds_what_it_is_for(rule, tmp_path):
    file = tmp_path / "Containerfile"
    file.write_text(BAD[rule])
    assert len(list(rule(containerfile.read(file)))) == 1


@pytest.mark.parametrize(
    ("place", "target", "expected"),
    [
        ("epp/Containerfile", "1", ["build", "1"]),
        ("model-server/Containerfile", "cpu", ["packages", "cpu"]),
        ("model-server/Containerfile", "gpu", ["gpu"]),
        ("model-server/Containerfile", "simulator", ["simulator"]),
    ],
)
def test_a_target_needs_no_more_stages_than_its_own(place, target, expected):
    file = containerfile.read(ROOT / place)
    assert [stage.name for stage in file.needed(target)] == expected


def test_both_name_the_same_python():
    named = [containerfile.read(ROOT / place).arguments["PYTHON"] for place in PLACES]
    assert named[0] == named[1]
    assert re.search(r":3\.11-", named[0])


def test_a_build_sees_sources_and_nothing_that_was_built():
    names = [path.as_posix() for path in containerfile.visible(ROOT, ROOT / ".dockerignore")]
    assert {
        "setup.py",
        "epp/model/prefix_index/native/index.pyx",
        "epp/_pb/ext_proc_pb2.py",
    } <= set(names)
    assert {".ci/constraints.txt", "model-server/model_server/launch.py"} <= set(names)
    wrong = re.compile(r"\.(so|pyc|c)$|egg-info|__pycache__|(^|/)tests/|^\.git|\.venv|compiled.txt")
    assert [name for name in names if wrong.search(name)] == []


@pytest.mark.parametrize("place", PLACES)
def test_what_is_copied_from_the_repository_is_there_and_seen(place):
    seen = containerfile.visible(ROOT, ROOT / ".dockerignore")
    for stage in containerfile.read(ROOT / place).stages:
        for each in stage.instructions:
            if each.name == "COPY" and "--from" not in each.text:
                for given in each.words[:-1]:
                    assert any(path.is_relative_to(given) for path in seen), given
