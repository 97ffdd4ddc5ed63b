"""The quickstart's `kubectl apply -k`, as far as it concerns what the picker reads."""

from tests.charts.helm import ROOT
from tests.kubeapi import FakeKubernetes
from tests.kubeapi_tests.kubectl import Kubectl, needs_kubectl

MANIFESTS = ROOT / "manifests"


@needs_kubectl("the quickstart's `kubectl apply -k`")
async def test_the_crds_and_then_what_is_of_them_are_applied(tmp_path):
    async with FakeKubernetes(tls=True) as api:
        kubectl = Kubectl(api, tmp_path)
        # The schemas that kubectl itself would look at are not served there.
        apply = ("apply", "--server-side", "--validate=false", "-k")
        created = await kubectl(*apply, str(MANIFESTS / "crds"))
        assert created.count("serverside-applied") == 5
        applied = await kubectl(*apply, str(MANIFESTS / "pools"))
        assert sorted(applied.splitlines()) == [
            "inferencemodelrewrite.llm-d.ai/chat serverside-applied",
            "inferenceobjective.llm-d.ai/batch serverside-applied",
            "inferenceobjective.llm-d.ai/interactive serverside-applied",
            "inferencepool.inference.networking.k8s.io/llm serverside-applied",
            "inferencepool.inference.networking.k8s.io/llm-ranks serverside-applied",
        ]
        defaulted = api.get("InferenceObjective", "batch", group="llm-d.ai")["spec"]["poolRef"]
        assert (defaulted["group"], defaulted["kind"]) == (
            "inference.networking.k8s.io",
            "InferencePool",
        )
        pools = await kubectl("get", "infpool", "-o", "name")
        assert len(pools.split()) == 2
