"""The data layer of a configuration: what is polled, what is taken, and what cannot be."""

from pathlib import Path

import pytest

from epp.config.file import load
from epp.errors import ConfigError
from epp.model.endpoint import Endpoint
from epp.protocol.metrics.metric_names import ENGINES, SGLANG, VLLM
from epp.protocol.metrics.metrics_reader import MetricsReader
from epp.protocol.metrics.page import Page
from tests.adapters.vllm_page import vllm_page

ENGINES_PAGE = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
PLAIN = "{type: random-picker}"


def layer(*plugins, sources=None, inject=None):
    """Load plug-ins, and `dataLayer` with sources by name, each with its extractors."""
    text = f"plugins: [{', '.join([PLAIN, *plugins])}]\n"
    if sources is not None or inject is not None:
        refs = []
        for name, found in (sources or {}).items():
            extractors = ", ".join(f"{{pluginRef: {each}}}" for each in found)
            refs.append(f"{{pluginRef: {name}, extractors: [{extractors}]}}")
        text += f"dataLayer: {{sources: [{', '.join(refs)}]"
        text += f", injectDefaults: {str(inject).lower()}}}" if inject is not None else "}"
    return load(text)


def only(*plugins, **more):
    (pages,) = layer(*plugins, **more).data_layer.pages
    return pages


def plugin(kind, parameters="{}", name=None):
    return f"{{type: {kind}, name: {name or kind}, parameters: {parameters}}}"


def warned(settings):
    return "\n".join(settings.warnings)


def test_by_default_metrics_pages_are_read():
    pages = only()
    assert (pages.name, pages.source.content) == ("metrics-data-source", "metrics")
    source = pages.source
    assert (source.scheme, source.path, source.port_and_node) == ("http", "/metrics", (None, False))
    assert (source.every, source.insecure_skip_verify) == (None, True)
    assert (pages.load, pages.vital, pages.attributes, pages.models) == (True, True, False, False)
    assert list(pages.engines.engines) == list(ENGINES)
    assert layer().warnings == ()


def test_everything_about_the_page_is_as_written():
    pages = only(
        plugin(
            "metrics-data-source",
            "{scheme: https, path: prometheus/metrics, port: 7080, insecureSkipVerify: false,"
            " caCertPath: /ca, clientCertPath: /crt, clientKeyPath: /key, interval: 250ms}",
        )
    )
    source = pages.source
    assert (source.scheme, source.url_path) == ("https", "/prometheus/metrics")
    assert source.port_and_node == (7080, False)
    assert (source.every, source.insecure_skip_verify) == (0.25, False)
    assert source.certificates == ("/ca", "/crt", "/key")


def test_a_source_that_the_file_refers_to_takes_the_place_of_the_default():
    pages = only(
        plugin("metrics-data-source", "{path: /m}", "mine"),
        plugin("core-metrics-extractor", "{defaultEngine: sglang}", "engines"),
        sources={"mine": ["engines"]},
    )
    assert (pages.name, pages.source.path) == ("mine", "/m")
    assert next(iter(pages.engines.engines)) == "sglang"
    assert pages.load


def test_a_source_beside_it_does_not():
    settings = layer(
        plugin("models-data-source", "{interval: 5s}"),
        plugin("models-data-extractor"),
        sources={"models-data-source": ["models-data-extractor"]},
    )
    metrics, models = settings.data_layer.pages
    assert (metrics.name, metrics.load, metrics.vital) == ("metrics-data-source", True, True)
    assert (models.source.path, models.source.every) == ("/v1/models", 5)
    assert (models.models, models.load, models.vital) == (True, False, False)
    assert (metrics.serves_others, models.serves_others) == (False, False)
    assert settings.warnings == ()


SOURCED = {"models-data-source": ["models-data-extractor"]}


@pytest.mark.parametrize(
    ("more", "sources", "source", "serves_others"),
    [
        ((), None, ("models-data-source", "http", 5), True),
        (
            (plugin("models-data-source", "{scheme: https, interval: 1m}", "mine"),),
            None,
            ("mine", "https", 60),
            True,
        ),
        (
            (plugin("models-data-extractor", "{refuseUnlisted: true}"),),
            None,
            ("models-data-source", "http", 5),
            False,
        ),
        (
            (plugin("models-data-source"), plugin("models-data-extractor")),
            SOURCED,
            ("models-data-source", "http", None),
            True,
        ),
    ],
    ids=["alone", "with-a-source", "with-an-extractor", "with-both"],
)
def test_a_responder_needs_the_lists_of_models(more, sources, source, serves_others):
    settings = layer(plugin("models-responder", name="answers"), *more, sources=sources)
    _, models = settings.data_layer.pages
    assert (models.name, models.source.scheme, models.source.every) == source
    assert (models.models, models.load, models.serves_others) == (True, False, serves_others)
    assert settings.data_layer.answers_models
    assert settings.warnings == ()


