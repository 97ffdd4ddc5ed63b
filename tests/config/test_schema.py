"""The file's versions: deprecated fields are converted, with a warning each."""

import pytest

from epp.config.file import load
from epp.config.plugins import Plugins
from epp.config.report import report
from epp.config.schema import API_VERSION, OLD_API_VERSIONS, decode
from epp.errors import ConfigError
from epp.quantities import quantity

OLD = """
apiVersion: {version}
kind: EndpointPickerConfig
plugins: [{{type: queue-scorer}}, {{type: file-discovery, parameters: {{path: /e.yaml}}}}]
parser: {{pluginRef: openai-parser}}
dataLayer:
  discovery: {{pluginRef: file-discovery}}
  crossReplicaSyncInterval: 5s
  crossReplicaPublishTimeout: 2s
"""
NEW = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: file-discovery, parameters: {path: /e.yaml}}]
requestHandler: {parsers: [{pluginRef: openai-parser}]}
dataLayer:
  discovery: {endpoints: {pluginRef: file-discovery}}
  crossReplica: {syncInterval: 5s, publishTimeout: 2s}
"""
LAYER = "dataLayer.crossReplica"
MOVED = {
    "parser is deprecated: write requestHandler.parsers",
    "dataLayer.discovery.pluginRef is deprecated: write dataLayer.discovery.endpoints.pluginRef",
    f"{LAYER}SyncInterval is deprecated: write dataLayer.crossReplica.syncInterval",
    f"{LAYER}PublishTimeout is deprecated: write dataLayer.crossReplica.publishTimeout",
}
GROUP = {"apiVersion: `inference.networking.x-k8s.io/v1alpha1` is deprecated: write llm-d.ai/v1"}


EMPTY = """
apiVersion: {version}
featureGates:
plugins:
- {{type: queue-scorer, name: , parameters: }}
- {{type: metrics-data-source}}
schedulingProfiles:
- {{name: one, plugins: }}
requestHandler: {{parsers: , propagatePriority: }}
dataLayer:
  injectDefaults:
  sources: [{{pluginRef: metrics-data-source, extractors: }}]
  discovery:
