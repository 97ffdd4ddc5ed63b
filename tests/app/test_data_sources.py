"""Sources of data about endpoints, polled from servers on real sockets that say anything."""

import asyncio
import contextlib
import ssl
import time

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from epp.adapters.telemetry import families
from epp.app.data_sources import DataSources
from epp.config.file import load
from epp.errors import ConfigError
from epp.model.endpoint import HTTPS, Endpoint
from epp.model.events import (
    AttributesReported,
    LoadReported,
    ModelsListed,
    ScrapeFailed,
    ScrapeFailure,
)
from tests.adapters.h2c_pods import H2cPod
from tests.adapters.scraped_pods import DEADLINE, Told
from tests.adapters.vllm_page import vllm_page
from tests.kubeapi.authority import Authority
from tests.tasks import running

MODELS = b'{"object":"list","data":[{"id":"llama","created":%d},{"id":"fr","parent":"llama"}]}'
PLAIN = "plugins: [{type: random-picker}, %s]\ndataLayer: {sources: [%s], injectDefaults: %s}"


class Pages:
    """A server on a real socket with a page under each path."""

    def __init__(self, **pages):
        self.pages = {f"/{path}": body for path, body in pages.items()}
        self.status = 200
        self.requests = 0
        self.port = 0

    async def answer(self, request):
        self.requests += 1
        if self.status == 0:
            await asyncio.Event().wait()
        body = self.pages.get(request.path)
        return web.Response(body=body, status=self.status if body is not None else 404)

    async def asked_again(self, times):
        """Wait for as many more requests."""
        asked = self.requests
        async with asyncio.timeout(DEADLINE):
            while self.requests < asked + times:
                await asyncio.sleep(0.001)

    @contextlib.asynccontextmanager
    async def serving(self, tls=None):
        app = web.Application()
        app.router.add_get("/{path:.*}", self.answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, ssl_context=tls)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()

    def endpoint(self, name="a", **more):
        return Endpoint("default", name, "127.0.0.1", self.port, **more)


def samples_of(sources, family):
    """Give what `sources` has counted in a family, by its labels."""
    found = [each.samples for each in sources.collect() if each.family is family]
    return {labels: value for samples in found for labels, value in samples}


def settings(*plugins, inject=False):
    """Return the settings of sources, each given with its parameters and its extractor."""
    listed, sources = [], []
    for kind, parameters, extractor in plugins:
        listed.append(f"{{type: {kind}, parameters: {parameters}}}, {{type: {extractor}}}")
        sources.append(f"{{pluginRef: {kind}, extractors: [{{pluginRef: {extractor}}}]}}")
    return load(PLAIN % (", ".join(listed), ", ".join(sources), str(inject).lower())).data_layer


@contextlib.asynccontextmanager
async def polling(layer, *endpoints, interval=0.02):
    told = Told()
    sources = DataSources(layer, interval, told, time.monotonic, retry=interval)
    for endpoint in endpoints:
        sources.watch(endpoint)
    async with running(sources.run()):
        yield told, sources


async def first(told, kind, name="a", count=1):
    await told.until(lambda: len(told.of(kind, name)) >= count)
    return told.of(kind, name)[-1]


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


def mutual(authority):
    """Return the context of a server that asks its clients for certificates of an authority."""
    context = authority.context()
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def files(folder, authority, issuer=None):
    issued = (issuer or authority).issue("picker")
    found = {"ca": authority.certificate, "crt": issued.certificate, "key": issued.key}
    for name, content in found.items():
        (folder / name).write_bytes(content)
    return f"caCertPath: {folder}/ca, clientCertPath: {folder}/crt, clientKeyPath: {folder}/key"


def secure(paths, verify=True):
    source = f"{{scheme: https, insecureSkipVerify: {str(not verify).lower()}, {paths}}}"
    return settings(("metrics-data-source", source, "core-metrics-extractor"))


async def test_both_sides_show_their_certificates(tmp_path):
    authority = Authority()
    async with Pages(metrics=vllm_page()).serving(mutual(authority)) as pages:
        layer = secure(files(tmp_path, authority))
        async with polling(layer, pages.endpoint()) as (told, _):
            assert (await first(told, LoadReported)).load.waiting == 3


