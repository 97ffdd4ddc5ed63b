"""The configuration file: llm-d-router's files load unchanged; errors name place and problem."""

import msgspec
import pytest

from epp.config.file import POLICIES, load
from epp.config.schema import API_VERSION, OLD_API_VERSIONS, dump
from epp.errors import ConfigError
from epp.policy.pickers import LeastTtftPicker, MaxScorePicker, RandomPicker, RoundRobinPicker
from epp.policy.scorers.caches import PrefixCacheScorer
from epp.policy.scorers.load import QueueScorer

LLM_D_ROUTER = """
apiVersion: {group}
kind: EndpointPickerConfig
featureGates:
- haPopulateNonLeaderDatastore=false
- flowControl=false
plugins:
- type: single-profile-handler
- type: token-producer
- type: approx-prefix-cache-producer
  parameters: {{autoTune: true, blockSizeTokens: 64, maxPrefixBlocksToMatch: 256}}
- type: queue-scorer
- type: kv-cache-utilization-scorer
- name: prefix
  type: prefix-cache-scorer
  parameters:
    prefixMatchInfoProducerName: approx-prefix-cache-producer
    matchLengthWeight: 0.25
- type: lora-affinity-scorer
- type: max-score-picker
  parameters:
    maxNumOfEndpoints: 2
- type: metrics-data-source
- type: core-metrics-extractor
- type: openai-parser
- type: passthrough-parser
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
    weight: 2
  - pluginRef: kv-cache-utilization-scorer
  - pluginRef: prefix
    weight: 3.5
  - pluginRef: lora-affinity-scorer
  - pluginRef: max-score-picker
requestHandler:
  parsers:
  - pluginRef: openai-parser
  - pluginRef: passthrough-parser
dataLayer:
  injectDefaults: true
  sources:
  - pluginRef: metrics-data-source
    extractors:
    - pluginRef: core-metrics-extractor
"""


@pytest.mark.parametrize("group", [API_VERSION, *OLD_API_VERSIONS])
def test_llm_d_routers_file_loads_unchanged(group):
    settings = load(LLM_D_ROUTER.format(group=group))
    assert settings.profile.name == "default"
    weights = {each.name: each.weight for each in settings.profile.scorers}
    assert weights == {
        "queue-scorer": 2,
        "kv-cache-utilization-scorer": 1,
        "prefix": 3.5,
        "lora-affinity-scorer": 1,
    }
    prefix = settings.profile.scorers[2].scorer
    assert isinstance(prefix, PrefixCacheScorer)
    assert prefix.match_length_weight == 0.25
    assert settings.profile.picker == MaxScorePicker(2)
    assert settings.endpoints_file == ""
    assert settings.effective.api_version == API_VERSION


def test_the_old_prefix_parameters_are_accepted():
    text = """
plugins:
- type: prefix-cache-scorer
  parameters: {blockSize: 64, maxPrefixBlocksToMatch: 256, lruCapacityPerServer: 31250}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: prefix-cache-scorer, weight: 50}]
"""
    (scorer,) = load(text).profile.scorers
    assert isinstance(scorer.scorer, PrefixCacheScorer)
    assert scorer.weight == 50


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_load(policy):
    assert load(POLICIES[policy]).profile.picker is not None
    assert load(POLICIES[policy]).warnings == ()


def test_policies_are_what_they_are_called():
    pickers = {name: type(load(text).profile.picker) for name, text in POLICIES.items()}
    assert pickers["least-ttft"] is LeastTtftPicker
    assert pickers["round-robin"] is RoundRobinPicker
    assert pickers["random"] is RandomPicker
    assert pickers["linear"] is MaxScorePicker


def test_without_profiles_every_plug_in_is_in_one():
    settings = load("plugins: [{type: queue-scorer}, {type: random-picker}]")
    (scorer,) = settings.profile.scorers
    assert (scorer.scorer, scorer.weight) == (QueueScorer(), 1)
    assert settings.profile.picker == RandomPicker()


UNUSED = "queue-scorer` would have no effect: `{}` ignores scores"
PROFILE = "\nschedulingProfiles: [{name: p, plugins: [{pluginRef: queue-scorer}]}]"
IGNORANT = ["least-ttft-picker", "least-request-picker", "round-robin-picker"]


