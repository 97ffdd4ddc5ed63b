"""Sources of data about endpoints, polled from servers that say anything."""

import asyncio
import time

import pytest

from epp.adapters.telemetry import families
from epp.app.data_sources import DataSources
from epp.config.file import load
from epp.model.endpoint import Endpoint
from epp.model.events import AttributesReported, LoadReported, ScrapeFailed, ScrapeFailure
from tests.adapters.scraped_pods import DEADLINE, Told
from tests.adapters.vllm_page import vllm_page
from tests.app.polled_pages import PLAIN, Pages, first, polling, samples_of, settings
from tests.kubeapi.authority import Authority


async def test_the_page_is_where_the_source_says():
    async with Pages(**{"prometheus/metrics": vllm_page(waiting=5)}).serving() as pages:
        layer = settings(
            (
                "metrics-data-source",
                f"{{path: /prometheus/metrics, port: {pages.port}}}",
                "core-metrics-extractor",
            )
        )
        async with polling(layer, Endpoint("default", "a", "127.0.0.1", 9)) as (told, _):
            assert (await first(told, LoadReported)).load.waiting == 5


async def test_a_refusal_at_another_port_does_not_say_that_the_server_is_gone():
    async with Pages(metrics=b"").serving() as gone:
        pass
    source = f"{{port: {gone.port}}}"
    layer = settings(("metrics-data-source", source, "core-metrics-extractor"))
    async with polling(layer, Endpoint("default", "a", "127.0.0.1", 9)) as (told, sources):
        assert (await first(told, ScrapeFailed)).reason is ScrapeFailure.NO_PAGE
        assert samples_of(sources, families.POLL_ERRORS)["metrics-data-source",] >= 1
        assert samples_of(sources, families.EXTRACT_ERRORS) == {}


async def test_pages_of_no_known_engine_are_counted_by_source_and_extractor():
    async with Pages(metrics=b"of_nobody 1\n").serving() as pages:
        source = f"{{port: {pages.port}}}"
        layer = settings(("metrics-data-source", source, "core-metrics-extractor"))
        async with polling(layer, Endpoint("default", "a", "127.0.0.1", 9)) as (told, sources):
            await first(told, LoadReported, count=3)
            key = ("metrics-data-source", "core-metrics-extractor")
            counted = samples_of(sources, families.EXTRACT_ERRORS)
            assert list(counted) == [key]
            assert counted[key] >= 2
            assert samples_of(sources, families.POLL_ERRORS)["metrics-data-source",] == 0
            pages.pages["/metrics"] = vllm_page()
            await told.until(lambda: told.of(LoadReported, "a")[-1].load.engine == "vllm")
            counted = samples_of(sources, families.EXTRACT_ERRORS)
            await first(told, LoadReported, count=len(told.of(LoadReported, "a")) + 2)
            assert samples_of(sources, families.EXTRACT_ERRORS) == counted


@pytest.mark.parametrize(("interval", "after"), [(0.05, 10), (1, 10), (60, 180)])
def test_a_load_is_stale_after_ten_seconds_or_three_polls(interval, after):
    layer = settings(("metrics-data-source", "{}", "core-metrics-extractor"))
    assert DataSources(layer, interval, Told(), time.monotonic).stale_after == after


GPUS = b'DCGM_FI_DEV_GPU_UTIL{gpu="0",pod="a"} 40\nDCGM_FI_DEV_GPU_UTIL{gpu="1",pod="b"} 80\n'