@pytest.mark.parametrize("verify", [True, False])
async def test_a_certificate_of_strangers_is_refused_where_it_is_verified(tmp_path, verify):
    async with Pages(metrics=vllm_page()).serving(Authority().context()) as pages:
        (authorities, *_) = files(tmp_path, Authority()).split(", ")
        layer = secure(authorities, verify=verify)
        async with polling(layer, pages.endpoint()) as (told, _):
            await first(told, ScrapeFailed if verify else LoadReported)


@pytest.mark.parametrize("verify", [True, False])
async def test_an_endpoint_that_speaks_https_is_asked_so(verify):
    layer = settings(
        (
            "metrics-data-source",
            f"{{insecureSkipVerify: {str(not verify).lower()}}}",
            "core-metrics-extractor",
        )
    )
    async with (
        Pages(metrics=vllm_page()).serving(Authority().context()) as pages,
        polling(layer, pages.endpoint(app_protocol=HTTPS)) as (told, _),
    ):
        await first(told, ScrapeFailed if verify else LoadReported)


async def test_a_client_that_the_server_does_not_know_fails(tmp_path):
    authority = Authority()
    async with Pages(metrics=vllm_page()).serving(mutual(authority)) as pages:
        layer = secure(files(tmp_path, authority, issuer=Authority()))
        async with polling(layer, pages.endpoint()) as (told, _):
            await first(told, ScrapeFailed)


async def test_certificates_are_read_again_when_they_change(tmp_path):
    old, new = Authority(), Authority()
    pages = Pages(metrics=vllm_page())
    layer = secure(files(tmp_path, old))
    async with contextlib.AsyncExitStack() as servers:
        await servers.enter_async_context(pages.serving(mutual(old)))
        async with polling(layer, pages.endpoint()) as (told, _):
            await first(told, LoadReported)
            await servers.aclose()
            async with pages.serving(mutual(new)):
                await first(told, ScrapeFailed, count=3)
                (tmp_path / "key").write_bytes(b"half of a key")
                with capture_logs() as logs:
                    await first(told, ScrapeFailed, count=8)
                assert {entry["event"] for entry in logs} == {"source.certificates_unusable"}
                assert len(logs) == 1
                files(tmp_path, new)
                told.events.clear()
                assert (await first(told, LoadReported)).load.waiting == 3


@pytest.mark.parametrize(
    ("spoilt", "problem"),
    [
        ("ca", "holds no PEM certificate that can be trusted"),
        ("crt", "cannot be shown with the key"),
        ("key", "cannot be shown with the key"),
    ],
)
def test_a_start_with_unusable_certificates_says_which(tmp_path, spoilt, problem):
    layer = secure(files(tmp_path, Authority()))
    (tmp_path / spoilt).write_bytes(b"no PEM")
    with pytest.raises(ConfigError, match=problem):
        DataSources(layer, 1.0, print, time.monotonic)
    (tmp_path / spoilt).unlink()
    with pytest.raises(ConfigError, match="No such file"):
        DataSources(layer, 1.0, print, time.monotonic)
    (tmp_path / spoilt).mkdir()
    with pytest.raises(ConfigError, match="not a regular file"):
        DataSources(layer, 1.0, print, time.monotonic)


LISTS = ("models-data-source", "{}", "models-data-extractor")


async def test_models_are_listed_where_they_change():
    pages = Pages(**{"v1/models": MODELS % 1})
    async with pages.serving(), polling(settings(LISTS), pages.endpoint()) as (told, _):
        assert (await first(told, ModelsListed)).models == {"llama", "fr"}
        pages.pages["/v1/models"] = MODELS % 2
        await pages.asked_again(3)
        assert len(told.events) == 1
        pages.pages["/v1/models"] = b'{"data":[{"id":"qwen"}]}'
        assert (await first(told, ModelsListed, count=2)).models == {"qwen"}