@pytest.mark.parametrize("picker", IGNORANT)
@pytest.mark.parametrize(
    ("profile", "place"), [("", "plugins"), (PROFILE, "schedulingProfiles[0].plugins")]
)
def test_scorers_that_would_have_no_effect_are_refused(picker, profile, place):
    with pytest.raises(ConfigError, match="let `max-score-picker` pick") as raised:
        load(f"plugins: [{{type: queue-scorer}}, {{type: {picker}}}]{profile}")
    assert raised.value.place == place
    assert UNUSED.format(picker) in str(raised.value)
    assert ("`least-ttft-scorer`" in str(raised.value)) is (picker == "least-ttft-picker")


def test_the_profile_whose_scorers_have_no_effect_is_named():
    with pytest.raises(ConfigError, match="would have no effect") as raised:
        load("""
plugins: [{type: queue-scorer}, {type: least-request-picker}, {type: disagg-profile-handler}]
schedulingProfiles:
- {name: decode, plugins: [{pluginRef: least-request-picker}]}
- {name: prefill, plugins: [{pluginRef: queue-scorer}]}
""")
    assert raised.value.place == "schedulingProfiles[1].plugins"


def test_llm_d_routers_files_may_have_scorers_beside_a_random_picker():
    settings = load("plugins: [{type: queue-scorer}, {type: random-picker}]")
    (warning,) = settings.warnings
    assert UNUSED.format("random-picker") in warning
    assert load("plugins: [{type: random-picker}]").warnings == ()


def test_predicted_first_tokens_can_be_combined_with_other_scores():
    kinds = ("least-ttft-scorer", "queue-scorer", "max-score-picker")
    settings = load(f"plugins: [{', '.join(f'{{type: {kind}}}' for kind in kinds)}]")
    assert [each.name for each in settings.profile.scorers] == list(kinds[:2])
    assert settings.warnings == ()


@pytest.mark.parametrize(
    ("pickers", "picker"),
    [
        ("", MaxScorePicker()),
        ("- {type: random-picker}", RandomPicker()),
        ("- {type: max-score-picker, parameters: {maxNumOfEndpoints: 3}}", MaxScorePicker(3)),
    ],
)
def test_a_profile_without_a_picker_gets_the_files_or_the_default(pickers, picker):
    settings = load(f"""
plugins:
- {{type: queue-scorer}}
{pickers}
schedulingProfiles: [{{name: p, plugins: [{{pluginRef: queue-scorer}}]}}]
""")
    assert settings.profile.picker == picker
    assert load(dump(settings.effective)).profile == settings.profile


@pytest.mark.parametrize(
    "text", [*POLICIES.values(), LLM_D_ROUTER.format(group=OLD_API_VERSIONS[1])]
)
def test_the_effective_file_loads_as_the_same(text):
    settings = load(text)
    again = load(dump(settings.effective))
    assert again.profile == settings.profile
    assert dump(again.effective) == dump(settings.effective)


def test_the_effective_file_has_everything_in_it():
    said = msgspec.yaml.decode(dump(load("plugins: [{type: queue-scorer}]").effective))
    assert said == {
        "apiVersion": "llm-d.ai/v1",
        "kind": "EndpointPickerConfig",
        "plugins": [
            {"type": "queue-scorer", "name": "queue-scorer", "parameters": {}},
            {
                "type": "max-score-picker",
                "name": "max-score-picker",
                "parameters": {"maxNumOfEndpoints": 1},
            },
        ],
        "schedulingProfiles": [
            {
                "name": "default",
                "plugins": [
                    {"pluginRef": "queue-scorer", "weight": 1.0},
                    {"pluginRef": "max-score-picker"},
                ],
            }
        ],
    }


def test_file_discovery_names_the_endpoints_file():
    text = """
plugins: [{type: least-ttft-picker}, {type: file-discovery, parameters: {path: /etc/e.yaml}}]
dataLayer: {discovery: {pluginRef: file-discovery}}
"""
    assert (load(text).endpoints_file, load(text).host_names) == ("/etc/e.yaml", False)
    assert load(dump(load(text).effective)).endpoints_file == "/etc/e.yaml"


