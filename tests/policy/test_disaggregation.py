"""Disaggregation by llm-d-router's rules: which stages run where, and what the sidecar is told."""

import pytest

from epp.config.file import load
from epp.errors import ConfigError, EndpointsFull, NoEndpoints, NotCached
from epp.model.decision import Decision
from epp.model.request import Api
from epp.policy.disaggregation.deciders import (
    AlwaysDisaggMultimodalDecider,
    AlwaysDisaggPdDecider,
    PrefixBasedPdDecider,
)
from epp.policy.disaggregation.handler import ENCODERS, PREFILLER
from epp.policy.handlers import DATA_PARALLEL
from epp.policy.pickers import MaxScorePicker
from epp.policy.profile import Profile, Scheduling
from epp.policy.scheduler import Scheduler
from tests.model.rig import LONG, Rig, predicted
from tests.policy.routing import routed
from tests.strategies import endpoint, request

DECODE, PREFILL = "10.0.0.1:8000", "10.0.0.2:8000"
ENCODE = "10.0.0.3:8000,10.0.0.4:8000"
CONFIG = """
plugins:
- {{type: {handler}, name: handler, parameters: {{{parameters}}}}}
- {{type: always-disagg-pd-decider, name: always}}
- {{type: always-disagg-multimodal-decider, name: multimodal}}
- {{type: prefix-based-pd-decider, name: prefix, parameters: {{nonCachedTokens: 500}}}}
- {{type: max-score-picker}}
schedulingProfiles: [{profiles}]
"""
STAGES = ("encode", "prefill", "decode")


class OfRole:
    """A filter of endpoints by their names; it notes the peers that it was shown."""

    def __init__(self, role):
        self.role, self.peers = role, []
        self.full = False

    def filter(self, request, candidates):
        if self.full:
            raise EndpointsFull("all are full")
        self.peers.append(request.peer and request.peer.name)
        return [each for each in candidates if self.role in each.endpoint.name]


def configured(parameters="", names=STAGES, handler="disagg-profile-handler"):
    profiles = ", ".join(f"{{name: {name}}}" for name in names)
    return load(CONFIG.format(handler=handler, parameters=parameters, profiles=profiles))


class Pool:
    """Endpoints that are named after their roles, under the handler of a configuration."""

    def __init__(self, *config, roles=("decode", "prefill", "encode-0", "encode-1"), **more):
        self.rig = Rig(0)
        for number, role in enumerate(roles):
            self.rig.add(role, f"10.0.0.{number + 1}")
        handler = configured(*config, **more).scheduling.handler
        self.filters = {name: OfRole(name) for name in STAGES}
        picker = MaxScorePicker(max_num_of_endpoints=2)
        profiles = {name: Profile(name, (each,), (), picker) for name, each in self.filters.items()}
        scheduling = Scheduling(profiles=profiles, handler=handler)
        self.scheduler = Scheduler(self.rig.fleet, scheduling, lambda _: 0)

    def route(self, *texts, **more):
        return routed(self.scheduler, request("r", *(texts or (LONG,)), **more), self.rig.now)

    def requests(self):
        return {name: each.requests for name, each in self.rig.ask().items()}


BOTH = "deciders: {prefill: always, encode: multimodal}"
BY_PREFIX = "deciders: {prefill: prefix}"
FIRST = "stageOrder: prefill-first, deciders: {encode: multimodal}"


@pytest.mark.parametrize(
    ("parameters", "multimodal", "stages"),
    [
        ("", True, []),
        ("deciders: {prefill: always}", True, ["prefill"]),
        ("deciders: {encode: multimodal}", True, ["encode"]),
        ("deciders: {encode: multimodal}", False, []),
        ("deciders: {encode: always}", False, ["encode"]),
        (BOTH, False, ["prefill"]),
        (BOTH, True, ["encode", "prefill"]),
        (BY_PREFIX, False, ["prefill"]),  # 1000 tokens, none cached
        (FIRST, True, ["prefill", "encode"]),
        (FIRST, False, ["prefill"]),
        ("prefillDeciderPluginName: always, encodeDeciderPluginName: always", False, STAGES[:2]),
        ("deciderPluginName: always", False, ["prefill"]),
        ("deciderPluginName: multimodal, prefillDeciderPluginName: always", False, ["prefill"]),
    ],
)
def test_stages_run_as_their_deciders_want(parameters, multimodal, stages):
    pool = Pool(parameters)
    decision = pool.route(multimodal=multimodal)
    assert [each.profile for each in decision.stages] == list(stages)
    assert (decision.profile, decision.destination) == ("decode", f"{DECODE}")
    told = {"prefill": (PREFILLER, PREFILL), "encode": (ENCODERS, ENCODE)}
    assert dict(decision.headers) == dict(told[stage] for stage in stages)
    assert (decision.prefill is not None) == ("prefill" in stages)
    ran = sorted(stages)
    assert decision.disaggregation == ("-".join([*ran, "decode"]) if ran else "decode-only")
    there = {name.removesuffix("-0") for name, count in pool.requests().items() if count == 1}
    assert there == {"decode", *stages}


