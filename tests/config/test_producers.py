"""Producers: llm-d-router's parameters and Warmpick's own; none is ignored in silence."""

import pytest

from epp.adapters.kvevents.publishers import SubscriptionSettings
from epp.adapters.scrape.client_tls import ClientTlsSettings
from epp.adapters.tokens.local.local_tokenizer import LocalLimits
from epp.adapters.tokens.render.render_server import RenderSettings
from epp.app.cache_sources import local_limits, render_settings, render_tls, subscription_settings
from epp.config.file import load
from epp.errors import ConfigError
from epp.label_selector import parse_label_selector
from epp.model.endpoint import Endpoint
from epp.quantities import seconds


def producer(kind, parameters):
    return f"plugins: [{{type: {kind}, parameters: {parameters}}}, {{type: random-picker}}]"


def test_an_empty_quantity_to_balance_is_the_default():
    assert load(producer("burst-prefix-cache-producer", "{balanceBy: ''}")).scheduling.profiles
    with pytest.raises(ConfigError, match="balanceBy"):
        load(producer("burst-prefix-cache-producer", "{balanceBy: prompts}"))


def tokens(parameters):
    return load(producer("token-producer", parameters)).tokens


@pytest.mark.parametrize(
    ("text", "value"),
    [("5s", 5), ("500ms", 0.5), ("1m30s", 90), ("1.5h", 5400), (".5s", 0.5), ("2us", 2e-6)],
)
def test_durations(text, value):
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "-1s", "0s", "1s!", "5sec"])
def test_malformed_durations_are_refused(text):
    with pytest.raises(ValueError, match=r"is not a duration|must be above 0"):
        seconds(text)


IN_PROCESS = """{tokenizer: /m, modelName: m, chatTemplate: /t, chatTemplateKwargs: {a: 1},
  maxBytes: 1, cacheBytes: 2, patience: 3s}"""


@pytest.mark.parametrize(
    "parameters",
    [
        "{}",
        "{estimate: {}}",
        "{estimate: {image: {mode: static, static: {staticToken: 5}}}}",
        "{estimate: {audio: {overheadTokens: 2, defaultBytesPerSecond: 9}}}",
        "{estimate: {audio: {mode: dynamic, dynamic: {bytesPerSecond: 16}}}}",
        "{modelName: m, udsTokenizerConfig: {socketFile: /tmp/t}}",
    ],
)
def test_what_leaves_prompts_text(parameters):
    assert tokens(parameters) is None


@pytest.mark.parametrize(
    ("parameters", "settings"),
    [
        ("{modelName: m}", RenderSettings(url="http://localhost:8000", model="m")),
        ("{vllm: {}}", RenderSettings(url="http://localhost:8000")),
        (
            '{modelName: m, maxBytes: 1, vllm: {url: "http://r:1/x", timeout: 1s, mmTimeout: 1m}}',
            RenderSettings(
                url="http://r:1/x", model="m", timeout=1, media_timeout=60, most_bytes=1
            ),
        ),
        ('{vllm: {timeout: ""}}', RenderSettings(url="http://localhost:8000")),
        (
            "{vllm: {prefillOnly: true, endpointDiscovery: {attemptTimeout: 1s}}}",
            RenderSettings(attempt_timeout=1, prefill_only=True),
        ),
        ("{vllm: {url: ''}}", RenderSettings(url="http://localhost:8000")),
        ("{vllm: {url: '', http: 'http://r:1'}}", RenderSettings(url="http://r:1")),
    ],
)
def test_who_is_asked_for_tokens(parameters, settings):
    assert render_settings(tokens(parameters)) == settings


@pytest.mark.parametrize(
    ("vllm", "tls"),
    [
        ("{url: 'https://r'}", ClientTlsSettings(verify=True)),
        (
            "{url: 'https://r', caCertPath: /ca, clientCertPath: /c, clientKeyPath: /k}",
            ClientTlsSettings(verify=True, authorities="/ca", certificate="/c", key="/k"),
        ),
        (
            "{url: 'https://r', insecureSkipVerify: true, messagesRenderMode: native}",
            ClientTlsSettings(),
        ),
    ],
)
def test_whom_to_trust_of_who_is_asked(vllm, tls):
    assert render_tls(tokens(f"{{vllm: {vllm}}}").vllm) == tls


def test_only_servers_over_tls_are_checked():
    asked = [f"{{vllm: {{url: '{scheme}://r'}}}}" for scheme in ("http", "https")]
    assert [render_settings(tokens(each)).tls is None for each in asked] == [True, False]


