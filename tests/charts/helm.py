"""Charts as Helm itself renders them, in process; loud where Helm's library cannot be had."""

import functools
import os
from pathlib import Path

import pytest
import yaml

from tests.charts.kept import Kept

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "charts"
kept = Kept(CHARTS, ROOT / ".cache" / "charts")
SAFE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's where it was built: the charts' tests read thousands of objects."""


class Loader(SAFE):  # type: ignore[valid-type,misc]  # one of two classes
    """Takes no map that has a key twice, as Flux and `kubectl apply` do not."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(set(keys)) == len(keys), f"a key is listed twice: {sorted(keys)}"
        return super().construct_mapping(node, deep=deep)


try:
    from helm_python import chart as helm
    from helm_python.errors import HelmError
except (ImportError, OSError) as error:
    reason = (
        f"NOT TESTED: the charts: Helm's library cannot be loaded here ({error}); `make setup`"
        " installs it on Linux on x86-64"
    )
    if os.environ.get("WARMPICK_REQUIRE_NATIVE") == "1":
        raise RuntimeError(reason) from error
    pytest.skip(reason, allow_module_level=True)


@functools.cache
def chart(name):
    """Load a chart once; it is immutable."""
    return helm.Chart.load(CHARTS / name)


def files(name, values, release="rel", namespace="inf"):
    """Render a chart: {path below the chart: text}. Raises HelmError if the chart refuses."""
    return _unless_refused(_files(name, values, release, namespace))


def objects(name, values, release="rel", namespace="inf"):
    """Every object that the chart renders, in the order of its files."""
    return _unless_refused(_objects(name, values, release, namespace))


def _unless_refused(made):
    if isinstance(made, str):
        raise HelmError(made)
    return made


@kept
def _files(name, values, release, namespace):
    try:
        rendered = chart(name).render(values, name=release, namespace=namespace)
    except HelmError as refused:
        return str(refused)
    return {path.removeprefix(f"{name}/"): text for path, text in rendered.items()}


@kept
def _objects(*given):
    rendered = _files(*given)
    if isinstance(rendered, str):
        return rendered
    return [
        thing
        for path, text in sorted(rendered.items())
        if not path.endswith("NOTES.txt")
        for thing in yaml.load_all(text, Loader)
        if thing is not None
    ]


def notes(name, values):
    return files(name, values)["templates/NOTES.txt"]


def only(things, kind, name=None):
    """The one object of a kind (and name)."""
    (found,) = [
        thing
        for thing in things
        if thing["kind"] == kind and name in (None, thing["metadata"]["name"])
    ]
    return found


def refused_or_rendered(name, values):
    """Every object, and "", or none, and what the chart says when it does not take the values."""
    try:
        return objects(name, values), ""
    except HelmError as refused:
        return [], str(refused)


@kept
def lint(name, values):
    """What `helm lint --strict` complains of."""
    return [
        message["error"]
        for message in helm.lint(str(CHARTS / name), values, strict=True)["messages"]
        if message["severity"] > 1
    ]
