"""The flags that the chart lets through are those that the picker takes."""

import functools
import re

import pytest

from epp.adapters.kube.kube_discovery import lease_name
from epp.cli.configuration import settings_of
from epp.cli.llm_d_router_flags import REMOVED, check_removed
from epp.errors import ConfigError
from tests.charts import flags as table
from tests.charts import router_values as r
from tests.charts import values as v
from tests.charts.helm import lint, objects, refused_or_rendered
from tests.charts.picker import arguments, container

_WORDS = """
true False T yes 0 1 -1 007 2.5 1e3 off on auto 64 65 064 9002 65535 65536 70000 099999
500ms 1m30s .5h 1.s 2µs 0s 0.0 0.5 0s5ms 5ms0s 30sec 16Mi 1G 1g 4KB 1.5GiB
info INFO DEBUG warn warning Panic json native linear least-ttft best /a/b all first
sample:1/3 sample:2/3 sample:1/0 HTTPS ftp app=vllm 8000,8001 envoyxlb flow epoch ,
VersionTLS12 VersionTLS13 1.3 rfc3339 rfc1123 flowControl
"""
WORDS = (
    *_WORDS.split(),
    *("", "5 s", "flowControl=false, dataLayer", "dataLayer flowControl"),
    *(value for values, _ in REMOVED.values() for value in values if value),
)
"""Values of all kinds of flags, and of none."""
FREE = {"config-text", "policy", "config-file"}
"""These name or have a configuration."""
HEEDED = {
    "grpc-port": 9100,
    "metrics-port": 9191,
    "ha-enable-leader-election": True,
    "policy": "linear",
}
"""The chart reads these itself."""
SPELT = {"debugHeaders": True, "--v": 5, "-max-body-bytes": "16Mi", "drainTimeout": "5s"}


@functools.cache
def parser():
    """The picker's; that it writes all its flags with each refusal would take most of the time."""
    made = table.parser()
    made.usage = made.prog
    return made


def test_the_table_is_that_of_the_command():
    """If this fails: python -m tests.charts.flags."""
    assert table.FILE.read_text() == table.text()
    assert table.SCHEMA.read_text() == table.schema()


def taken(name, word):
    """Whether the picker takes a value of a flag."""
    try:
        given = parser().parse_args([f"--{name}={word}"])
        check_removed(given)
        settings_of(given)
    except (SystemExit, ConfigError):
        return False
    return True


@pytest.mark.parametrize("name", table.flags())
def test_the_chart_takes_the_values_that_the_picker_takes(name):
    _, pattern = table.flags()[name]
    if pattern:
        passed = [word for word in WORDS if re.fullmatch(pattern, word)]
        assert passed == [word for word in WORDS if taken(name, word)] != []


@pytest.mark.parametrize("name", table.flags())
def test_every_flag_of_the_picker_reaches_it(name):
    word = "linear" if name in FREE else next(word for word in ("", *WORDS) if taken(name, word))
    things = objects("warmpick", v.merged(v.POOL, v.epp(flags={name: word})))
    assert f"--{name}={word}" in container(things)["args"]


def test_a_flag_may_be_spelt_as_the_picker_reads_it():
    said = arguments(objects("warmpick", v.merged(v.POOL, v.epp(flags=SPELT))))
    assert (said.debug_headers, said.log_level) == (True, "debug")
    assert (said.max_body_bytes, said.drain_timeout) == (16 << 20, 5.0)
    on = v.epp(flags={"poll-models": True})
    assert arguments(objects("warmpick", v.merged(v.POOL, on))).poll_models is True


@pytest.mark.parametrize(
    ("base", "epp"), [(v.POOL, v.epp), (r.POOL, r.epp)], ids=["older", "router"]
)
def test_the_chart_heeds_a_flag_in_either_spelling(base, epp):
    spelt = {re.sub("-(.)", lambda found: found[1].upper(), name): HEEDED[name] for name in HEEDED}
    dashed = {f"--{name}": value for name, value in HEEDED.items()}
    expected, *others = (
        objects("warmpick", v.merged(base, epp(replicas=2, flags=flags)))
        for flags in (HEEDED, spelt, dashed)
    )
    assert others == [expected, expected]


def test_the_lease_that_the_picker_may_write_is_that_of_its_pool():
    things = objects("warmpick", v.merged(v.POOL, v.epp(replicas=2, flags={"pool-name": "mine"})))
    (role,) = (
        each
        for each in things
        if each["metadata"]["name"] == "rel-epp-leader-election" and each["kind"] == "Role"
    )
    said = arguments(things)
    written = [name for rule in role["rules"] for name in rule.get("resourceNames", ())]
    assert written == [lease_name(said.pool_namespace, said.pool_name)]