def test_without_defaults_nothing_is_read_and_that_is_said():
    settings = layer(inject=False)
    assert settings.data_layer.pages == ()
    assert "no metrics of endpoints are read" in warned(settings)
    settings = layer(
        plugin("models-data-source"),
        plugin("models-data-extractor"),
        sources=SOURCED,
        inject=False,
    )
    assert [each.vital for each in settings.data_layer.pages] == [False]
    assert "no metrics of endpoints are read" in warned(settings)


def test_the_exporter_of_gpus():
    settings = layer(
        plugin("dcgm-data-source", "{interval: 1s, useNodeAddress: true}", "gpus"),
        plugin("dcgm-extractor"),
        sources={"gpus": ["dcgm-extractor"]},
    )
    gpus = settings.data_layer.pages[1]
    assert gpus.source.port_and_node == (9400, True)
    assert [each.key for each in gpus.numbers] == ["GPUUtilization/dcgm-extractor"]
    pages = only(
        plugin("metrics-data-source"),
        plugin("core-metrics-extractor"),
        plugin("dcgm-extractor"),
        sources={"metrics-data-source": ["core-metrics-extractor", "dcgm-extractor"]},
    )
    assert (pages.load, [each.key for each in pages.numbers]) == (
        True,
        ["GPUUtilization/dcgm-extractor"],
    )


def test_other_clusters_say_themselves_whether_they_answer():
    settings = layer(
        plugin("multicluster-metrics-data-source", "{caCertPath: /ca}"),
        plugin(
            "multicluster-metrics-extractor",
            "{kvCacheUtilizationMetric: '', queueSizeMetric: 'q{name=pool}'}",
        ),
        sources={"multicluster-metrics-data-source": ["multicluster-metrics-extractor"]},
    )
    assert settings.warnings == ()
    (pages,) = settings.data_layer.pages
    source = pages.source
    assert (source.scheme, source.insecure_skip_verify) == ("https", False)
    assert source.most_bytes == 8 << 20
    assert (pages.vital, pages.load) == (True, False)
    assert {each.key: str(each.metric) for each in pages.numbers} == {
        "llm-d.ai/multicluster-kv-cache-utilization": "llm_d_epp_average_kv_cache_utilization",
        "llm-d.ai/multicluster-queue-size": "q{name=pool}",
    }


def test_a_second_source_of_load_has_attributes_only():
    settings = layer(
        plugin("metrics-data-source"),
        plugin("metrics-data-source", "{port: 9000}", "more"),
        plugin("core-metrics-extractor"),
        sources={
            "metrics-data-source": ["core-metrics-extractor"],
            "more": ["core-metrics-extractor"],
        },
    )
    first, second = settings.data_layer.pages
    assert (first.load, first.attributes, first.vital) == (True, False, True)
    assert (second.load, second.attributes, second.vital) == (False, True, False)
    assert "more: only its custom metrics are read, because load is" in warned(settings)


def test_the_name_of_gie_is_the_same_extractor():
    settings = layer(plugin("model-server-protocol-metrics", "{defaultEngine: triton}"))
    (pages,) = settings.data_layer.pages
    assert next(iter(pages.engines.engines)) == "triton"
    assert "without effect" not in warned(settings)


def test_an_empty_engine_or_label_is_the_default():
    pages = only(plugin("core-metrics-extractor", "{defaultEngine: '', engineLabelKey: ''}"))
    assert list(pages.engines.engines) == list(ENGINES)
    assert pages.engines.labels == only().engines.labels


def test_the_name_of_llm_ds_scheduler_is_the_same_extractor_of_models():
    old = "model-server-protocol-models"
    settings = layer(
        plugin("models-data-source"), plugin(old), sources={"models-data-source": [old]}
    )
    assert [each.models for each in settings.data_layer.pages] == [False, True]
    assert f"`{old}` is deprecated: write `models-data-extractor`" in warned(settings)


