"""Who may read metrics of a picker that has the rights of the chart's roles, and no others."""

import aiohttp
import pytest

from tests.charts import values as v
from tests.charts.helm import objects, only
from tests.charts.picker import container
from tests.charts.test_rights import asked, granted, kubernetes, role
from tests.processes import forked_picker, said

READS = [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
REVIEWS = {
    ("create", "authentication.k8s.io", "tokenreviews"),
    ("create", "authorization.k8s.io", "subjectaccessreviews"),
}


def picker_of(things, api, folder, cluster_rules):
    """Write down what a picker is started with, as the chart says; give its arguments."""
    api.token("epp", rules=role(things), namespace="inf")
    api.kubeconfig(folder / "kubeconfig", user={"token": api.token("epp", rules=cluster_rules)})
    for name, text in only(things, "ConfigMap")["data"].items():
        (folder / name).write_text(text)
    files = {f"--config-file=/config/{path.name}": path for path in folder.iterdir()}
    command, *given = container(things)["args"]
    assert command == "serve"
    return [f"--config-file={files[each]}" if each in files else each for each in given]


async def status(port, token=""):
    """What the operators' port answers to who wants metrics."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"http://127.0.0.1:{port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status


async def test_with_the_charts_roles_metrics_are_read_by_those_who_may(tmp_path):
    things = objects("warmpick", v.CASES["defaults"])
    rules = only(things, "ClusterRole")["rules"]
    assert granted(rules) == REVIEWS
    async with kubernetes(things) as api:
        may, may_not = api.token("prometheus", READS), api.token("stranger")
        async with forked_picker(picker_of(things, api, tmp_path, rules), tmp_path) as lines:
            port = (await said(lines, "serving"))["metrics_port"]
            assert await status(port, may) == 200
            assert await status(port) == 401
            assert await status(port, "nobody's") == 401
            assert await status(port, may_not) == 403
        assert asked(api) >= REVIEWS


@pytest.mark.parametrize("left", [0, 1])
async def test_without_one_of_the_cluster_roles_rules_nobody_reads(left, tmp_path):
    things = objects("warmpick", v.CASES["defaults"])
    rules = only(things, "ClusterRole")["rules"]
    async with kubernetes(things) as api:
        may = api.token("prometheus", READS)
        arguments = picker_of(things, api, tmp_path, rules[left : left + 1])
        async with forked_picker(arguments, tmp_path) as lines:
            port = (await said(lines, "serving"))["metrics_port"]
            assert await status(port, may) == 503
            missing = (await said(lines, "metrics.not_reviewed"))["missing_rules"]
    assert rules[1 - left]["resources"][0] in missing


async def test_where_the_chart_lets_anyone_read_it_makes_no_cluster_role(tmp_path):
    things = objects("warmpick", v.merged(v.CASES["defaults"], v.OPEN))
    assert [each for each in things if each["kind"] == "ClusterRole"] == []
    async with kubernetes(things) as api:
        async with forked_picker(picker_of(things, api, tmp_path, []), tmp_path) as lines:
            assert await status((await said(lines, "serving"))["metrics_port"]) == 200
        assert not REVIEWS & asked(api)