def test_the_ports_of_workers_are_those_of_the_flags():
    shared = v.epp(networkPolicy={"enabled": True}, exchange={"enabled": True})
    by_values = v.epp(workers=3, exchange={"port": 9300})
    by_flags = v.epp(flags={"workers": 3, "replicas-port": 9300})
    made = [
        [
            thing
            for thing in objects("warmpick", v.merged(v.POOL, shared, each))
            if thing["kind"] != "Secret"
        ]
        for each in (by_values, by_flags)
    ]
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("base", "values", "words"),
    [
        (v.POOL, v.epp(flags={"metricsProt": 1}), "inferenceExtension.flags.metricsProt: the pi"),
        (v.POOL, v.epp(flags=[{"name": "help", "value": ""}]), "flags.help: the picker has no"),
        (r.POOL, r.epp(flags={"vv=2": ""}), "router.epp.flags.vv: the picker has no such flag"),
        (
            v.POOL,
            v.epp(flags={"hold": False}),
            'flags.hold is "false", but must be one of auto, off',
        ),
        (
            v.POOL,
            v.epp(flags={"drain-timeout": "30sec"}),
            'is "30sec", but must be a duration, such as 500ms or 1m30s',
        ),
        (r.POOL, r.epp(flags={"secureServing": "off"}), "but must be true or false"),
        (v.POOL, v.epp(flags={"secure-serving": ""}), 'is "", but must be true or false'),
        (
            v.POOL,
            v.epp(flags={"total-queued-requests-metric": "lmdeploy:waiting"}),
            "for another engine, set modelServerType instead",
        ),
    ],
)
def test_a_flag_that_would_fail_in_the_pod_is_refused(base, values, words):
    things, reason = refused_or_rendered("warmpick", v.merged(base, values))
    assert (things, words in reason) == ([], True), reason


@pytest.mark.parametrize(
    "values",
    [
        v.merged(v.POOL, v.epp(flags={"metrics-prot": 1})),
        v.merged(r.POOL, r.epp(flags={"metrics-prot": 1})),
    ],
)
def test_helm_lint_says_that_there_is_no_such_flag(values):
    (complaint, *_) = lint("warmpick", values)
    assert "additional properties 'metrics-prot' not allowed" in complaint
    things, reason = refused_or_rendered("warmpick", values)
    assert (things, "'metrics-prot' not allowed" in reason) == ([], True)


@pytest.mark.parametrize(
    ("base", "epp"),
    [(v.POOL, v.epp), (v.SELECTOR, v.epp), (r.POOL, r.epp)],
    ids=["older", "selector", "router"],
)
def test_null_is_no_flag(base, epp):
    """Of a values file that has comments alone below `flags:`, and over another file's flag."""
    without = container(objects("warmpick", base))["args"]
    assert container(objects("warmpick", v.merged(base, epp(flags=None))))["args"] == without
    taken_away = v.merged(base, epp(flags={"v": 5}), epp(flags={"v": None}))
    assert container(objects("warmpick", taken_away))["args"] == without


@pytest.mark.parametrize(
    ("base", "epp"), [(v.POOL, v.epp), (r.POOL, r.epp)], ids=["older", "router"]
)
def test_a_name_may_have_the_value_in_it(base, epp):
    said = {"ha-enable-leader-election=false": "", "v": 4}
    things = objects("warmpick", v.merged(base, epp(replicas=2, flags=said)))
    args = set(container(things)["args"])
    assert {"--ha-enable-leader-election=false", "--v=4"} <= args
    assert "--ha-enable-leader-election=true" not in args
    assert arguments(things).ha_enable_leader_election is False


@pytest.mark.parametrize(
    ("base", "epp"), [(v.POOL, v.epp), (r.POOL, r.epp)], ids=["older", "router"]
)
def test_another_images_flag_is_an_extra_argument(base, epp):
    _, reason = refused_or_rendered("warmpick", v.merged(base, epp(flags={"newFlag": 1})))
    assert "For a flag of another image, use inferenceExtension.extraArgs" in reason
    extra = v.merged(base, epp(flags={"zap-devel": True}), v.epp(extraArgs=["--new-flag", "1"]))
    assert container(objects("warmpick", extra))["args"][-2:] == ["--new-flag", "1"]