@pytest.mark.parametrize(("response_id", "headers"), [("resp_1", 0), ("", 2)])
@pytest.mark.parametrize("order", ["decode-first", "prefill-first"])
def test_what_goes_on_from_a_response_is_computed_by_the_server_that_has_it(
    order, response_id, headers
):
    # The sidecar sends a prefill request under the same path; any other server answers it with 404.
    deciders = "encode: always" if order == "prefill-first" else "encode: always, prefill: always"
    pool = Pool(f"stageOrder: {order}, deciders: {{{deciders}}}")
    decision = pool.route(response_id=response_id, api=Api.RESPONSES)
    assert decision.endpoint.name == "decode"
    assert len(decision.headers) == len(decision.stages) == headers
    assert (decision.prefill is None) == bool(response_id)


def test_what_is_disaggregated_is_booked_at_both_endpoints():
    pool = Pool("deciders: {prefill: always}")
    before = pool.rig.ask(LONG)["prefill"]
    decision = pool.route()
    assert pool.requests() == {"decode": 1, "prefill": 1, "encode-0": 0, "encode-1": 0}
    assert decision.prefill.name == "prefill"
    assert decision.predicted_ttft == before.prefill_seconds
    assert decision.predicted_for.endpoint == decision.prefill


def test_the_predictions_are_those_of_the_endpoint_that_computes_the_prompt():
    pool = Pool("deciders: {prefill: always}")
    pool.rig.serve("prefill", "before", LONG)
    decision = pool.route()
    assert decision.predicted_cached_tokens == predicted(1000)
    assert decision.of("").profile == "decode"
    assert decision.of("prefill").candidates[0].endpoint.name == "prefill"


@pytest.mark.parametrize(
    ("parameters", "peers"),
    [
        (BOTH, {"decode": [None], "encode": [None], "prefill": ["decode"]}),
        (FIRST, {"decode": ["prefill"], "encode": [None], "prefill": [None]}),
    ],
)
def test_a_stage_is_shown_the_endpoint_of_the_stage_before(parameters, peers):
    pool = Pool(parameters)
    pool.route(multimodal=True)
    assert {name: each.peers for name, each in pool.filters.items()} == peers


@pytest.mark.parametrize(
    "parameters",
    [
        "profiles: {decode: '', prefill: '', encode: ''}, deciders: {prefill: always}",
        "profiles: {decode: '', prefill: '', encode: ''}, deciderPluginName: always",
    ],
)
def test_empty_names_of_profiles_are_the_defaults(parameters):
    decision = Pool(parameters).route()
    assert [each.profile for each in (decision, *decision.stages)] == ["decode", "prefill"]


@pytest.mark.parametrize("parameters", [BOTH, FIRST])
def test_a_stage_without_endpoints_is_left_to_the_decode_endpoint(parameters):
    decision = Pool(parameters, roles=("decode",)).route(multimodal=True)
    assert (decision.destination, decision.stages, decision.headers) == (DECODE, (), ())
    assert decision.prefill is None


@pytest.mark.parametrize("parameters", [BOTH, FIRST])
def test_an_endpoint_that_would_prefill_for_itself_does_all(parameters):
    pool = Pool(parameters, roles=("decode-and-prefill",))
    decision = pool.route()
    assert (decision.destination, decision.prefill, decision.headers) == (DECODE, None, ())
    assert decision.disaggregation == "decode-only"
    assert pool.requests() == {"decode-and-prefill": 1}
    # What the profile decided is there to be explained all the same.
    (prefill,) = decision.stages
    assert (prefill.profile, prefill.destination) == ("prefill", DECODE)
    assert [each.endpoint.id for each in prefill.candidates] == ["default/decode-and-prefill"]


