"""Scrapes of endpoints whose pool says that they speak HTTP/2 in plain text."""

import asyncio
import contextlib

import pytest
from structlog.testing import capture_logs

from epp.adapters.scrape.page_source import ScrapeSettings
from epp.model.endpoint import H2C, HTTPS, Endpoint
from epp.model.events import LoadReported, ScrapeFailed, ScrapeFailure
from tests.adapters.h2c_pods import H2cPod
from tests.adapters.scraped_pods import DEADLINE, pods, scraping
from tests.adapters.vllm_page import vllm_page
from tests.held_port import held_port

PATIENT = ScrapeSettings(interval=0.02, retry=0.02, late=0.02, timeout=DEADLINE)


@pytest.mark.parametrize(
    ("settings", "more", "url"),
    [
        ({}, {"app_protocol": H2C}, "h2c://10.0.0.1:8000/metrics"),
        (
            {"port": 8000, "path": "/v1/models"},
            {"app_protocol": H2C},
            "h2c://10.0.0.1:8000/v1/models",
        ),
        ({}, {"app_protocol": "http"}, "http://10.0.0.1:8000/metrics"),
        ({}, {}, "http://10.0.0.1:8000/metrics"),
        # What a pool says is of the ports that it has.
        ({"port": 9400}, {"app_protocol": H2C}, "http://10.0.0.1:9400/metrics"),
        ({}, {"app_protocol": H2C, "metrics_host": "a:1"}, "http://a:1/metrics"),
        ({"scheme": "https"}, {"app_protocol": H2C}, "https://10.0.0.1:8000/metrics"),
        ({}, {"app_protocol": HTTPS}, "https://10.0.0.1:8000/metrics"),
        ({"port": 9400}, {"app_protocol": HTTPS}, "http://10.0.0.1:9400/metrics"),
        ({}, {"app_protocol": HTTPS, "metrics_host": "a:1"}, "http://a:1/metrics"),
    ],
)
def test_pages_at_the_ports_of_the_pool_are_read_as_it_says(settings, more, url):
    endpoint = Endpoint("default", "a", "10.0.0.1", 8000, **more)
    assert ScrapeSettings(**settings).url(endpoint) == url


async def test_loads_are_reported_over_one_connection():
    pod = H2cPod(piece=3000)
    async with pod.serving(), scraping(pod.endpoint()) as (_, told):
        load = await told.loads("a", 5)
        assert (load.waiting, load.running, load.kv_usage) == (3, 7, 0.25)
        pod.pages["/metrics"] = vllm_page(waiting=9)
        await told.waiting("a", 9)
    assert len(pod.connections) == 1
    assert pod.requests[0]["accept-encoding"] == "identity"


async def test_a_late_page_is_waited_for():
    woken = asyncio.Event()

    async def late(stream):
        await woken.wait()
        stream.head()
        await stream.body(vllm_page(waiting=6))

    pod = H2cPod(late)
    async with pod.serving(), scraping(pod.endpoint(), settings=PATIENT) as (scraper, told):
        await told.failure("a", 3)
        assert (len(pod.requests), scraper.errors) == (1, 0)
        woken.set()
        await told.waiting("a", 6)
        assert {failed.reason for failed in told.of(ScrapeFailed, "a")} == {ScrapeFailure.LATE}


async def test_a_server_that_is_gone_is_refused_and_followed_when_it_is_back():
    pod = H2cPod()
    async with contextlib.AsyncExitStack() as stack:
        pod.port = stack.enter_context(held_port())
        async with pod.serving():
            _, told = await stack.enter_async_context(scraping(pod.endpoint()))
            await told.loads("a")
        await told.failure("a", 3)
        assert told.of(ScrapeFailed, "a")[-1].reason is ScrapeFailure.REFUSED
        async with pod.serving():
            told.events.clear()
            await told.loads("a")


async def test_a_server_that_speaks_http_1_alone_is_named_and_lives():
    async with pods(1) as (pod,):
        with capture_logs() as logs:
            async with scraping(pod.endpoint("a", app_protocol=H2C)) as (_, told):
                assert (await told.failure("a", 3)).reason is ScrapeFailure.NO_PAGE
        assert pod.requests == 0
    (line,) = logs
    assert line["event"] == "endpoint.metrics_missing"
    assert "it answers 'HTTP/1." in line["error"]


async def test_a_pool_that_says_another_protocol_is_followed():
    pod = H2cPod()
    async with pod.serving(), scraping(pod.endpoint(app_protocol="http")) as (scraper, told):
        assert (await told.failure("a")).reason is ScrapeFailure.NO_PAGE
        scraper.watch(pod.endpoint())
        await told.loads("a", 3)
        assert len(scraper._servers) == 1
        scraper.watch(pod.endpoint(app_protocol=""))
        told.events.clear()
        await told.failure("a", 2)
        assert told.of(LoadReported, "a") == []
