"""The pinned CRDs: Kubernetes takes them, and they say what upstream's say."""

import os
from pathlib import Path

import pytest

from tests.charts.schemas import ROOT, complaints, crds

OURS = {each["metadata"]["name"]: each for each in crds(ROOT / "manifests" / "crds")}
UPSTREAM = os.environ.get("WARMPICK_UPSTREAM_CRDS")


def bare(part):
    """A definition without words: descriptions, the order of `required`, and status."""
    if isinstance(part, list):
        return [bare(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        name: sorted(value) if name == "required" and isinstance(value, list) else bare(value)
        for name, value in part.items()
        if not (name == "description" and isinstance(value, str))
    }


@pytest.mark.parametrize("name", OURS)
def test_kubernetes_takes_it(name):
    assert complaints(OURS[name]) == []


@pytest.mark.parametrize("name", OURS)
def test_it_is_what_upstream_publishes(name):
    if UPSTREAM is None:
        pytest.skip(
            "NOT TESTED: that the CRDs say what upstream's say: set WARMPICK_UPSTREAM_CRDS to a"
            " folder of those that manifests/crds/README.md names"
        )
    theirs = {each["metadata"]["name"]: each for each in crds(Path(UPSTREAM))}[name]
    theirs["metadata"]["annotations"].pop("controller-gen.kubebuilder.io/version", None)
    assert bare(OURS[name]["spec"]) == bare(theirs["spec"])
    assert OURS[name]["metadata"] == theirs["metadata"]


def test_the_resources_are_those_that_the_picker_reads():
    assert {
        (crd["spec"]["group"], crd["spec"]["names"]["plural"], version["name"])
        for crd in OURS.values()
        for version in crd["spec"]["versions"]
    } == {
        ("inference.networking.k8s.io", "inferencepools", "v1"),
        ("inference.networking.x-k8s.io", "inferencepools", "v1alpha2"),
        ("llm-d.ai", "inferenceobjectives", "v1"),
        ("llm-d.ai", "inferenceobjectives", "v1alpha2"),
        ("llm-d.ai", "inferencemodelrewrites", "v1alpha2"),
        ("inference.networking.x-k8s.io", "inferenceobjectives", "v1alpha2"),
        ("inference.networking.x-k8s.io", "inferencemodelrewrites", "v1alpha2"),
    }