flowControl: {{maxBytes: , priorityBands: , saturationDetector: }}
parser:
"""
ABSENT = """
plugins:
- {type: queue-scorer}
- {type: metrics-data-source}
schedulingProfiles: [{name: one}]
requestHandler: {}
dataLayer: {sources: [{pluginRef: metrics-data-source}]}
flowControl: {}
"""


@pytest.mark.parametrize("version", OLD_API_VERSIONS)
def test_a_key_without_a_value_is_as_good_as_absent(version):
    assert decode(EMPTY.format(version=version))[0] == decode(ABSENT)[0]
    present = EMPTY.format(version=API_VERSION).replace("parser:", "")
    assert decode(present)[0] == decode(ABSENT)[0]


@pytest.mark.parametrize(
    ("kind", "empty", "absent"),
    [
        ("label-selector-filter", "{matchLabels: }", "{}"),
        ("max-score-picker", "{maxNumOfEndpoints: }", "{}"),
        ("disagg-profile-handler", "{deciders: , profiles: {prefill: }}", "{}"),
        ("token-producer", "{vllm: {url: 'http://a', timeout: }}", "{vllm: {url: 'http://a'}}"),
    ],
)
def test_a_parameter_without_a_value_has_its_default(kind, empty, absent):
    made = [
        Plugins(decode(f"plugins: [{{type: {kind}, parameters: {each}}}]")[0].plugins).structs[kind]
        for each in (empty, absent)
    ]
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plugins: [{type: }]", "missing required field `type`"),
        ("plugins: [{type: queue-scorer, wait: }]", "unknown field `wait`"),
        ("plugins: [null]", "expected, but the value is empty"),
        (
            "plugins: [{type: label-selector-filter, parameters: {matchLabels: {a: }}}]",
            "expected, but the value is empty",
        ),
    ],
)
def test_a_null_stands_for_nothing_else(text, said):
    with pytest.raises(ConfigError, match=said):
        load(text)


@pytest.mark.parametrize(
    ("written", "number"), [("1e4", 1e4), ("1.5E3", 1500), (".5e+4", 5000), ("12000e-1", 1200)]
)
def test_a_number_may_have_an_exponent_as_in_gos_yaml(written, number):
    filters = (
        f"{{type: prefix-cache-affinity-filter, parameters: {{peakPrefillThroughput: {written}}}}}"
    )
    profile = f"{{name: p, plugins: [{{pluginRef: queue-scorer, weight: {written}}}]}}"
    text = f"""
        plugins: [{filters}, {{type: queue-scorer}}]
        schedulingProfiles: [{profile}]
    """
    config, _ = decode(text)
    assert config.scheduling_profiles[0].plugins[0].weight == number
    affinity = Plugins(config.plugins).structs["prefix-cache-affinity-filter"]
    assert affinity.peak_prefill_throughput == number


@pytest.mark.parametrize("written", ["4e6", "4.0e+6", "4000000.0"])
def test_a_whole_number_may_be_written_with_a_point_or_an_exponent_as_in_gos_yaml(written):
    text = f"""
        plugins:
        - type: approx-prefix-cache-producer
          parameters: {{autoTune: false, lruCapacityPerServer: {written}}}
    """
    (found,) = Plugins(decode(text)[0].plugins).structs.values()
    assert found.lru_capacity_per_server == 4_000_000


@pytest.mark.parametrize("name", ["lruCapacityPerServer", "peakPrefillThroughput"])
def test_a_number_with_an_exponent_has_the_same_range(name):
    kinds = ("approx-prefix-cache-producer", "prefix-cache-affinity-filter")
    kind = kinds[name == "peakPrefillThroughput"]
    text = f"plugins: [{{type: {kind}, parameters: {{{name}: 1e300}}}}]"
    with pytest.raises(ConfigError, match="out of range") as raised:
        Plugins(decode(text)[0].plugins)
    assert raised.value.place == f"plugins[0].parameters.{name}"


def test_a_fraction_is_not_a_whole_number():
    text = "plugins: [{type: load-aware-scorer, parameters: {threshold: 1.5e0}}]"
    with pytest.raises(ConfigError, match="a whole number is expected, not a fraction"):
        Plugins(decode(text)[0].plugins)


def test_what_is_no_number_stays_text():
    seeds = "plugins: [{type: session-id-producer, parameters: {headerName: 1e4}}]"
    (found,) = Plugins(decode(seeds)[0].plugins).structs.values()
    assert found.header_name == "1e4"
    with pytest.raises(ConfigError, match="a number is expected, not text"):
        load(
            "plugins: [{type: prefix-cache-affinity-filter, parameters: {maxTTFTPenaltyMs: 1e999}}]"
        )


@pytest.mark.parametrize(
    ("written", "number"),
    [("1e9", 10**9), ("12E3", 12_000), ("5E", 5 * 10**18), ("2.5e1", 25), ("11e-1", 2)],
)
def test_a_quantity_may_have_an_exponent(written, number):
    settings = load(f"featureGates: [flowControl]\nflowControl: {{maxBytes: {written}}}")
    section = settings.effective.flow_control
    assert section is not None
    assert section.max_bytes == written
    assert quantity(written) == number


def test_a_null_for_a_chat_template_reaches_it():
    kwargs = "{modelName: m, vllm: {url: 'http://a'}, chatTemplateKwargs: {mode: }}"
    config, _ = decode(f"plugins: [{{type: token-producer, parameters: {kwargs}}}]")
    made = Plugins(config.plugins).structs["token-producer"]
    assert made.chat_template_kwargs == {"mode": None}


@pytest.mark.parametrize("version", OLD_API_VERSIONS)
def test_deprecated_fields_are_read_as_those_of_v1(version):
    config, warnings = decode(OLD.format(version=version))
    assert config == decode(NEW)[0]
    assert set(warnings) == (MOVED if version == OLD_API_VERSIONS[0] else MOVED | GROUP)
    assert decode(NEW)[1] == ()


def test_a_file_of_v1_has_no_deprecated_fields():
    with pytest.raises(ConfigError, match="`parser` is a field of v1alpha1"):
        decode(OLD.format(version=API_VERSION))


def test_of_both_spellings_that_of_v1_counts():
    text = """
apiVersion: llm-d.ai/v1alpha1
parser: {pluginRef: a}
requestHandler: {parsers: [{pluginRef: b}]}
"""
    config, (warning,) = decode(text)
    assert config.request_handler is not None
    assert [each.plugin_ref for each in config.request_handler.parsers] == ["b"]
    assert warning.startswith("parser is deprecated")


def test_the_data_layer_as_gie_called_it():
    text = """
apiVersion: inference.networking.x-k8s.io/v1alpha1
featureGates: [dataLayer]
plugins: [{type: metrics-data-source}, {type: model-server-protocol-metrics}]
%s:
  sources:
  - pluginRef: metrics-data-source
    extractors: [{pluginRef: model-server-protocol-metrics}]