def test_an_observer_of_latencies_may_be_a_source_and_reads_nothing():
    # llm-d's guide of routing over clusters by predicted latency.
    settings = layer(
        plugin("latency-observer-producer-hub", "{minRequests: 3}", "observer"),
        plugin(
            "latency-observation-scorer-hub",
            "{minInflightGap: 0.5, ttftPercentilesProducerName: observer}",
        ),
        sources={"observer": []},
    )
    assert [each.name for each in settings.data_layer.pages] == ["metrics-data-source"]
    assert "observer: mapped to the fleet's own predictions of TTFT" in warned(settings)


def test_an_observer_of_durations_may_be_a_source_too():
    # The README of llm-d-router's mrl-scorer-hub.
    settings = layer(
        plugin("sojourn-time-observer-hub", "{minSamples: 60, intervalDuration: 5s}", "observer"),
        plugin("mrl-scorer-hub", "{sojournTimeObserverProducerName: observer}"),
        sources={"observer": []},
    )
    assert [each.name for each in settings.data_layer.pages] == ["metrics-data-source"]
    assert "mrl-scorer-hub: mapped to `least-ttft-scorer`" in warned(settings)


@pytest.mark.parametrize(
    ("plugins", "sources", "message"),
    [
        ([plugin("metrics-data-source", name="x")], {}, "x: it has no effect"),
        ([plugin("dcgm-extractor")], {}, "dcgm-extractor: it has no effect"),
        (
            [plugin("models-data-source")],
            {"models-data-source": []},
            "dataLayer.sources[0]: `models-data-source` is not polled",
        ),
        (
            [plugin("metrics-data-source", "{clientCertPath: /a, clientKeyPath: /b}")],
            {},
            "certificates have no effect: `scheme` is `http`",
        ),
        (
            [plugin("metrics-data-source", "{scheme: https, caCertPath: /a}")],
            {},
            "`caCertPath` has no effect: `insecureSkipVerify` is true",
        ),
        (
            [
                plugin("models-data-source", "{scheme: https, caCertPath: /a}", "mine"),
                plugin("models-data-extractor"),
            ],
            {"mine": ["models-data-extractor"]},
            "mine: `caCertPath` has no effect",
        ),
    ],
)
def test_what_is_without_effect_is_said(plugins, sources, message):
    assert message in warned(layer(*plugins, sources=sources))


@pytest.mark.parametrize(
    ("kind", "parameters", "problem"),
    [
        ("metrics-data-source", "{shceme: https}", "did you mean `scheme`"),
        ("metrics-data-source", "{scheme: ftp}", "`ftp` is not one of http, https"),
        ("metrics-data-source", "{port: 0}", "a whole number of at least 1 is expected"),
        ("metrics-data-source", "{port: 65536}", "a whole number of at most 65535 is expected"),
        ("metrics-data-source", "{port: '8000'}", "a whole number is expected, not text"),
        ("metrics-data-source", "{path: 'a b'}", "not the path of a URL"),
        ("metrics-data-source", '{path: "/a\\r\\nHost: x"}', "not the path of a URL"),
        ("metrics-data-source", "{interval: 5}", "text is expected, not a whole number"),
        ("metrics-data-source", "{interval: soon}", "is not a duration"),
        ("metrics-data-source", "{interval: -1s}", "is not a duration"),
        ("metrics-data-source", "{clientCertPath: /a}", "require each other"),
        ("models-data-source", "{port: 1}", "unknown parameter `port`"),
        ("dcgm-data-source", "{caCertPath: /a}", "unknown parameter `caCertPath`"),
        ("models-data-extractor", "{x: 1}", "it takes refuseUnlisted"),
        ("k8s-notification-source", "{kind: Pod}", "missing required field `version`"),
        ("k8s-notification-source", "{version: v1, kind: ''}", "`version` and `kind` are required"),
        ("models-responder", "{x: 1}", "it takes none"),
        ("topology-extractor", "{host: a}", "did you mean `hostname`"),
        ("label-producer", "{}", "it needs `labels`"),
        ("label-producer", "{label: a}", "needed together"),
        ("label-producer", "{labels: [{label: a, attributeKey: ''}]}", "are needed"),
        ("label-producer", "{label: a, attributeKey: b, valueType: x}", "`valueType` must be"),
        (
            "label-producer",
            "{labels: [{label: a, attributeKey: k}, {label: b, attributeKey: k}]}",
            "`k` is listed twice",
        ),
        ("multicluster-metrics-extractor", "{queueSizeMetric: '9'}", "`9` is not a metric"),
    ],
)
def test_bad_parameters_name_their_place(kind, parameters, problem):
    with pytest.raises(ConfigError) as error:
        layer(plugin(kind, parameters))
    assert problem in str(error.value)
    assert error.value.place.startswith("plugins[1].parameters")


