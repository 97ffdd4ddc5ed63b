"""Files of older releases load: what has no effect is said, what has one keeps it."""

import pytest

from epp.config.catalogue import PLUGINS, REMOVED
from epp.config.file import load
from epp.config.report import report
from epp.config.schema import dump
from epp.errors import ConfigError
from epp.policy.scorers.latency import LatencyScorer
from epp.policy.scorers.load import KvCacheUtilizationScorer
from tests.llm_d_router_configs import FORMER, IGNORE_PARAMETERS
from tests.policy.started import started
from tests.strategies import candidate, request


def plugin(kind, **parameters):
    return {"type": kind, "parameters": parameters}


def loaded(*plugins):
    return load(str({"plugins": [*plugins]}))


@pytest.mark.parametrize("kind", IGNORE_PARAMETERS)
def test_a_type_that_reads_no_parameters_says_so(kind):
    settings = loaded(plugin(kind, hashBlockSize=5, deeper={"x": [1]}))
    none = "without effect here, because llm-d-router does not read the parameters of this type"
    said = {f"{kind}: `{each}` is {none}" for each in ("hashBlockSize", "deeper")}
    assert said <= set(settings.warnings)
    rows = report(settings.effective, settings.plugins)
    (row,) = [row for row in rows if " deeper.x " in row]
    assert not row.endswith("honoured")
    again = load(dump(settings.effective))
    assert said <= set(again.warnings)
    assert again.effective == settings.effective


@pytest.mark.parametrize(
    ("kind", "parameter"),
    [
        ("max-score-picker", "hashBlockSize"),
        ("least-ttft-scorer", "hashBlockSize"),
        ("soft-reflective-ceiling-policy", "ceiling"),
        ("prefix-cache-scorer", "hashBlockSizes"),
        ("disagg-profile-handler", "thresholds"),
        ("session-affinity-scorer", "maxAge"),
    ],
)
def test_what_llm_d_router_refuses_is_refused(kind, parameter):
    with pytest.raises(ConfigError, match=f"unknown parameter `{parameter}`"):
        loaded(plugin(kind, **{parameter: 1}))


@pytest.mark.parametrize(("name", "text", "said"), FORMER)
def test_files_of_older_releases_load(name, text, said):
    del name
    warnings = load(text).warnings
    assert {each.partition(" is ")[0] for each in warnings} >= set(said)


def test_the_report_has_what_is_not_read():
    settings = loaded(plugin("prefix-cache-scorer", mode="cache_tracking", indexerConfig={"a": 1}))
    rows = {row.split()[1]: row for row in report(settings.effective, settings.plugins)}
    for name in ("mode", "indexerConfig.a"):
        assert rows[name].endswith("`precise-prefix-cache-producer` follows events")


@pytest.mark.parametrize("kind", ["session-affinity-scorer", "session-affinity-filter"])
@pytest.mark.parametrize(
    "parameters",
    [{"headerName": "X-Mine"}, {"encodedEndpointHeaderConfig": {"header": "x-mine"}}],
)
def test_a_session_header_has_its_effect_in_either_form(kind, parameters):
    settings = loaded(plugin(kind, **parameters))
    session = settings.scheduling.plugins[kind][1]
    asked = [candidate("a"), candidate("b")]
    token = "ZGVmYXVsdC9i"  # noqa: S105 (base64 of default/b)
    assert session.pinned(request(headers={"x-mine": token})) == asked[1].endpoint.id
    assert session.pinned(request(headers={"x-session-token": token})) == ""


def test_former_types_are_those_that_took_their_place():
    assert PLUGINS["kv-cache-scorer"] is KvCacheUtilizationScorer
    former = PLUGINS["predicted-latency-scorer"](ttft_weight=3, tpot_weight=1)
    assert isinstance(former, LatencyScorer)
    settings = loaded(plugin("predicted-latency-scorer", headroomTTFTWeight=3))
    assert settings.plugins["predicted-latency-scorer"].ttft_weight == 3
    asked = [candidate("a"), candidate("b")]
    assert started(former).score(request(), asked) == started(
        LatencyScorer(ttft_weight=3, tpot_weight=1)
    ).score(request(), asked)


@pytest.mark.parametrize("kind", REMOVED)
def test_a_removed_type_is_refused_with_what_took_its_place(kind):
    with pytest.raises(ConfigError, match=f"GIE has removed `{kind}`; write .* instead"):
        loaded(plugin(kind))
