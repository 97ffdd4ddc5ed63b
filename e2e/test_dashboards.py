"""A real Prometheus scrapes a real picker: what dashboards and alerts ask has an answer."""

import asyncio
import json
import os
import re
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from e2e.corridor import CHAT, START_SECONDS, Plan, chat, quiet_port, until
from e2e.guides import GUIDES, MODEL, GuideCorridor
from e2e.kube_corridor import kube_corridor
from epp.gateway.processes import spawn
from tests.charts import values as v
from tests.charts.helm import objects, only
from tests.charts.test_dashboards import BOARDS
from tests.prometheus import program

GUIDE = "precise-prefix-cache-routing"
JOB, NAMESPACE = "rel-epp", "inf"
TEXTS = [f"Log {each}: the harbour master wrote every ship down. " * 60 for each in "abcdef"]
RULES = v.merged(v.POOL, v.ALERTS)
VARIABLES = {
    "$__rate_interval": "1m",
    "$__range": "5m",
    "$namespace": ".*",
    "$job": ".*",
    "$pod": ".*",
    "$model_name": ".*",
}
NOTHING = {
    "How long they waited": "nothing waits in flow control",
    "Refused": "nothing waits in flow control",
    "Prompts left as text": "all of them are tokens",
}
"""Panels without data, in this corridor, and why."""
NEVER = {
    'llm_d_epp_scheduler_attempts_total{status="failure"}': "there always are endpoints",
    'warmpick_flow_unaccounted_endpoints{reason="stale"}': "their pages are on time",
    'llm_d_epp_request_error_total{error_code=~"ResourceExhausted|ServiceUnavailable"}': "nor is"
    " anything refused for lack of room",
    'warmpick_predicted_hits_total{result="missed"}': "what is predicted is found",
    "warmpick_faults_total{}": "nothing fails",
    'warmpick_recorded_requests_total{outcome=~"dropped|failed"}': "nothing is recorded",
}
UPSTREAM = os.environ.get("WARMPICK_UPSTREAM_DASHBOARDS")


class Prometheus:
    """Scrapes the picker and the model servers of a corridor, and answers queries."""

    def __init__(self, gateway):
        self.gateway = gateway
        self.folder = gateway.directory
        self.url = f"http://127.0.0.1:{quiet_port()}"

    def configuration(self):
        """As the operator makes it of the chart's ServiceMonitor, in short."""
        token = self.folder / "token"
        token.write_text(self.gateway.scraper)
        target = {"namespace": NAMESPACE, "pod": "epp-0", "service": JOB}
        pickers = [f"127.0.0.1:{self.gateway.metrics_port}"]
        servers = [self.gateway.server(name) for name in self.gateway.servers]
        return {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(self.folder / "rules.yaml")],
            "scrape_configs": [
                {
                    "job_name": JOB,
                    "authorization": {"credentials_file": str(token)},
                    "static_configs": [{"targets": pickers, "labels": target}],
                },
                {
                    "job_name": "vllm",
                    "static_configs": [{"targets": servers, "labels": {"namespace": NAMESPACE}}],
                },
            ],
        }

    async def start(self):
        spec = only(objects("warmpick", RULES), "PrometheusRule")["spec"]
        for group in spec["groups"]:
            group["interval"] = "1s"
        (self.folder / "rules.yaml").write_text(yaml.safe_dump(spec))
        path = self.folder / "prometheus.yaml"
        path.write_text(yaml.safe_dump(self.configuration()))
        argv = [
            *(program("prometheus"), f"--config.file={path}", "--log.level=warn"),
            f"--storage.tsdb.path={self.folder / 'tsdb'}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
        ]
        self.process = await spawn("prometheus", argv, log_dir=self.folder)
        await self.process.wait_http(f"{self.url}/-/ready", START_SECONDS)

    async def get(self, path, **parameters):
        async with self.gateway.client.get(f"{self.url}/api/v1/{path}", params=parameters) as found:
            answer = await found.json()
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]

    async def ask(self, query):
        """The values of a query's series that are numbers."""
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        result = (await self.get("query", query=query))["result"]
        return [each for each in result if each["value"][1] != "NaN"]

    async def scraped(self, times):
        """Wait until the picker was scraped so many times more."""
        query = f'count_over_time(up{{job="{JOB}"}}[1h])'

        async def count():
            found = await self.ask(query)
            return int(found[0]["value"][1]) if found else 0

        before = await count()

        async def more():
            return await count() >= before + times

        await until(more)


async def ask(gateway, text, *, status=200, **more):
    body = chat(text, stream=True, stream_options={"include_usage": True}) | {"model": MODEL}
    async with gateway.stream(CHAT, body | more) as response:
        await response.read()
        assert response.status == status