@pytest.mark.parametrize("parameters", ["", BOTH, FIRST])
def test_without_a_decode_endpoint_the_answer_says_so(parameters):
    pool = Pool(parameters, roles=("prefill", "encode"))
    with pytest.raises(NoEndpoints, match="no decode endpoint: filter OfRole") as raised:
        pool.route()
    assert (raised.value.status, raised.value.reason) == (503, "no-decode-endpoint")
    assert pool.requests() == {"prefill": 0, "encode": 0}


def test_a_decode_endpoint_that_is_full_is_429():
    pool = Pool(BOTH)
    pool.filters["decode"].full = True
    with pytest.raises(EndpointsFull) as raised:
        pool.route()
    assert raised.value.status == 429


def test_a_full_prefill_endpoint_is_left_alone():
    pool = Pool(BOTH)
    pool.filters["prefill"].full = True
    assert pool.route().stages == ()


def test_order_is_written_in_any_of_its_forms():
    for order in ("Prefill_First", "prefill-first", "PREFILL", "prefillfirst"):
        assert Pool(f"stageOrder: {order}").route().prefill is not None
    for order in ("Decode-First", "decode_first", "decode", "''"):
        assert Pool(f"stageOrder: {order}").route().prefill is None


def test_prefill_first_without_the_profile_decodes_alone():
    pool = Pool("stageOrder: prefill-first", names=("decode",))
    assert pool.route().stages == ()


@pytest.mark.parametrize(
    ("parameters", "handler", "stages"),
    [
        (BOTH, "disagg-profile-handler", ["prefill", "encode"]),
        ("deciders: {encode: always}", "disagg-profile-handler", ["encode"]),
        ("deciderPluginName: always", "disagg-profile-handler", ["prefill"]),
        ("stageOrder: prefill-first", "disagg-profile-handler", ["prefill"]),
        ("deciderPluginName: always", "pd-profile-handler", ["prefill"]),
    ],
)
def test_a_stage_without_its_profile_does_not_run(parameters, handler, stages):
    decision = Pool(parameters, ("decode",), handler=handler).route(multimodal=True)
    assert (decision.destination, decision.stages, decision.headers) == (DECODE, (), ())
    assert decision.disaggregation == "decode-only"
    warnings = configured(parameters, ("decode",), handler).warnings
    for stage in stages:
        assert f"{stage} never runs: no profile is named `{stage}`" in warnings


PD = {"handler": "pd-profile-handler", "names": ("prefill", "decode")}


@pytest.mark.parametrize(
    ("parameters", "tokens", "prefills"),
    [
        ("deciderPluginName: always", 10, True),
        ("deciderPluginName: prefix", 499, False),
        ("deciderPluginName: prefix", 500, True),
        ("threshold: 0", 1, True),
        ("", 1, True),
        ("threshold: 400", 99, False),  # a decider of 400 / 4 = 100 tokens
        ("threshold: 400", 100, True),
        ("deciderPluginName: prefix, threshold: 0", 1, False),
    ],
)
def test_the_first_handler_of_prefill(parameters, tokens, prefills):
    decision = Pool(parameters, **PD).route(list(range(tokens)))
    assert dict(decision.headers) == ({PREFILLER: PREFILL} if prefills else {})


def test_the_first_handler_of_prefill_may_name_the_rank():
    decision = Pool("deciderPluginName: always, primaryPort: 9000", **PD).route()
    assert dict(decision.headers) == {PREFILLER: PREFILL, DATA_PARALLEL: DECODE}
    assert decision.destination == "10.0.0.1:9000"
    assert decision.served_at("10.0.0.1:9000") == DECODE


@pytest.mark.parametrize(
    ("non_cached", "least", "prompt", "cached", "wanted"),
    [
        (0, 0, 10_000, 0, False),  # 0: never
        (16, 0, 15, 0, False),
        (16, 0, 16, 0, True),
        (16, 0, 1000, 984, True),  # 1000 - 984 = 16
        (16, 0, 1000, 985, False),
        (16, 100, 99, 0, False),
        (16, 100, 100, 0, True),
        (16, 0, 0, 0, False),  # a body that was not read
    ],
)
def test_the_prefix_decides_by_what_is_not_cached(non_cached, least, prompt, cached, wanted):
    decider = PrefixBasedPdDecider(non_cached, least)
    decision = Decision(
        endpoints=(endpoint(),), prompt_tokens=prompt, predicted_cached_tokens=cached
    )
    assert decider.wants(request(), decision) is wanted
    assert decider.wants(request(), None) is False


def test_the_other_deciders():
    assert AlwaysDisaggPdDecider().wants(request(), None)
    assert not AlwaysDisaggMultimodalDecider().wants(request(), None)
    assert AlwaysDisaggMultimodalDecider().wants(request(multimodal=True), None)