def test_what_a_tokenizer_in_process_is_told():
    producer = tokens(IN_PROCESS)
    assert (producer.tokenizer, producer.chat_template) == ("/m", "/t")
    assert producer.chat_template_kwargs == {"a": 1}
    assert local_limits(producer) == LocalLimits(most_bytes=1, cache_bytes=2, patience=3)


PORT_RULES = """{vllm: {endpointDiscovery: {portRules: [
  {selector: {matchLabels: {llm-d.ai/role: prefill}}, basePort: 8100},
  {selector: {matchExpressions: [{key: llm-d.ai/role, operator: Exists}]}, basePort: 65535}]}}}"""


@pytest.mark.parametrize(
    ("parameters", "labels", "index", "url"),
    [
        ("{vllm: {endpointDiscovery: {}}}", {}, 3, "http://[fd00::1]:8003"),
        (PORT_RULES, {"llm-d.ai/role": "prefill"}, 3, "http://[fd00::1]:8103"),
        (PORT_RULES, {"llm-d.ai/role": "decode"}, 0, "http://[fd00::1]:65535"),
        (PORT_RULES, {"llm-d.ai/role": "decode"}, 1, ""),
        (PORT_RULES, {}, 0, ""),
        (
            "{vllm: {endpointDiscovery: {portRules: [{basePort: 1}]}}}",
            {},
            0,
            "http://[fd00::1]:1",
        ),
    ],
)
def test_where_endpoints_render(parameters, labels, index, url):
    # llm-d-router, tokenizer/README.md: `basePort + RankIndex`, no fallback beside rules.
    discovery = tokens(parameters).vllm.endpoint_discovery
    place = Endpoint("ns", "pod", "fd00::1", 8000 + index, labels, port_index=index)
    assert discovery.url_of(place) == url


def test_the_old_name_of_the_producer_is_deprecated():
    settings = load(producer("tokenizer", "{modelName: m}"))
    assert settings.tokens == tokens("{modelName: m}")
    assert "`tokenizer` is deprecated: write `token-producer`" in "\n".join(settings.warnings)


def test_the_old_name_of_the_servers_address_is_mapped():
    # llm-d-inference-scheduler, deploy/config/epp-precise-prefix-cache-config.yaml.
    settings = load(producer("token-producer", "{modelName: m, vllm: {http: 'http://r:1'}}"))
    assert settings.tokens is not None
    assert render_settings(settings.tokens) == RenderSettings(url="http://r:1", model="m")
    (warning,) = settings.warnings
    assert "`vllm.http` is mapped to `url`" in warning


def test_service_that_faded_with_each_pick_fades_with_time():
    settings = load(producer("program-aware-fairness", "{lasDecayFactor: 0.99}"))
    (warning,) = settings.warnings
    assert "`lasDecayFactor` is mapped to `lasHalfLifeSeconds`" in warning


def test_without_a_producer_prompts_stay_text():
    settings = load("plugins: [{type: random-picker}]")
    assert (settings.tokens, settings.kv_events) == (None, None)
    assert (settings.token_block, settings.capacity) == (None, None)


def precise(parameters):
    return load(producer("precise-prefix-cache-producer", parameters))


def listening(settings):
    return subscription_settings(settings.kv_events, settings.base_model)


def test_subscription_settings_of_a_producer():
    assert listening(precise("{}")) == SubscriptionSettings()
    assert precise("{}").token_block == 16
    assert precise("{}").warnings == ()
    settings = precise(
        "{tokenProcessorConfig: {blockSizeTokens: 64, hashSeed: '42', hashAlgorithm: xxh64},"
        " indexerConfig: {kvBlockIndexConfig: {enableMetrics: true}},"
        " kvEventsConfig: {topicFilter: kv, concurrency: 8, engineType: sglang, discoverPods: true,"
        " podDiscoveryConfig: {socketPort: 6000, replaySocketPort: 6001, podLabelSelector: a=b}},"
        " speculativeIndexing: true, speculativeTTL: 10s}"
    )
    assert settings.token_block == 64
    assert listening(settings) == SubscriptionSettings(
        port=6000, replay_port=6001, topic_prefix="kv", selector=parse_label_selector("a=b")
    )
    said = "\n".join(settings.warnings)
    for name in ("kvEventsConfig.engineType", "enableMetrics", "hashSeed", "concurrency"):
        assert f"{name}` is without effect" in said
    assert "`speculativeIndexing` is mapped to" in said


