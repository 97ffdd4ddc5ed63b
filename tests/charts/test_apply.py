"""The quickstart's `kubectl apply -k`: what an API server makes of manifests/ for the picker.

That kustomize builds the folders, and that their objects fit Kubernetes' schemas, is shown in
`test_manifests.py`.
"""

import yaml

from tests.charts.helm import ROOT
from tests.kubeapi import FakeKubernetes

MANIFESTS = ROOT / "manifests"


def listed(folder):
    """The objects of a kustomization, in its order."""
    path = MANIFESTS / folder
    for name in yaml.safe_load((path / "kustomization.yaml").read_text())["resources"]:
        yield from yaml.safe_load_all((path / name).read_text())


async def test_the_crds_take_the_pools_objects_and_fill_in_their_defaults():
    async with FakeKubernetes() as api:
        applied = [api.put(thing) for folder in ("crds", "pools") for thing in listed(folder)]
    names = [(each["kind"], each["metadata"]["name"]) for each in applied]
    assert [kind for kind, _ in names].count("CustomResourceDefinition") == 5
    assert sorted(names[5:]) == [
        ("InferenceModelRewrite", "chat"),
        ("InferenceObjective", "batch"),
        ("InferenceObjective", "interactive"),
        ("InferencePool", "llm"),
        ("InferencePool", "llm-ranks"),
    ]
    (batch,) = [each for each in applied if each["metadata"]["name"] == "batch"]
    reference = batch["spec"]["poolRef"]
    assert reference["group"] == "inference.networking.k8s.io"
    assert reference["kind"] == "InferencePool"
