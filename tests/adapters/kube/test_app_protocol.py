"""The protocol that a pool says it speaks: against what the parsers read, and where pages are."""

import time

from structlog.testing import capture_logs

from epp.adapters.scrape.page_source import PageSource
from epp.adapters.scrape.scraper import Scraper
from epp.model.endpoint import H2C
from epp.model.events import LoadReported, ScrapeFailed
from tests.adapters.h2c_pods import H2cPod
from tests.adapters.kube.rig import CRDS, discovering, pod
from tests.adapters.scraped_pods import FAST, Told, polls_of
from tests.kubeapi import FakeKubernetes
from tests.protocol.kube.objects import pool
from tests.tasks import running


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
                for protocol, ready in (("kubernetes.io/h2c", True), ("http", False)):
                    spoken["spec"]["appProtocol"] = protocol
                    api.put(spoken)
                    await fleet.until(lambda ready=ready: discovery.ready == ready)
    said = [each["why"] for each in logs if each["event"] == "pool.app_protocol_unreadable"]
    assert said == ["`vllmgrpc-parser` cannot read http"] * 2


async def test_pages_are_read_over_what_the_pool_says_at_the_time(tmp_path):
    told, served, spoken = Told(), H2cPod(), pool()
    scraper = Scraper(told, time.monotonic, PageSource(settings=FAST))
    async with served.serving(), FakeKubernetes(crds=CRDS) as api, running(polls_of(scraper)):
        spoken["spec"]["targetPorts"] = [{"number": served.port}]
        api.put(pod("a", "127.0.0.1"))
        async with discovering(api, tmp_path) as (_, fleet):
            for protocol, kind in ((H2C, LoadReported), ("http", ScrapeFailed)) * 2:
                spoken["spec"]["appProtocol"] = protocol
                api.put(spoken)
                await fleet.until(lambda said=protocol: protocols(fleet) == [said])
                told.events.clear()
                scraper.watch(*fleet.endpoints.values())
                await told.until(lambda kind=kind: told.of(kind, "a-rank-0"))
    assert {each[":path"] for each in served.requests} == {"/metrics"}


def protocols(fleet):
    return [each.app_protocol for each in fleet.endpoints.values()]