CARDS = b"""{"data": [
    {"id": "llama", "max_model_len": %d},
    {"id": "fr", "parent": "llama", "max_model_len": null},
    {"id": "orphan", "parent": "gone"},
    {"id": "stray", "parent": ["llama"]},
    {"id": "text", "max_model_len": "4096"},
    {"id": "none", "max_model_len": 0},
    {"id": "true", "max_model_len": true},
    {"id": "half", "max_model_len": 0.5}
]}"""


async def test_the_context_of_a_model_is_read_and_that_of_an_adapter_is_its_models():
    pages = Pages(**{"v1/models": CARDS % 4096})
    async with pages.serving(), polling(settings(LISTS), pages.endpoint()) as (told, _):
        event = await first(told, ModelsListed)
        assert event.max_model_lens == {"llama": 4096, "fr": 4096}
        assert event.models > {"orphan", "stray", "text", "none", "true", "half"}
        pages.pages["/v1/models"] = CARDS % 8192
        event = await first(told, ModelsListed, count=2)
        assert event.max_model_lens == {"llama": 8192, "fr": 8192}


NAMES = b"""{"data": [
    {"id": "llama", "root": "/models/llama", "owned_by": "vllm", "max_model_len": 8},
    {"id": "small", "root": "/models/llama", "parent": null, "max_model_len": 8},
    {"id": "fr", "root": "/models/llama", "parent": "llama", "owned_by": "vllm"},
    {"id": "other", "root": "/models/other", "max_model_len": 8},
    {"id": "small", "root": "/models/other", "max_model_len": 8},
    {"id": "none", "max_model_len": 8}, {"id": "nil", "root": null, "max_model_len": 8},
    {"id": "empty", "root": "", "max_model_len": 8}, {"id": "also", "root": "", "max_model_len": 8},
    {"id": "seven", "root": 7, "max_model_len": 8}, {"id": "eight", "root": 7, "max_model_len": 8},
    {"id": "list", "root": ["other"], "max_model_len": 8},
    {"id": "", "root": "/models/llama", "max_model_len": 8}
]}"""
OLD_NAMES = b"""{"data": [
    {"id": "llama", "root": "llama", "parent": null, "owned_by": "vllm", "max_model_len": 4096},
    {"id": "small", "root": "llama", "parent": null, "owned_by": "vllm", "max_model_len": 4096},
    {"id": "fr", "root": "llama", "parent": null, "owned_by": "vllm", "max_model_len": null},
    {"id": "de", "root": "llama", "parent": null, "owned_by": "vllm", "max_model_len": null}
]}"""
OLDER_NAMES = b"""{"data": [
    {"id": "llama", "root": "llama", "parent": null, "owned_by": "vllm"},
    {"id": "fr", "root": "llama", "parent": null, "owned_by": "vllm"}
]}"""
SGLANG_NAMES = b"""{"data": [
    {"id": "llama", "root": "llama", "parent": null, "owned_by": "sglang", "max_model_len": 4096},
    {"id": "fr", "root": "/adapters/fr", "parent": "llama", "owned_by": "sglang"},
    {"id": "", "root": "/adapters/fr", "parent": "llama", "owned_by": "sglang"}
]}"""
LLAMA_CPP_NAMES = b"""{"object": "list", "data": [
    {"id": "fim", "aliases": ["fim", "qwen", "", 7], "tags": ["code"], "owned_by": "llamacpp"},
    {"id": "gemma", "aliases": "fim", "owned_by": "llamacpp", "meta": {"n_ctx_train": 40960}},
    {"id": "phi", "aliases": ["gemma"], "owned_by": "llamacpp"}
]}"""


@pytest.mark.parametrize(("page", "aliases"), [(OLD_NAMES, {"small": "llama"}), (OLDER_NAMES, {})])
async def test_adapters_of_vllm_before_it_listed_what_they_are_for_share_no_cache(page, aliases):
    pages = Pages(**{"v1/models": page})
    async with pages.serving(), polling(settings(LISTS), pages.endpoint()) as (told, _):
        assert (await first(told, ModelsListed)).aliases == aliases


