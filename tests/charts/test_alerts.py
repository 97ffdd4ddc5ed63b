"""The alerts: what Prometheus takes, when each fires and when not, and that each is explained."""

import re
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from tests.charts import values as v
from tests.charts.helm import CHARTS, ROOT, objects, only, refused_or_rendered
from tests.prometheus import promtool, unknown

UNIT_TESTS = sorted((Path(__file__).parent / "alerts").glob("*.yaml"))
TESTED = [each for path in UNIT_TESTS for each in yaml.safe_load(path.read_text())["tests"]]
DOCS = (ROOT / "docs" / "alerts.md").read_text()
DEFAULTS = yaml.safe_load((CHARTS / "warmpick" / "values.yaml").read_text())
SETTINGS = DEFAULTS["inferenceExtension"]["monitoring"]["alerts"]["rules"]


def spec(*values):
    """The rules for some values."""
    return only(objects("warmpick", v.merged(v.POOL, v.ALERTS, *values)), "PrometheusRule")["spec"]


def rules(*values):
    return {
        rule.get("alert", rule.get("record")): rule
        for group in spec(*values)["groups"]
        for rule in group["rules"]
    }


def with_rules(**changed):
    return v.epp(monitoring={"alerts": {"rules": changed}})


ALERTS = {name: rule for name, rule in rules().items() if "alert" in rule}


def test_prometheus_takes_them(tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(spec()))
    assert promtool("check", "rules", path) == ""


@pytest.mark.parametrize("tests", UNIT_TESTS, ids=lambda path: path.stem)
def test_each_fires_when_it_should_and_not_when_it_should_not(tests, tmp_path):
    (group,) = (deepcopy(each) for each in spec()["groups"] if each["name"].endswith(tests.stem))
    for rule in group["rules"]:
        rule.pop("annotations", None)  # promtool would have each test repeat them
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [group]}))
    (tmp_path / "tests.yaml").write_text(tests.read_text())
    assert promtool("test", "rules", tmp_path / "tests.yaml") == ""