def test_an_index_of_the_first_releases():
    # llm-d-router v0.9.0, deploy/config/sim-epp-no-hit-lru.yaml: read there, but not used.
    settings = precise(
        "{indexerConfig: {tokenProcessorConfig: {blockSize: 5},"
        " kvBlockIndexConfig: {maxPrefixBlocksToMatch: 256}}}"
    )
    assert settings.token_block == 16
    said = "\n".join(settings.warnings)
    for name in ("indexerConfig.tokenProcessorConfig", "kvBlockIndexConfig.maxPrefixBlocksToMatch"):
        assert f"{name}` is without effect" in said


def test_a_central_address_and_pods_of_one_namespace():
    settings = precise(
        "{kvEventsConfig: {zmqEndpoint: 'tcp://0.0.0.0:5557', discoverPods: false,"
        " podDiscoveryConfig: {podNamespace: prod}}}"
    )
    assert listening(settings) == SubscriptionSettings(
        central="tcp://0.0.0.0:5557", each=False, namespace="prod"
    )
    assert settings.warnings == ()


def test_a_producer_that_hears_nothing_says_so():
    settings = precise("{kvEventsConfig: {discoverPods: false}}")
    assert "no KV events are received" in "\n".join(settings.warnings)


@pytest.mark.parametrize(
    ("parameters", "block"),
    [
        ("{blockSize: 32}", 32),
        ("{blockSize: 32, blockSizeTokens: 0}", 32),
        ("{blockSize: 32, blockSizeTokens: 64}", 64),
        ("{blockSizeTokens: 0}", 16),
        ("{}", 16),
    ],
)
def test_the_old_name_of_the_block_size(parameters, block):
    assert precise(f"{{tokenProcessorConfig: {parameters}}}").token_block == block


def test_the_former_scorer_is_its_own_producer_unless_there_is_one():
    former = (
        "{type: precise-prefix-cache-scorer, parameters: {tokenProcessorConfig: {blockSize: 32}}}"
    )
    alone = load(f"plugins: [{former}]")
    assert (alone.token_block, listening(alone)) == (32, SubscriptionSettings())
    beside = load(f"plugins: [{former}, {{type: precise-prefix-cache-producer}}]")
    assert beside.token_block == 16


def test_events_are_of_the_model_that_tokens_are_of():
    settings = load("""
plugins:
- {type: token-producer, parameters: {modelName: base, tokenizer: /m}}
- {type: precise-prefix-cache-producer}
- {type: random-picker}
""")
    assert listening(settings) == SubscriptionSettings(model="base")


@pytest.mark.parametrize(
    ("parameters", "capacity"),
    [
        ("{}", None),
        ("{lruCapacityPerServer: 100}", None),
        ("{autoTune: false}", 2_000_000),
        ("{autoTune: false, lruCapacityPerServer: 100, blockSizeTokens: 16}", 6400),
        ("{autoTune: false, lruCapacityPerServer: 100, blockSizeTokens: 256}", 25_600),
        ("{maxPrefixBlocksToMatch: 1, maxPrefixTokensToMatch: 0, blockSize: 5}", None),
    ],
)
def test_assumed_capacity_of_an_endpoint_that_reports_none(parameters, capacity):
    assert load(producer("approx-prefix-cache-producer", parameters)).capacity == capacity


@pytest.mark.parametrize("tuned", ["true", "false"])
def test_a_size_that_endpoints_report_themselves_is_named(tuned):
    found = load(producer("approx-prefix-cache-producer", f"{{autoTune: {tuned}}}")).warnings
    assert any("report no capacity" in each for each in found) == (tuned == "false")


