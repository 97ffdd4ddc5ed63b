"""Handlers that run one profile, by a header or for a rank, by llm-d-router's rules."""

import pytest

from epp.config.file import load
from epp.errors import ConfigError, MalformedRequest
from epp.model.events import EndpointUpserted
from epp.policy.handlers import DATA_PARALLEL
from epp.policy.scheduler import Scheduler
from tests.model.rig import Rig
from tests.policy.routing import routed
from tests.strategies import endpoint, request

CONFIG = """
plugins:
- {{type: {handler}, parameters: {{{parameters}}}}}
- {{type: max-score-picker, parameters: {{maxNumOfEndpoints: 3}}}}
schedulingProfiles: [{profiles}]
"""
BY_HEADER = "header-profile-handler"
RANKS = "data-parallel-profile-handler"


def configured(handler, parameters="", names=("default",)):
    profiles = ", ".join(f"{{name: {name}}}" for name in names)
    return load(CONFIG.format(handler=handler, parameters=parameters, profiles=profiles))


def route(settings, *endpoints, **more):
    rig = Rig(0)
    for each in endpoints or (endpoint(),):
        rig.apply(EndpointUpserted(each))
    scheduler = Scheduler(rig.fleet, settings.scheduling, lambda _: 0)
    return routed(scheduler, request(**more), rig.now)


@pytest.mark.parametrize(
    ("parameters", "headers", "profile"),
    [
        ("", {}, "decode"),
        ("", {"epp-profile": "prefill"}, "prefill"),
        ("", {"epp-profile": " prefill "}, "prefill"),
        ("", {"epp-profile": "  "}, "decode"),
        ("", {"x-llm-d-epp-profile": "prefill"}, "prefill"),
        ("", {"x-llm-d-epp-profile": " ", "epp-profile": "prefill"}, "prefill"),
        ("headerName: X-LLM-D-EPP-Profile", {"epp-profile": "prefill"}, "prefill"),
        ("headerName: X-Phase", {"x-llm-d-epp-profile": "prefill"}, "decode"),
        ("defaultProfile: prefill", {}, "prefill"),
        ("headerName: ' X-Phase '", {"x-phase": "prefill"}, "prefill"),
        ("headerName: X-Phase", {"epp-profile": "prefill"}, "decode"),
        ("headerName: '', defaultProfile: ' '", {"epp-profile": "prefill"}, "prefill"),
    ],
)
def test_a_header_names_the_profile(parameters, headers, profile):
    settings = configured(BY_HEADER, parameters, ("encode", "prefill", "decode"))
    assert route(settings, headers=headers).profile == profile


def test_one_profile_runs_whatever_the_header_says():
    settings = configured(BY_HEADER, names=("only",))
    assert route(settings, headers={"epp-profile": "prefill"}).profile == "only"


def test_a_profile_that_does_not_exist_is_the_clients_error():
    settings = configured(BY_HEADER, names=("prefill", "decode"))
    with pytest.raises(MalformedRequest, match="'decoed'; there is prefill, decode") as raised:
        route(settings, headers={"epp-profile": "decoed"})
    assert (raised.value.status, raised.value.reason) == (400, "unknown-profile")


def test_a_default_profile_that_is_written_exists():
    with pytest.raises(
        ConfigError, match="no profile is named `decoed`: did you mean `decode`"
    ) as e:
        configured(BY_HEADER, "defaultProfile: decoed", names=("decode", "prefill"))
    assert e.value.place == "plugins[0].parameters.defaultProfile"


def test_profiles_without_that_of_decoding_are_enough_for_requests_that_name_theirs():
    settings = configured(BY_HEADER, names=("encode", "prefill"))
    assert "requests without `epp-profile` are refused" in "\n".join(settings.warnings)
    assert route(settings, headers={"epp-profile": "prefill"}).profile == "prefill"
    with pytest.raises(MalformedRequest, match="'decode'; there is encode, prefill"):
        route(settings)


SLO = "slo-aware-profile-handler"


@pytest.mark.parametrize(
    ("said", "profile"),
    [(None, "default"), ("true", "slo"), ("T", "slo"), ("1", "slo"), ("False", "default")],
)
def test_a_header_asks_for_predicted_latencies(said, profile):
    settings = configured(SLO, names=("prefix", "default", "slo"))
    never_run = [each for each in settings.warnings if "never run" in each]
    assert never_run == ["profile `prefix` is never run"]
    headers = {} if said is None else {"x-prediction-based-scheduling": said}
    assert route(settings, headers=headers).profile == profile


@pytest.mark.parametrize("said", ["", "yes", "true "])
def test_what_is_not_a_boolean_of_gos_is_the_clients_error(said):
    settings = configured(SLO, names=("default", "slo"))
    with pytest.raises(MalformedRequest, match="neither true nor false"):
        route(settings, headers={"x-prediction-based-scheduling": said})


@pytest.mark.parametrize(("names", "missing"), [(("slo",), "default"), (("default", "x"), "slo")])
def test_predicted_latencies_need_both_profiles(names, missing):
    with pytest.raises(ConfigError, match=f"needs a profile named `{missing}`"):
        configured(SLO, names=names)


@pytest.mark.parametrize(
    ("parameters", "destination"),
    [
        ("", "10.0.0.1:8000"),
        ("primaryPort: 9000", "10.0.0.1:9000"),
        ("primaryPort: 0", "10.0.0.1:8002"),
    ],
)
def test_a_rank_is_reached_at_the_primary_port(parameters, destination):
    decision = route(configured(RANKS, parameters), endpoint(port=8002))
    assert decision.destination == destination
    assert decision.headers == ((DATA_PARALLEL, "10.0.0.1:8002"),)
    assert decision.endpoint.port == 8002
    assert decision.served_at(destination) == "10.0.0.1:8002"


def test_fallbacks_of_one_pod_are_one_target():
    ranks = [endpoint(f"r{n}", "fd00::1", 8000 + n) for n in range(3)]
    decision = route(configured(RANKS), *ranks)
    assert len(decision.endpoints) == 3
    assert decision.destination == "[fd00::1]:8000"


@pytest.mark.parametrize(
    ("parameters", "names", "place", "said"),
    [
        (
            "primaryPort: 70000",
            ("a",),
            "plugins[0].parameters.primaryPort",
            "a whole number of at most 65535 is expected",
        ),
        (
            "primaryPort: -1",
            ("a",),
            "plugins[0].parameters.primaryPort",
            "a whole number of at least 0 is expected",
        ),
        ("primaryport: 1", ("a",), "plugins[0].parameters", "did you mean `primaryPort`"),
        ("", ("a", "b"), "schedulingProfiles", "has one profile, not 2"),
    ],
)
def test_what_ranks_cannot_be(parameters, names, place, said):
    with pytest.raises(ConfigError) as raised:
        configured(RANKS, parameters, names)
    assert raised.value.place == place
    assert said in raised.value.problem
