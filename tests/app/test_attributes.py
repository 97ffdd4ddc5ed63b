"""Decisions by what data sources say of endpoints: from their pages to the pick."""

import contextlib
import time

import pytest

from epp.app.data_sources import DataSources
from epp.config.file import load
from epp.model.events import AttributesReported, EndpointUpserted, LoadReported
from epp.model.fleet import Fleet
from epp.model.prompts.block_hasher import BlockHasher
from epp.policy.scheduler import Scheduler
from tests.adapters.scraped_pods import Told
from tests.app.polled_pages import Pages
from tests.policy.routing import routed
from tests.strategies import SECRET, endpoint, request
from tests.tasks import running

GPU = """
plugins:
- type: dcgm-data-source
  parameters: {port: PORT, useNodeAddress: true}
- type: dcgm-extractor
- type: endpoint-attribute-scorer
  parameters:
    attributeKey: GPUUtilization
    producer: dcgm-extractor
    algorithm: {type: linear_lower_is_better, normalization: {fixedRange: {min: 0, max: 1}}}
- type: max-score-picker
dataLayer:
  injectDefaults: false
  sources: [{pluginRef: dcgm-data-source, extractors: [{pluginRef: dcgm-extractor}]}]
"""
FILTERED = """
plugins:
- type: metrics-data-source
  parameters: {port: PORT}
- type: core-metrics-extractor
  parameters:
    engineConfigs:
    - name: mine
      queuedRequestsSpec: q
      customMetrics: [{attributeKey: Heat, metricSpec: "heat{pod=POD}"}]
- type: endpoint-attribute-filter
  parameters:
    attribute: Heat
    algorithm: {type: threshold, threshold: {operator: LessThan, value: 50}}
- type: max-score-picker
"""
SECOND = """
- {type: metrics-data-source, name: more, parameters: {port: PORT, path: /more}}
dataLayer:
  sources:
  - {pluginRef: metrics-data-source, extractors: [{pluginRef: core-metrics-extractor}]}
  - {pluginRef: more, extractors: [{pluginRef: core-metrics-extractor}]}
"""
CLUSTERS = """
plugins:
- type: multicluster-metrics-data-source
  parameters: {scheme: http}
- type: multicluster-metrics-extractor
- type: multicluster-queue-scorer
- type: max-score-picker
dataLayer:
  sources:
  - pluginRef: multicluster-metrics-data-source
    extractors: [{pluginRef: multicluster-metrics-extractor}]
"""


@contextlib.asynccontextmanager
async def polled(text, endpoints, kind):
    """Give a scheduler over a fleet to which sources have reported an event of each endpoint."""
    settings, told = load(text), Told()
    fleet = Fleet(BlockHasher(SECRET))
    sources = DataSources(settings.data_layer, 0.02, told, time.monotonic)
    for each in endpoints:
        fleet.apply(EndpointUpserted(each), 0.0)
        sources.watch(each)
    async with running(sources.run()):
        for each in endpoints:
            await told.until(lambda name=each.name: told.of(kind, name))
        for event in told.events:
            fleet.apply(event, 0.0)
        yield Scheduler(fleet, settings.scheduling, lambda _: 0)


def picked(scheduler):
    return routed(scheduler, request("r1", "hello"), 0.0)


async def test_the_pod_with_the_idlest_gpu_is_picked():
    # 1 - utilization: 1 - 0.9, 1 - 0.25 (the busier of two), 1 - 0.5.
    page = b"".join(
        b'DCGM_FI_DEV_GPU_UTIL{gpu="%d",pod="%s"} %d\n' % each
        for each in ((0, b"a", 90), (1, b"b", 20), (2, b"b", 25), (3, b"c", 50))
    )
    async with Pages(metrics=page).serving() as node:
        pods = [
            endpoint(f"{pod}-rank-0", f"10.0.0.{number}", pod=pod, node_address="127.0.0.1")
            for number, pod in enumerate("abc")
        ]
        text = GPU.replace("PORT", str(node.port))
        async with polled(text, pods, AttributesReported) as scheduler:
            decision = picked(scheduler)
    assert decision.endpoint.name == "b-rank-0"
    assert decision.totals == pytest.approx([0.1, 0.75, 0.5])


HOT = b'q 0\nheat{pod="a"} 80\n'


@pytest.mark.parametrize(
    ("text", "pages", "kind"),
    [
        (FILTERED, {"metrics": HOT}, LoadReported),
        (FILTERED + SECOND, {"metrics": b"q 0\n", "more": HOT}, AttributesReported),
    ],
    ids=["one page", "a second page"],
)
async def test_a_metric_of_the_users_can_keep_requests_away(text, pages, kind):
    async with Pages(**pages).serving() as one:
        text = text.replace("PORT", str(one.port)).replace("POD", "a")
        hot = endpoint("hot", "127.0.0.1", one.port)
        async with polled(text, [hot], kind) as scheduler:
            scheduler._fleet.apply(EndpointUpserted(endpoint("unknown", "10.0.0.9")), 0.0)
            decision = picked(scheduler)
    assert decision.endpoint.name == "unknown"


async def test_the_cluster_with_the_shortest_queue_is_picked():
    def pages(queue):
        return Pages(metrics=b'llm_d_epp_average_queue_size{name="p"} %d\n' % queue)

    async with pages(9).serving() as one, pages(1).serving() as two, pages(5).serving() as three:
        clusters = [
            endpoint(name, f"10.0.0.{number}", metrics_host=f"127.0.0.1:{peer.port}")
            for number, (name, peer) in enumerate((("x", one), ("y", two), ("z", three)))
        ]
        async with polled(CLUSTERS, clusters, AttributesReported) as scheduler:
            decision = picked(scheduler)
    # (longest - own) / (longest - shortest): (9 - 9) / 8, (9 - 1) / 8, (9 - 5) / 8.
    assert decision.totals == pytest.approx([0.0, 1.0, 0.5])
    assert decision.endpoint.name == "y"