def test_pickers_that_each_have_a_service_are_all_looked_at():
    preferred = {"enabled": True, "preferredReplicas": 2, "defaultReplicas": 2}
    on_gke = {"provider": {"name": "gke", "gke": {"preferredBackends": preferred}}}
    values = v.merged(v.POOL, v.ALERTS, v.SCRAPED, on_gke)
    things = objects(
        "warmpick", v.both(values, v.epp(monitoring={"provider": "prometheusoperator"}))
    )
    selected = re.search(r'job=~"([^"]+)"', yaml.safe_dump(only(things, "PrometheusRule")))
    assert selected is not None
    monitored = only(things, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    jobs = [
        each["metadata"]["name"]
        for each in things
        if each["kind"] == "Service" and monitored.items() <= each["metadata"]["labels"].items()
    ]
    assert len(jobs) == 4
    assert [each for each in jobs if not re.fullmatch(selected[1], each)] == []
    assert re.fullmatch(selected[1], "rel-epp-of-another") is None


@pytest.mark.parametrize("alert", SETTINGS)
def test_each_is_tested_both_ways(alert):
    cases = [
        (each["exp_alerts"], test["name"])
        for test in TESTED
        for each in test["alert_rule_test"]
        if each["alertname"] == alert
    ]
    firing = {name for fired, name in cases if fired}
    assert firing
    assert {name for fired, name in cases if not fired} - firing


def test_the_values_have_a_section_for_each_and_for_no_other():
    assert set(ALERTS) == set(SETTINGS)


def test_nothing_is_left_to_be_filled_in():
    assert [name for name, rule in rules().items() if re.search("<[a-zA-Z]+>", rule["expr"])] == []


@pytest.mark.parametrize("alert", SETTINGS)
def test_every_value_is_used(alert):
    changed = {
        key: 4096 if key == "tokens" else 0.625
        for key in SETTINGS[alert].keys() - {"enabled", "for", "severity"}
    }
    rule = rules(with_rules(**{alert: changed}))[alert]
    assert all(str(value) in rule["expr"] for value in changed.values())
    other = rules(with_rules(**{alert: {"for": "77m", "severity": "page"}}))[alert]
    assert (other["for"], other["labels"]) == ("77m", {"severity": "page"})


@pytest.mark.parametrize(
    ("cpu", "workers", "cores"),
    [(None, 1, "0.9"), (None, 3, "2.7"), ("500m", 1, "0.45"), (2, 4, "1.8"), ("4", 1, "0.9")],
)
def test_a_picker_is_saturated_by_what_its_limit_leaves_it(cpu, workers, cores):
    limits = None if cpu is None else {"limits": {"cpu": cpu}}
    rule = rules(v.epp(resources=limits, workers=workers))["WarmpickPickerSaturated"]
    assert rule["expr"].endswith(f"> {cores}")


@pytest.mark.parametrize("alert", SETTINGS)
def test_each_says_what_is_wrong_what_to_do_and_where_that_is_explained(alert):
    said = ALERTS[alert]["annotations"]
    assert said["summary"].endswith(".")
    assert len(said["description"]) > 60
    page, anchor = said["runbook_url"].split("#")
    assert (ROOT / page).read_text() == DOCS
    assert anchor == alert.lower()
    section = re.search(rf"^### {alert}\n(.*?)(?=^##|\Z)", DOCS, re.MULTILINE | re.DOTALL)
    assert section is not None
    words = " ".join(section[1].split())
    assert f"Fires after {SETTINGS[alert]['for']}, {SETTINGS[alert]['severity']}." in words


def test_the_documentation_has_no_other():
    assert re.findall(r"^### (Warmpick\w+)", DOCS, re.MULTILINE) == list(SETTINGS)


def test_they_read_what_the_picker_exports():
    assert {name: found for name, rule in rules().items() if (found := unknown(rule["expr"]))} == {}


def test_one_that_is_off_is_left_out_and_a_group_without_any_too():
    off = with_rules(WarmpickAbsent={"enabled": False})
    assert set(rules()) - set(rules(off)) == {"WarmpickAbsent"}
    serving = [rule["alert"] for rule in spec()["groups"][0]["rules"]]
    none = with_rules(**{alert: {"enabled": False} for alert in serving})
    assert [group["name"] for group in spec(none)["groups"]] == ["warmpick.cache"]


def test_a_rule_that_is_null_is_refused():
    values = v.merged(v.POOL, v.ALERTS, with_rules(WarmpickFaults=None))
    things, reason = refused_or_rendered("warmpick", values)
    assert (things, "rules.WarmpickFaults is null: write {enabled: false}" in reason) == ([], True)


def test_they_look_at_this_release_alone_unless_told_otherwise():
    assert 'llm_d_epp_info{job="rel-epp",namespace="inf"}' in ALERTS["WarmpickAbsent"]["expr"]
    chosen = v.epp(monitoring={"alerts": {"selector": 'cluster="a"'}})
    found = [rule["expr"] for rule in rules(chosen).values()]
    assert all('{cluster="a"' in expr for expr in found)
    assert not any("rel-epp" in expr for expr in found)


def test_on_gke_they_are_managed_prometheus_own():
    values = v.merged(v.POOL, v.provider("gke"), v.ALERTS)
    made = only(objects("warmpick", values), "Rules")
    assert made["apiVersion"] == "monitoring.googleapis.com/v1"
    (absent,) = (
        rule
        for group in made["spec"]["groups"]
        for rule in group["rules"]
        if rule.get("alert") == "WarmpickAbsent"
    )
    assert absent["expr"] == 'absent(llm_d_epp_info{job="rel",namespace="inf"})'


def test_labels_of_the_object_are_those_that_prometheus_looks_for():
    labels = v.epp(monitoring={"alerts": {"extraLabels": {"release": "prom"}}})
    made = only(objects("warmpick", v.merged(v.POOL, v.ALERTS, labels)), "PrometheusRule")
    assert made["metadata"]["labels"]["release"] == "prom"


def test_without_being_asked_for_there_are_none():
    kinds = {thing["kind"] for thing in objects("warmpick", v.merged(v.POOL, v.SCRAPED))}
    assert not kinds & {"PrometheusRule", "Rules"}


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (with_rules(WarmpickNothing={"for": "1m"}), "WarmpickNothing"),
        (with_rules(WarmpickShedding={"share": 7}), "share"),
        (with_rules(WarmpickShedding={"tokens": 7}), "tokens"),
        (with_rules(WarmpickPredictionsWrong={"tokens": 1000}), "tokens"),
        (with_rules(WarmpickAbsent={"for": "soon"}), "for"),
    ],
)
def test_what_cannot_be_meant_is_refused(wrong, word):
    made, said = refused_or_rendered("warmpick", v.merged(v.POOL, v.ALERTS, wrong))
    assert made == []
    assert word in said