async def test_gpus_are_those_of_the_pod_on_the_page_of_its_node():
    async with Pages(metrics=GPUS).serving() as node:
        source = f"{{port: {node.port}, useNodeAddress: true}}"
        layer = settings(("dcgm-data-source", source, "dcgm-extractor"))
        ends = [
            Endpoint("default", f"{pod}-rank-0", "192.0.2.1", 9, pod=pod, node_address="127.0.0.1")
            for pod in ("a", "b")
        ]
        async with polling(layer, *ends, interval=60.0) as (told, _):
            found = {
                pod: (await first(told, AttributesReported, f"{pod}-rank-0")).attributes
                for pod in ("a", "b")
            }
        assert found == {
            "a": {"GPUUtilization/dcgm-extractor": 0.4},
            "b": {"GPUUtilization/dcgm-extractor": 0.8},
        }
        assert node.requests <= 2


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"\xff\x00" * 500,
        b"DCGM_FI_DEV_GPU_UTIL",
        b'DCGM_FI_DEV_GPU_UTIL{pod="a"',
        b'DCGM_FI_DEV_GPU_UTIL{pod="a"} -1\n',
        b'DCGM_FI_DEV_GPU_UTIL{pod="a"} 1e300\n',
        b'DCGM_FI_DEV_GPU_UTIL{pod="a"} NaN\n',
        b'DCGM_FI_DEV_GPU_UTIL{pod="b"} 10\n',
        b"x" * (5 << 20),
        None,
    ],
    ids=lambda body: str(body[:30]) if body is not None else "not found",
)
async def test_a_bad_page_of_gpus_changes_nothing_and_stops_nobody(body):
    async with Pages(metrics=GPUS).serving() as gpus, Pages(metrics=vllm_page()).serving() as pod:
        source = f"{{port: {gpus.port}}}"
        layer = settings(("dcgm-data-source", source, "dcgm-extractor"), inject=True)
        async with polling(layer, pod.endpoint("a")) as (told, sources):
            await first(told, AttributesReported)
            await first(told, LoadReported)
            gpus.pages["/metrics"] = body
            await gpus.asked_again(2)
            told.events.clear()
            await gpus.asked_again(2)
            assert (await first(told, LoadReported)).load.waiting == 3
            assert {type(event) for event in told.events} == {LoadReported}
            failed = body is None or len(body) > 4 << 20
            assert (samples_of(sources, families.POLL_ERRORS)["dcgm-data-source",] > 0) is failed


async def test_another_cluster_is_asked_at_its_own_metrics_host():
    page = b'llm_d_epp_average_queue_size{name="pool"} 2.5\n'
    page += b'llm_d_epp_average_kv_cache_utilization{name="pool"} 0.75\n'
    kinds = ("multicluster-metrics-data-source", "multicluster-metrics-extractor")
    async with Pages(metrics=page).serving(Authority().context()) as peer:
        layer = settings((kinds[0], "{insecureSkipVerify: true}", kinds[1]), inject=True)
        host = f"127.0.0.1:{peer.port}"
        cluster = Endpoint("default", "a", "192.0.2.1", 443, metrics_host=host)
        async with polling(layer, cluster) as (told, _):
            assert (await first(told, AttributesReported)).attributes == {
                "llm-d.ai/multicluster-queue-size": 2.5,
                "llm-d.ai/multicluster-kv-cache-utilization": 0.75,
            }
            peer.status = 500
            await first(told, ScrapeFailed)


async def test_custom_metrics_come_with_the_load():
    extractor = """{engineConfigs: [{name: mine, queuedRequestsSpec: q,
      customMetrics: [{attributeKey: Heat, metricSpec: 'heat{of=cpu}'}]}]}"""
    text = PLAIN % (f"{{type: core-metrics-extractor, parameters: {extractor}}}", "", "true")
    pages = Pages(metrics=b'q 4\nheat{of="cpu"} -1.5\n')
    async with pages.serving(), polling(load(text).data_layer, pages.endpoint()) as (told, _):
        found = (await first(told, LoadReported)).load
    assert (found.engine, found.waiting) == ("mine", 4)
    assert found.attributes == {"Heat/core-metrics-extractor": -1.5}


async def test_an_endpoint_that_moves_is_polled_at_its_new_page():
    async with Pages(metrics=GPUS).serving() as one, Pages(metrics=GPUS).serving() as other:
        layer = settings(("dcgm-data-source", "{}", "dcgm-extractor"), inject=True)
        async with polling(layer, one.endpoint(metrics_host=f"127.0.0.1:{one.port}")) as (
            told,
            sources,
        ):
            await first(told, LoadReported)
            sources.watch(one.endpoint(metrics_host=f"127.0.0.1:{other.port}"))
            await told.until(lambda: other.requests > 1)
            sources.unwatch(one.endpoint().id)
            asked = other.requests, one.requests
            await asyncio.sleep(0)
            assert (other.requests, one.requests) == asked


async def test_without_sources_nothing_is_polled():
    async with polling(settings(), Endpoint("default", "a", "127.0.0.1", 9)) as (told, sources):
        sources.poll_now(Endpoint("default", "a", "127.0.0.1", 9).id)
        await sources.polled_once(DEADLINE)
        assert (told.events, samples_of(sources, families.POLL_ERRORS)) == ([], {})