@pytest.mark.parametrize(
    ("kind", "parameters", "words"),
    [
        ("token-producer", "{modelname: m}", "did you mean `modelName`"),
        ("token-producer", "{vllm: {timout: 5s}}", "timout"),
        ("token-producer", "{vllm: {timeout: 5}}", "text is expected, not a whole number"),
        ("token-producer", "{vllm: {timeout: soon}}", "`soon` is not a duration"),
        *(
            ("token-producer", f"{{vllm: {{url: '{url}'}}}}", "is not the URL of a server")
            for url in (
                *("localhost", "http:///v1", "http://:8000", "http://render:80000", "http://[::1"),
                *("http://a:b", "http://a:0", "http://a/?x=1", "http://a#b", "grpc://a:1"),
                "http://render..svc:8000",
            )
        ),
        ("token-producer", "{vllm: {url: 'http://u:secret@a:b'}}", "`http://...@a:b` is not the"),
        (
            "token-producer",
            "{vllm: {url: 'http://a', http: 'http://b'}}",
            "one of `url` and `http`",
        ),
        (
            "token-producer",
            "{vllm: {url: 'http://a', endpointDiscovery: {}}}",
            "one of `url` and `endpointDiscovery`",
        ),
        (
            "token-producer",
            "{vllm: {endpointDiscovery: {}, caCertPath: /ca}}",
            "`endpointDiscovery` has no TLS",
        ),
        ("token-producer", "{vllm: {clientKeyPath: /k}}", "require each other"),
        ("token-producer", "{vllm: {endpointDiscovery: {portRules: [{}]}}}", "basePort"),
        (
            "token-producer",
            "{vllm: {endpointDiscovery: {attemptTimeout: soon}}}",
            "`soon` is not a duration",
        ),
        (
            "token-producer",
            "{vllm: {endpointDiscovery: {loadBalancer: {type: random}}}}",
            "random",
        ),
        ("token-producer", "{vllm: {}, tokenizer: /m}", "only one of"),
        ("token-producer", "{udsTokenizerConfig: {a: b}, tokenizer: /m}", "only one of"),
        (
            "token-producer",
            "{vllm: {endpointDiscovery: {}, insecureSkipVerify: true}}",
            "`endpointDiscovery` has no TLS",
        ),
        ("token-producer", "{estimate: {}, modelName: m}", "only one of"),
        ("token-producer", "{tokenizer: /m, patience: 0s}", "must be above 0"),
        ("token-producer", "{maxBytes: -1}", "`maxBytes` is -1, below 0"),
        ("precise-prefix-cache-producer", "{kvEventConfig: {}}", "kvEventsConfig"),
        (
            "precise-prefix-cache-producer",
            "{indexerConfig: {tokenizersPoolConfig: {}}}",
            "tokenizersPoolConfig",
        ),
        ("precise-prefix-cache-producer", "{kvEventsConfig: {engineType: trt}}", "trt"),
        *(
            (
                "precise-prefix-cache-producer",
                f"{{kvEventsConfig: {{zmqEndpoint: '{address}'}}}}",
                "not a ZMQ address",
            )
            for address in ("x", "tcp://0.0.0.0", "tcp://0.0.0.0:65536")
        ),
        (
            "precise-prefix-cache-producer",
            "{kvEventsConfig: {podDiscoveryConfig: {podLabelSelector: 'a in b'}}}",
            "`a in b` is not a requirement",
        ),
        (
            "precise-prefix-cache-producer",
            "{indexerConfig: {kvBlockIndexConfig: {inMemoryConfig: {sise: 1}}}}",
            "unknown parameter `sise`",
        ),
        ("token-producer", "{estimate: {image: {mode: guess}}}", "guess"),
        ("token-producer", "{estimate: {video: {frames: {sampled: {fps: 1}}}}}", "`fps`"),
        (
            "precise-prefix-cache-producer",
            "{kvEventsConfig: {podDiscoveryConfig: {socketPort: 70000}}}",
            "`socketPort` is 70000, above 65535",
        ),
        (
            "precise-prefix-cache-producer",
            "{kvEventsConfig: {podDiscoveryConfig: {replaySocketPort: -5}}}",
            "`replaySocketPort` is -5, below 0",
        ),
        ("precise-prefix-cache-producer", "{speculativeTTL: x}", "`x` is not a duration"),
        (
            "precise-prefix-cache-producer",
            "{tokenProcessorConfig: {blockSizeTokens: -1}}",
            "`blockSizeTokens` is -1, below 0",
        ),
        ("approx-prefix-cache-producer", "{lruCapacity: 1}", "lruCapacityPerServer"),
        ("approx-prefix-cache-producer", "{lruCapacityPerServer: -1}", "is -1, below 0"),
    ],
)
def test_invalid_parameters_are_refused(kind, parameters, words):
    with pytest.raises(ConfigError, match=words) as refused:
        load(producer(kind, parameters))
    assert refused.value.place.startswith("plugins[0].parameters")


@pytest.mark.parametrize(
    ("kind", "parameters", "allowed"),
    [
        ("token-producer", "{tokenizer: /m}", False),
        ("token-producer", "{}", True),
        ("precise-prefix-cache-producer", "{}", False),
        ("approx-prefix-cache-producer", "{autoTune: false}", True),
    ],
)
def test_two_of_a_kind(kind, parameters, allowed):
    specs = ", ".join(f"{{name: {n}, type: {kind}, parameters: {parameters}}}" for n in "ab")
    text = f"plugins: [{specs}, {{type: random-picker}}]"
    if allowed:
        assert load(text).profile.picker is not None
        return
    with pytest.raises(ConfigError, match=f"there are several `{kind}` plug-ins"):
        load(text)