def test_a_syncer_names_the_server_by_which_replicas_share():
    text = """
plugins: [{type: queue-scorer}, {type: redis-syncer, name: mine, parameters: {address: "r:1"}}]
dataLayer: {crossReplica: {syncerPluginRef: mine}}
"""
    found = load(dump(load(text).effective)).redis_syncer
    assert found is not None
    assert (found.host, found.port, found.db) == ("r", 1, 0)
    assert load("plugins: [{type: redis-syncer}, {type: queue-scorer}]").redis_syncer is None


ONE = "plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: a, plugins: "
SYNCED = "dataLayer: {crossReplica: {syncerPluginRef: %s}}\nplugins: [{type: queue-scorer}%s]"
ERRORS = [
    (
        SYNCED % ("queue-scorer", ""),
        "dataLayer.crossReplica.syncerPluginRef",
        "`redis-syncer` does",
    ),
    (SYNCED % ("none", ""), "dataLayer.crossReplica.syncerPluginRef", "none"),
    *(
        (
            SYNCED % ("redis-syncer", f", {{type: redis-syncer, parameters: {{{given}}}}}"),
            "plugins[1].parameters",
            said,
        )
        for given, said in (
            ("address: redis", "`address` is not HOST:PORT: `redis`"),
            ("address: ':6379'", "`address` is not HOST:PORT: `:6379`"),
            ("address: 'r:x'", "`address` is not HOST:PORT: `r:x`"),
            ("address: 'r:65536'", "`address` is not HOST:PORT: `r:65536`"),
            ("stateTTL: soon", "`soon` is not a duration"),
            ("coordinationTTL: soon", "`soon` is not a duration"),
        )
    ),
    (
        SYNCED
        % ("redis-syncer", ", {type: redis-syncer, parameters: {passwordEnv: A, passwordFile: b}}"),
        "plugins[1].parameters",
        "give only one of `passwordEnv` and `passwordFile`",
    ),
    (
        "plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: a}, {name: a}]",
        "schedulingProfiles[1].name",
        "a second profile is named `a`",
    ),
    (
        "plugins: [{type: single-profile-handler}, {type: header-profile-handler}]",
        "plugins",
        "`single-profile-handler` and `header-profile-handler` are both profile handlers",
    ),
    ("", "", "empty"),
    ("plugins: [", "line 2, column 1", "not valid YAML"),
    ("\udcff", "", "not valid YAML"),
    ("- a", "", "a mapping is expected, not a list"),
    ("kind: Pod", "kind", "`Pod` is not `EndpointPickerConfig`"),
    ("apiVersion: [v1]", "apiVersion", "`['v1']` is not one of llm-d.ai/v1"),
    ("apiVersion: v1", "apiVersion", "llm-d.ai/v1alpha1, inference.networking.x-k8s.io/v1alpha1"),
    ("plugin: []", "", "unknown field `plugin`: did you mean `plugins`"),
    ("zzz: []", "", "`zzz`; it takes apiVersion, kind, featureGates, plugins, scheduling"),
    ("endpoints: []", "", "a file of `endpoints` is not a configuration; --endpoints-file names"),
    ("flowControl: {endpoints: []}", "flowControl", "unknown field `endpoints`; it takes "),
    ("plugins: [{type: a}, {type: a, weight: 1}]", "plugins[1]", "; it takes type, name, param"),
    ("schedulingProfile: []", "", "did you mean `schedulingProfiles`"),
    ("flowControl: {maxByte: 1}", "flowControl", "did you mean `maxBytes`"),
    ("saturationDetector: {pluginRef: x}", "flowControl.saturationDetector.pluginRef", "named `x`"),
    ("plugins: [{name: queue-scorer}]", "plugins[0]", "missing required field `type`"),
    ("plugins: [{type: queue-scorer, param: {}}]", "plugins[0]", "did you mean `parameters`"),
    (
        "plugins: [{type: queue-scorer}, {type: 7}]",
        "plugins[1].type",
        "text is expected, not a whole number; put it in quotes",
    ),
    ("plugins: [{type: queue-score}]", "plugins[0].type", "did you mean `queue-scorer`"),
    ("plugins: [{type: zzz}]", "plugins[0].type", "unknown plug-in type `zzz`"),
    (
        "plugins: [{type: queue-scorer}, {type: queue-scorer}]",
        "plugins[1].name",
        "a second plug-in is named `queue-scorer`",
    ),
    (
        "plugins: [{type: max-score-picker, parameters: {maxNumEndpoints: 1}}]",
        "plugins[0].parameters",
        "did you mean `maxNumOfEndpoints`",
    ),
    (
        "plugins: [{type: max-score-picker, parameters: {maxNumOfEndpoints: one}}]",
        "plugins[0].parameters.maxNumOfEndpoints",
        "a whole number is expected, not text",
    ),
    (
        "plugins: [{type: least-ttft-scorer, parameters: {threshold: 1}}]",
        "plugins[0].parameters",
        "unknown parameter `threshold`; it takes none",
    ),
    (
        "plugins: [{type: file-discovery}]",
        "plugins[0].parameters",
        "missing required field `path`",
    ),
    (
        "plugins: [{type: random-picker}, {type: max-score-picker}]",
        "schedulingProfiles[0].plugins",
        "this profile has several pickers; keep one",
    ),
    (
        ONE + "[{pluginRef: queue-score}]}]",
        "schedulingProfiles[0].plugins[0].pluginRef",
        "no plug-in is named `queue-score`: did you mean `queue-scorer`",
    ),
    (
        ONE + "[{pluginRef: kv-cache-utilization-scorer}]}]",
        "schedulingProfiles[0].plugins[0].pluginRef",
        "to use that type, add `- type: kv-cache-utilization-scorer` to `plugins`",
    ),
    (
        ONE + "[{pluginRef: queue-scorer, weight: .nan}]}]",
        "schedulingProfiles[0].plugins[0].weight",
        "nan is out of range",
    ),
    (
        ONE + "[{pluginRef: queue-scorer, weight: .inf}]}]",
        "schedulingProfiles[0].plugins[0].weight",
        "inf is out of range",
    ),
    (
        ONE + "[{pluginRef: queue-scorer, weight: heavy}]}]",
        "schedulingProfiles[0].plugins[0].weight",
        "a number is expected, not text",
    ),
    (ONE + "[]}, {name: b}]", "schedulingProfiles", "the profiles a, b need a profile handler"),
    ("featureGates: [flowControl, flowContro]", "featureGates[1]", "did you mean `flowControl`"),
    ("featureGates: [flowControl=on]", "featureGates[0]", "`on` is neither true nor false"),
    (
        "dataLayer: {sources: [{pluginRef: x}]}",
        "dataLayer.sources[0].pluginRef",
        "no plug-in is named `x`",
    ),
    (
        """
plugins: [{type: metrics-data-source}]
dataLayer: {sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: y}]}]}""",
        "dataLayer.sources[0].extractors[0].pluginRef",
        "no plug-in is named `y`",
    ),
    (
        "requestHandler: {parsers: [{pluginRef: open-parser}]}",
        "requestHandler.parsers[0].pluginRef",
        "no plug-in is named `open-parser`",
    ),
    ("requestHandler: {parsed: []}", "requestHandler", "did you mean `parsers`"),
    (
        "plugins: [{type: queue-scorer}]\ndataLayer: {discovery: {pluginRef: queue-scorer}}",
        "dataLayer.discovery.endpoints.pluginRef",
        "`file-discovery` does",
    ),
    (
        "apiVersion: llm-d.ai/v1\ndataLayer: {peerDiscovery: {pluginRef: x}}",
        "dataLayer",
        "`peerDiscovery` is a field of v1alpha1; llm-d.ai/v1 has `dataLayer.discovery.peers`",
    ),
]


@pytest.mark.parametrize(("text", "place", "said"), ERRORS, ids=lambda each: str(each)[:40])
def test_errors_name_the_place_and_the_problem(text, place, said):
    with pytest.raises(ConfigError) as raised:
        load(text)
    assert raised.value.place == place
    assert said in str(raised.value)
    assert str(raised.value).startswith(f"{place}: " if place else "")


def test_the_precise_producer_is_known_by_its_name():
    named = "plugins: [{type: precise-prefix-cache-producer, name: mine}, {type: queue-scorer}]"
    assert load(named).precise_producer == "mine"
    assert load("plugins: [{type: queue-scorer}]").precise_producer == ""
