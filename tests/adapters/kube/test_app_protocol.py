"""The protocol that a pool says it speaks, against what the parsers read."""

from structlog.testing import capture_logs

from tests.adapters.kube.rig import CRDS, discovering, pod
from tests.kubeapi import FakeKubernetes
from tests.protocol.kube.objects import pool


async def test_a_pool_with_a_protocol_that_no_parser_reads_is_not_ready(tmp_path):
    spoken = pool()
    spoken["spec"]["appProtocol"] = "http"

    def fault(protocol):
        return "`vllmgrpc-parser` cannot read http" if protocol == "http" else ""

    with capture_logs() as logs:
        async with FakeKubernetes(crds=CRDS) as api:
            api.put(spoken)
            api.put(pod("a"))
            async with discovering(api, tmp_path, fault) as (discovery, fleet):
                await fleet.until(lambda: fleet.targets == ["10.0.0.1:8000"] and fleet.listed)
                api.put(pod("b", "10.0.0.2"))
                await fleet.until(lambda: len(fleet.targets) == 2)
                assert not discovery.ready
                spoken["spec"]["appProtocol"] = "kubernetes.io/h2c"
                api.put(spoken)
                await fleet.until(lambda: discovery.ready)
    (line,) = [each for each in logs if each["event"] == "pool.app_protocol_unreadable"]
    assert line["why"] == "`vllmgrpc-parser` cannot read http"