@pytest.mark.parametrize(
    ("sources", "place", "problem"),
    [
        ({"nobody": []}, "dataLayer.sources[0].pluginRef", "no plug-in is named `nobody`"),
        (
            {"metrics-data-source": ["nobody"]},
            "dataLayer.sources[0].extractors[0].pluginRef",
            "no plug-in is named `nobody`",
        ),
        ({"random-picker": []}, "dataLayer.sources[0].pluginRef", "is not a source of data"),
        ({"dcgm-extractor": []}, "dataLayer.sources[0].pluginRef", "is not a source of data"),
        (
            {"metrics-data-source": ["random-picker"]},
            "dataLayer.sources[0].extractors[0].pluginRef",
            "is not an extractor of pages",
        ),
        (
            {"metrics-data-source": ["models-data-extractor"]},
            "dataLayer.sources[0].extractors[0].pluginRef",
            "reads models, and `metrics-data-source` has metrics",
        ),
        (
            {"models-data-source": ["dcgm-extractor"]},
            "dataLayer.sources[0].extractors[0].pluginRef",
            "reads metrics, and `models-data-source` has models",
        ),
        (
            {"metrics-data-source": ["core-metrics-extractor", "other"]},
            "dataLayer.sources[0].extractors[1].pluginRef",
            "this page has several extractors of load",
        ),
    ],
)
def test_what_does_not_go_together_names_its_place(sources, place, problem):
    every = ("metrics-data-source", "core-metrics-extractor", "models-data-source")
    more = ("models-data-extractor", "dcgm-extractor")
    with pytest.raises(ConfigError) as error:
        layer(
            *(plugin(each) for each in (*every, *more)),
            plugin("core-metrics-extractor", name="other"),
            sources=sources,
        )
    assert (error.value.place, problem in str(error.value)) == (place, True), str(error.value)


def engines(configs, **more):
    parameters = ", ".join([f"engineConfigs: [{configs}]", *(f"{k}: {v}" for k, v in more.items())])
    return only(plugin("core-metrics-extractor", f"{{{parameters}}}")).engines


def test_an_engine_of_the_users_is_tried_where_no_label_names_one():
    catalog = engines(
        "{name: mine, queuedRequestsSpec: 'my_queue{kind=waiting}', kvUsageSpec: my_usage}",
        engineLabelKey="my/engine",
    )
    assert list(catalog.engines) == ["vllm", "mine", *list(ENGINES)[1:]]
    mine = catalog.engines["mine"]
    assert (str(mine.waiting), mine.running) == ("my_queue{kind=waiting}", None)
    assert [str(each) for each in mine.kv_usage] == ["my_usage"]
    assert mine.signs == (b"my_queue", b"my_usage")
    assert catalog.named({"my/engine": "mine"}) is mine
    legacy = "inference.networking.k8s.io/engine-type"
    assert catalog.named({legacy: "sglang"}) is SGLANG
    assert catalog.named({"llm-d.ai/engine-type": "mine"}) is None
    assert {b"kind", b"engine", b"dp_rank"} <= catalog.read_labels


def test_an_engine_takes_the_place_of_the_built_in_one():
    vllm = engines("{name: vllm, queuedRequestsSpec: nv_inference_pending_request_count}").engines[
        "vllm"
    ]
    assert str(vllm.waiting) == "nv_inference_pending_request_count"
    assert (vllm.running, vllm.kv_usage, vllm.adapters) == (None, (), None)
    assert (vllm.num_blocks, vllm.longest) == (VLLM.num_blocks, VLLM.longest)
    assert vllm.signs[0] == b"nv_inference_pending_request_count"


def test_a_cache_of_ones_own_takes_the_place_of_the_built_in_one():
    vllm = engines("{name: vllm, cacheInfoSpec: my_cache}").engines["vllm"]
    assert [str(each) for each in vllm.num_blocks] == ["my_cache{num_gpu_blocks}"]
    assert (vllm.longest, vllm.whole_server) == (None, False)