AT = "plugins[0].parameters"


@pytest.mark.parametrize(
    ("config", "place", "said"),
    [
        ({"parameters": f"{FIRST[:25]}, deciders: {{prefill: always}}"}, AT, "prefill always runs"),
        ({"parameters": "stageOrder: encode-first"}, AT, "`decode-first` or `prefill-first`"),
        (
            {"parameters": "deciders: {prefill: always}, decodeProfile: decode"},
            AT,
            "or the older fields, and not both",
        ),
        (
            {"parameters": "deciders: {prefill: alway}"},
            f"{AT}.deciders.prefill",
            "no plug-in is named `alway`: did you mean `always`",
        ),
        (
            {"parameters": "prefillDeciderPluginName: max-score-picker"},
            f"{AT}.prefillDeciderPluginName",
            "`max-score-picker` is not a decider",
        ),
        (
            {"parameters": "profiles: {decode: decoder}"},
            f"{AT}.profiles.decode",
            "no profile is named `decoder`: did you mean `decode`",
        ),
        (
            {"parameters": "profiles: {prefill: prefil}"},
            f"{AT}.profiles.prefill",
            "no profile is named `prefil`: did you mean `prefill`",
        ),
        (
            {"parameters": "encodeProfile: encoder"},
            f"{AT}.encodeProfile",
            "no profile is named `encoder`: did you mean `encode`",
        ),
        ({"names": ("prefill",)}, f"{AT}.profiles.decode", "no profile is named `decode`"),
        ({"parameters": "profile: {}"}, AT, "unknown parameter `profile`: did you mean `profiles`"),
        (
            {"parameters": "profiles: {decod: x}"},
            f"{AT}.profiles",
            "unknown parameter `decod`: did you mean `decode`",
        ),
        ({"parameters": "stageOrder: 7"}, f"{AT}.stageOrder", "text is expected, not a whole"),
        ({**PD, "parameters": "primaryPort: 65536"}, f"{AT}.primaryPort", "at most 65535"),
        ({**PD, "parameters": "deciderPluginName: ''"}, AT, "`deciderPluginName` is empty"),
        (
            {**PD, "parameters": "deciderPluginName: prefix-based-pd-decider"},
            f"{AT}.deciderPluginName",
            "no plug-in is named `prefix-based-pd-decider`",
        ),
        (
            {**PD, "parameters": "threshold: 0, decodeProfile: other"},
            f"{AT}.decodeProfile",
            "no profile is named `other`",
        ),
    ],
)
def test_what_cannot_run_names_its_place(config, place, said):
    with pytest.raises(ConfigError) as raised:
        configured(**config)
    assert raised.value.place == place
    assert said in raised.value.problem


def test_profiles_that_never_run_are_a_warning():
    assert configured(BOTH).warnings == ()
    assert configured("deciders: {prefill: always}").warnings == ("profile `encode` never runs",)
    assert "profile `more` never runs" in configured(BOTH, (*STAGES, "more")).warnings


def test_deprecated_types_say_what_to_write():
    warnings = "\n".join(configured("threshold: 0", **PD).warnings)
    assert "`pd-profile-handler` is deprecated: write `disagg-profile-handler`" in warnings
    assert "handler: `threshold` is mapped to a `prefix-based-pd-decider`" in warnings
    assert "names no decider" not in warnings
    assert "pd-profile-handler names no decider" in "\n".join(configured("", **PD).warnings)
    text = CONFIG.format(handler="disagg-profile-handler", parameters="", profiles="{name: decode}")
    older = "plugins:\n- {type: prefill-header-handler, parameters: {prefillProfile: p}}"
    warnings = "\n".join(load(text.replace("plugins:", older)).warnings)
    assert "`prefill-header-handler` is deprecated: leave it out" in warnings
    assert "mapped to the profile handler, which sets the headers itself" in warnings


@pytest.mark.parametrize(("warm", "refused"), [("decode", False), ("prefill", True)])
def test_the_cache_that_a_client_may_prefer_is_the_decoding_endpoints(warm, refused):
    pool = Pool("deciders: {prefill: always}")
    pool.rig.serve(warm, "before", LONG)
    asking = {"headers": {"prefer": "if-available"}, "api": Api.CHAT}
    if refused:
        with pytest.raises(NotCached):
            pool.route(**asking)
    else:
        assert pool.route(**asking).disaggregation == "prefill-decode"