"""
    config, warnings = decode(text % "data")
    assert config == decode(text % "dataLayer")[0]
    assert config.data_layer is not None
    assert [each.plugin_ref for each in config.data_layer.sources] == ["metrics-data-source"]
    assert set(warnings) == GROUP | {"data is deprecated: write dataLayer"}


def test_a_null_in_an_old_field_stands_for_its_default_too():
    text = "apiVersion: llm-d.ai/v1alpha1\ndata: {sources: null, injectDefaults: null}"
    config, (warning,) = decode(text)
    assert config == decode("dataLayer: {}")[0]
    assert warning.startswith("data is deprecated")


def test_the_one_parser_of_old_releases():
    text = "apiVersion: llm-d.ai/v1alpha1\nrequestHandler: {parser: {pluginRef: a}}"
    config, (warning,) = decode(text)
    assert config.request_handler is not None
    assert [each.plugin_ref for each in config.request_handler.parsers] == ["a"]
    assert warning.startswith("requestHandler.parser is deprecated: write requestHandler.parsers")


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        (
            "plugins: [{type: priority-holdback-policy, parameters: {minCeiling: 2}}]",
            "plugins[0].parameters",
            "`minCeiling` < `maxCeiling`",
        ),
        (
            "plugins: [{type: queue-scorer}]\nsaturationDetector: {queueDepthThreshold: no}",
            "flowControl.saturationDetector.queueDepthThreshold",
            "a whole number is expected",
        ),
        (
            "saturationDetector: {kvCacheUtilThreshold: 5}",
            "flowControl.saturationDetector",
            "`kvCacheUtilThreshold` is 5, above 1",
        ),
        (
            "dataLayer: {crossReplica: {publishTimeout: soon}}",
            "dataLayer.crossReplica",
            "`soon` is not a duration",
        ),
        (
            "plugins: [{type: queue-scorer, name: q}]\nsaturationDetector: {pluginRef: q}",
            "flowControl.saturationDetector.pluginRef",
            "`q` does not detect saturation",
        ),
        (
            "dataLayer: {crossReplica: {syncInterval: 0s}}",
            "dataLayer.crossReplica",
            "must be above 0",
        ),
    ],
)
def test_errors_name_the_place_and_the_problem(text, place, said):
    with pytest.raises(ConfigError) as raised:
        load(text)
    assert raised.value.place == place
    assert said in raised.value.problem


SESSIONS = """
plugins:
- {type: agent-identity}
- type: session-manager
  name: sessions
  parameters: {deploymentID: d, hmacKeyFile: /gone, eventCorrelationEnabled: true, bindingTTL: 5m}
- {type: precise-prefix-cache-producer, parameters: {sessionManager: sessions}}
- {type: session-id-producer, parameters: {headerName: x-session-id}}
- {type: session-interturn-latency-producer, parameters: {queues: [{sessionType: agentic}]}}
- type: kv-cache-hint
  parameters: {queues: [{sessionType: agentic, retain: {quantile: 0.9, minTTL: 30s}}]}
- {type: approx-prefix-cache-producer, parameters: {prefixHashSource: metadata}}
- {type: prefix-cache-scorer}
"""


def test_what_is_done_with_sessions_and_hashes_of_others_is_said():
    none = "without effect here, because"
    tokens = f"{none} KV events are matched by their tokens, not by sessions"
    hashed = f"{none} prompts are hashed from request bodies"
    hints = f"{none} requests are sent on without hints of how long to keep their blocks"
    assert set(load(SESSIONS).warnings) == {
        f"sessions: {tokens}",
        f"precise-prefix-cache-producer: `sessionManager` is {tokens}",
        f"session-interturn-latency-producer: {hints}",
        f"kv-cache-hint: {hints}",
        f"approx-prefix-cache-producer: `prefixHashSource` is {hashed}",
    }


def reported(settings):
    """Return the lines of the report by the plug-in, parameter or field that each is about."""
    lines = report(settings.effective, settings.plugins)
    return {line[2:].split("  ")[0 if line[2] != " " else 1]: line for line in lines}


def test_the_report_says_what_takes_the_place_of_a_plug_in_or_a_parameter():
    said = reported(
        load("""
plugins:
- {type: queue-scorer}
- {type: precise-prefix-cache-producer}
- type: capacity-ledger
  parameters: {slotsPerEndpoint: 8, stepTokenBudget: 8192, maxModelLen: 4096}
dataLayer: {discovery: {peers: {pluginRef: file-discovery}}}
""")
    )
    for name in ("capacity-ledger", "slotsPerEndpoint"):
        assert said[name].endswith("whose limits are learned")
    assert said["speculativeIndexing"].endswith("count as cached until events deny it")
    assert said["dataLayer.discovery.peers"].endswith("names the other replicas")
    assert "dataLayer.discovery" not in said


def test_the_report_says_what_becomes_of_everything():
    settings = load("""
plugins:
- {type: prefix-cache-scorer, name: prefix, parameters: {autoTune: false}}
- {type: fcfs-ordering-policy}
flowControl: {enableEviction: true}
""")
    said = reported(settings)
    assert said["prefix (prefix-cache-scorer)"].endswith("  honoured")
    assert said["matchLengthWeight"].endswith(" 0.0    honoured")
    assert "  false  without effect here, because blocks and capacities" in said["autoTune"]
    assert said["fcfs-ordering-policy"].endswith("  honoured")
    assert said["flowControl.enableEviction"].endswith("requests under way are not evicted")


@pytest.mark.parametrize("place", ["", "flowControl: "])
def test_a_detector_that_is_written_out_becomes_a_plug_in(place):
    detector = (
        "saturationDetector: {queueDepthThreshold: 7, kvCacheUtilThreshold: 8e-1, headroom: }"
    )
    config, _ = decode(
        f"apiVersion: llm-d.ai/v1alpha1\n{place}{{{detector}}}" if place else detector
    )
    assert [(each.type, each.parameters) for each in config.plugins] == [
        (
            "utilization-detector",
            {"queueDepthThreshold": 7, "kvCacheUtilThreshold": "8e-1", "headroom": None},
        )
    ]
    assert config.flow_control is not None
    assert config.flow_control.saturation_detector is not None
    assert config.flow_control.saturation_detector.plugin_ref == "utilization-detector"