async def test_names_with_one_root_share_a_cache():
    pages = Pages(**{"v1/models": NAMES})
    async with pages.serving(), polling(settings(LISTS), pages.endpoint()) as (told, _):
        assert (await first(told, ModelsListed)).aliases == {"small": "llama"}


async def test_sglang_serves_an_adapter_by_the_name_of_its_model_and_its_own():
    pages = Pages(**{"v1/models": SGLANG_NAMES})
    async with pages.serving(), polling(settings(LISTS), pages.endpoint()) as (told, _):
        event = await first(told, ModelsListed)
        assert event.models == {"llama", "fr", "llama:fr"}
        assert event.aliases == {"llama:fr": "fr"}
        assert event.max_model_lens == dict.fromkeys(event.models, 4096)


async def test_llama_cpp_serves_a_model_by_its_aliases_too():
    pages = Pages(**{"v1/models": LLAMA_CPP_NAMES})
    async with pages.serving(), polling(settings(LISTS), pages.endpoint()) as (told, _):
        event = await first(told, ModelsListed)
        assert event.models == {"fim", "qwen", "gemma", "phi"}
        assert event.aliases == {"qwen": "fim"}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b""),
        (200, b"<html>"),
        (200, b"[]"),
        (200, b'{"data":null}'),
        (200, b'{"data":[1]}'),
        (200, b'{"data":[{"id":7}]}'),
        (200, b'{"error":"no"}'),
        (200, b'{"data":[{"id":"\xff"}]}'),
        (200, b'{"data":' + b"[" * 100_000),
        (200, b'{"data":[' + b'{"id":"a"},' * 16_385 + b'{"id":"b"}]}'),
        (200, b'{"data":[' + b" " * (1 << 20) + b"]}"),
        (500, b"oops"),
        (404, b"not found"),
    ],
    ids=lambda value: str(value[:24]) if isinstance(value, bytes) else str(value),
)
async def test_a_bad_list_of_models_changes_nothing_and_stops_nobody(status, body):
    async with Pages(**{"v1/models": MODELS % 1, "metrics": vllm_page()}).serving() as pages:
        layer = settings(LISTS, inject=True)
        async with polling(layer, pages.endpoint()) as (told, _):
            await first(told, ModelsListed)
            with capture_logs() as logs:
                pages.pages["/v1/models"] = body
                pages.status = status
                await pages.asked_again(8)
            assert len(told.of(ModelsListed, "a")) == 1
            pages.status, pages.pages["/v1/models"] = 200, b'{"data":[{"id":"qwen"}]}'
            assert (await first(told, ModelsListed, count=2)).models == {"qwen"}
            if status == 200:
                assert not told.of(ScrapeFailed, "a")
    said = [
        entry for entry in logs if entry["event"] in {"source.failed", "endpoint.metrics_doubted"}
    ]
    assert len(said) == 1


async def test_a_source_that_fails_does_not_make_its_endpoint_fail():
    async with Pages(metrics=vllm_page()).serving() as pages:
        layer = settings(LISTS, inject=True)
        with capture_logs() as logs:
            async with polling(layer, pages.endpoint()) as (told, sources):
                await first(told, LoadReported, count=5)
                await sources.polled_once(DEADLINE)
                async with asyncio.timeout(DEADLINE):
                    while not samples_of(sources, families.POLL_ERRORS)["models-data-source",]:
                        await asyncio.sleep(0.001)
                assert not told.of(ScrapeFailed, "a")
    (failed,) = [entry for entry in logs if entry["event"] == "source.failed"]
    assert (failed["source"], failed["error"]) == ("models-data-source", "HTTP status 404")


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


async def test_lists_of_models_are_read_over_what_the_pool_says():
    pod = H2cPod()
    pod.pages["/v1/models"] = MODELS % 1
    async with pod.serving():
        layer = settings(LISTS, inject=True)
        async with polling(layer, pod.endpoint()) as (told, _):
            assert (await first(told, ModelsListed)).models == {"llama", "fr"}
            assert (await first(told, LoadReported)).load.waiting == 3
    assert {each[":path"] for each in pod.requests} == {"/v1/models", "/metrics"}


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