async def traffic(gateway):
    """Conversations that return, a request that is no request, and one that a server refuses."""
    for question in ("Who came?", "And on day 2?", "Who went?", "Why?"):
        await asyncio.gather(*(ask(gateway, f"{text} {question}") for text in TEXTS))
    await ask(gateway, TEXTS[0], cache_salt="ours")
    await ask(gateway, TEXTS[0], status=404, model="nobody")
    assert (await gateway.post(CHAT, b"{")).status == 400


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def prometheus(tmp_path_factory):
    program("prometheus")
    folder = tmp_path_factory.mktemp("dashboards")
    (folder / "secret").write_text("0123456789abcdef")
    flags = (
        "--former-metrics",
        f"--hash-secret-file={folder / 'secret'}",
        f"--replicas=127.0.0.1:{quiet_port()}",
        f"--replicas-port={quiet_port()}",
    )
    plan = Plan(tls=True, server_flags=("--speed", "5", "--block-size", "64"), picker_flags=flags)
    async with kube_corridor(plan, folder, GuideCorridor) as gateway:
        assert isinstance(gateway, GuideCorridor)
        gateway.follow(GUIDE)
        gateway.configuration += "featureGates: [flowControl]\n"
        await gateway.start_pods()
        await gateway.start_picker()
        await gateway.start_gateway()
        await gateway.endpoints_become(len(GUIDES[GUIDE][1]))
        made = Prometheus(gateway)
        await made.start()
        try:
            for _ in range(3):  # rates are of what comes after a series was seen first
                await traffic(gateway)
                await made.scraped(2)
            yield made
        finally:
            await made.process.stop(0)


PANELS = [
    pytest.param(panel, id=f"{name}:{panel['title']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    if panel["type"] != "row"
]


@pytest.mark.parametrize("panel", PANELS)
async def test_each_panel_has_data(prometheus, panel):
    found = [await prometheus.ask(target["expr"]) for target in panel["targets"]]
    if panel["title"] in NOTHING:
        assert not any(found)
    else:
        assert any(found)


async def test_classes_of_requests_are_told_apart(prometheus):
    found = await prometheus.ask("warmpick_predicted_hits_total")
    classes = {(each["metric"]["salted"], each["metric"]["result"]) for each in found}
    assert classes == {("false", "found"), ("true", "found")}


async def test_the_variables_find_the_picker(prometheus):
    for label, value in (("namespace", NAMESPACE), ("job", JOB)):
        found = await prometheus.get(f"label/{label}/values", **{"match[]": "llm_d_epp_info"})
        assert found == [value]


async def test_rules_are_evaluated_and_only_what_is_so_alerts(prometheus):
    groups = (await prometheus.get("rules"))["groups"]
    rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert len(rules) == 18
    assert {
        name: rule.get("lastError") for name, rule in rules.items() if rule["health"] != "ok"
    } == {}
    waiting = {name for name, rule in rules.items() if rule.get("state") in {"pending", "firing"}}
    waiting.discard("WarmpickPickerSaturated")  # as busy as this machine is
    assert waiting == {"WarmpickReplicaUnheard"}  # nobody listens at the other replica's port


async def test_what_rules_read_is_there(prometheus):
    spec = only(objects("warmpick", RULES), "PrometheusRule")["spec"]
    exprs = [rule["expr"] for group in spec["groups"] for rule in group["rules"]]
    chosen = {each for expr in exprs for each in re.findall(r"[a-z_]\w+\{[^}]*\}", expr)}
    assert len(chosen) > 20
    own = f'job="{JOB}",namespace="{NAMESPACE}"'
    silent = {
        each.replace(f"{own},", "").replace(own, "")
        for each in chosen
        if not await prometheus.ask(each)
    }
    assert silent == set(NEVER)


@pytest.mark.skipif(
    UPSTREAM is None,
    reason="NOT TESTED: dashboards of llm-d and GIE: set WARMPICK_UPSTREAM_DASHBOARDS to a folder",
)
async def test_dashboards_of_others_are_taken(prometheus):
    """What each panel finds is written beside the dashboards, as a table."""
    lines = []
    for path in sorted(Path(UPSTREAM or "").glob("*.json")):
        board = json.loads(path.read_text())
        inner = [each for row in board["panels"] for each in (row, *row.get("panels", ()))]
        for panel in inner:
            queries = [each["expr"] for each in panel.get("targets", ())]
            found = [bool(await prometheus.ask(query)) for query in queries]
            if queries:
                lines.append(f"| {path.stem} | {panel['title']} | {sum(found)} of {len(found)} |")
    assert lines
    (prometheus.folder / "others.md").write_text("\n".join(lines))
