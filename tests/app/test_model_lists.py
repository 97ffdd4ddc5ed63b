"""Which models an endpoint serves, by which names, as its `/v1/models` lists them."""

import pytest
from structlog.testing import capture_logs

from epp.adapters.telemetry import families
from epp.model.events import LoadReported, ModelsListed, ScrapeFailed
from tests.adapters.h2c_pods import H2cPod
from tests.adapters.scraped_pods import DEADLINE
from tests.adapters.vllm_page import vllm_page
from tests.app.polled_pages import Pages, first, polling, samples_of, settings
from tests.tasks import until

MODELS = b'{"object":"list","data":[{"id":"llama","created":%d},{"id":"fr","parent":"llama"}]}'
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


@pytest.mark.parametrize(
    ("page", "aliases"),
    [(NAMES, {"small": "llama"}), (OLD_NAMES, {"small": "llama"}), (OLDER_NAMES, {})],
    ids=["adapters name theirs", "adapters have no length", "there are no lengths"],
)
async def test_names_of_one_model_share_a_cache_and_adapters_have_their_own(page, aliases):
    pages = Pages(**{"v1/models": page})
    async with pages.serving(), polling(settings(LISTS), pages.endpoint()) as (told, _):
        assert (await first(told, ModelsListed)).aliases == aliases


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
                pages.status, pages.pages["/v1/models"] = status, body
                await pages.asked_again(8)
            if status == 200:
                assert not told.of(ScrapeFailed, "a")
    doubted, failed = "endpoint.metrics_doubted", "source.failed"
    said = [entry["event"] for entry in logs if entry["event"] in {doubted, failed}]
    assert said == [doubted if status == 200 and len(body) < 1 << 20 else failed] * 2


async def test_a_source_that_fails_does_not_make_its_endpoint_fail():
    async with Pages(metrics=vllm_page()).serving() as pages:
        layer = settings(LISTS, inject=True)
        with capture_logs() as logs:
            async with polling(layer, pages.endpoint()) as (told, sources):
                await first(told, LoadReported, count=5)
                await sources.polled_once(DEADLINE)
                await until(
                    lambda: samples_of(sources, families.POLL_ERRORS)["models-data-source",]
                )
                assert not told.of(ScrapeFailed, "a")
    (failed,) = [entry for entry in logs if entry["event"] == "source.failed"]
    assert (failed["source"], failed["error"]) == ("models-data-source", "HTTP status 404")


async def test_lists_of_models_are_read_over_what_the_pool_says():
    pod = H2cPod()
    pod.pages["/v1/models"] = MODELS % 1
    async with pod.serving():
        layer = settings(LISTS, inject=True)
        async with polling(layer, pod.endpoint()) as (told, _):
            assert (await first(told, ModelsListed)).models == {"llama", "fr"}
            assert (await first(told, LoadReported)).load.waiting == 3
    assert {each[":path"] for each in pod.requests} == {"/v1/models", "/metrics"}