def test_what_is_named_as_it_was_keeps_what_the_built_in_engine_knows():
    vllm = engines(
        """{name: vllm, queuedRequestsSpec: "vllm:num_requests_waiting",
          runningRequestsSpec: "vllm:num_requests_running", kvUsageSpec: "vllm:kv_cache_usage_perc",
          loraSpec: "vllm:lora_requests_info", cacheInfoSpec: "vllm:cache_config_info",
          customMetrics: [{attributeKey: Swapped, metricSpec: "vllm:swapped{kind=cpu}"}]}"""
    ).engines["vllm"]
    for field in ("waiting", "running", "kv_usage", "adapters", "block_size", "num_blocks"):
        assert repr(getattr(vllm, field)) == repr(getattr(VLLM, field)), field
    assert (vllm.longest, vllm.whole_server, vllm.signs) == (VLLM.longest, True, VLLM.signs)
    ((key, metric),) = vllm.attributes
    assert (key, str(metric)) == ("Swapped/core-metrics-extractor", "vllm:swapped{kind=cpu}")


def test_ray_shows_the_load_of_vllm_with_the_configuration_of_its_section():
    _, _, section = ENGINES_PAGE.partition("### vLLM in Ray Serve")
    (pages,) = load(section.split("```")[1].removeprefix("yaml")).data_layer.pages
    # vLLM 0.32 `v1/metrics/ray_wrappers.py`: other characters than letters become underscores.
    page = vllm_page().replace(b"vllm:", b"ray_vllm_")
    read = MetricsReader(Endpoint("d", "a", "10.0.0.1", 8000)).read(
        Page(page, None, pages.engines), 0
    )
    assert (read.load.waiting, read.load.running, read.load.kv_usage) == (3, 7, 0.25)
    assert (read.load.capacity_tokens, read.load.block_size) == (1023 * 16, 16)
    assert (read.load.engine, read.load.counted, read.warnings) == ("vllm", True, ())


def test_sizes_of_the_cache_are_labels_or_metrics():
    mine = engines(
        """{name: mine, cacheInfoSpec: info, cacheBlockSizeLabelName: size,
          cacheNumBlocksSpec: "blocks{kind=max}"}"""
    ).engines["mine"]
    assert [str(each) for each in mine.block_size] == ["info{size}"]
    assert [str(each) for each in mine.num_blocks] == ["blocks{kind=max}", "info{num_gpu_blocks}"]
    named = engines("{name: mine, cacheInfoSpec: info, cacheNumBlocksLabelName: blocks}")
    assert [str(each) for each in named.engines["mine"].num_blocks] == ["info{blocks}"]


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ("{engineConfigs: [{name: ''}]}", "engineConfigs[0]: the engine's `name` is empty"),
        ("{engineConfigs: [{name: default}]}", "which is reserved"),
        ("{engineConfigs: [{name: a}, {name: a}]}", "`a` is listed twice in `engineConfigs`"),
        (
            "{defaultEngine: vlm}",
            "`defaultEngine` is `vlm`, which is not one of `atom`, `llama.cpp`",
        ),
        (
            "{engineConfigs: [{name: a}, {name: b, kvUsageSpec: 'x{y'}]}",
            "`kvUsageSpec`: `x{y` is not a metric; write name or name{label=value,...}",
        ),
        ("{engineConfigs: [{name: a, loraSpec: 'x{y}'}]}", "`y` in `x{y}` is not label=value"),
        (
            "{engineConfigs: [{name: a, queueSpec: b}]}",
            "engineConfigs[0]: unknown parameter `queueSpec`: did you mean",
        ),
        (
            "{engineConfigs: [{name: a, customMetrics: [{attributeKey: '', metricSpec: b}]}]}",
            "engineConfigs[0].customMetrics[0]: `attributeKey` is empty",
        ),
        (
            "{engineConfigs: [{name: a, customMetrics: [{attributeKey: k, metricSpec: ''}]}]}",
            "`metricSpec` is empty",
        ),
        (
            """{engineConfigs: [{name: a, customMetrics: [{attributeKey: k, metricSpec: b},
              {attributeKey: k, metricSpec: c}]}]}""",
            "`k` is listed twice",
        ),
    ],
)
def test_bad_engines_name_their_place(parameters, problem):
    with pytest.raises(ConfigError) as error:
        layer(plugin("core-metrics-extractor", parameters))
    assert problem in str(error.value)
    assert error.value.place.startswith("plugins[1].parameters")
