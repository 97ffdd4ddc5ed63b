"""Symptoms of `docs/troubleshoot.md` happen on purpose, and what the page has one look at answers.

What is looked at is an operator's: `epp explain` as it prints, what `epp top` and the console
read, metrics, and the picker's log.
"""

import asyncio
import json
import re
import signal
import sys

from msgspec.structs import replace

from e2e.corridor import CHAT, DEADLINE, MODEL, SERVER, WATCHED, Plan, chat, quiet_port
from e2e.corridor import until as becomes

HANDBOOK = "The handbook: " + " ".join(f"rule {number}" for number in range(1500))
READY = "llm_d_epp_ready_endpoints"
WAITED = "warmpick_flow_waited_total"
WAITING = "warmpick_flow_waiting_requests"
LIVE = "warmpick_endpoint_cache_events_live"
BATCHES = "warmpick_kv_event_batches_total"
HITS = "warmpick_predicted_hits_total"
REUSE = "warmpick_reuse_tokens_total"
PARTS = ("prompt", "available", "captured", "delivered")
SERVER_ARGV = Plan().argv
MAX_OF_IT = 3000
"""Tokens of the handbook, or a few less."""
FEW = 5
"""Requests by which a server shows how fast it is."""
ENOUGH_OF_A_CLASS = 17
"""Prompts that met an idle server, after which another server is told apart by its own speed."""


async def ask(gateway, name, text, **options):
    """Ask for a stream with its usage, by an `x-request-id`; return who served it."""
    headers = {"x-request-id": name, **options.pop("headers", {})}
    body = chat(text, stream=True, stream_options={"include_usage": True}, **options)
    answer = await gateway.post(CHAT, body, **headers)
    assert answer.status == 200, answer.body
    return answer.headers[SERVER]


async def explain(gateway, *words):
    """Return what `epp explain` prints."""
    argv = (sys.executable, "-m", "epp", "explain", *words, "--url", gateway.operator_url(""))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=pipe)
    out, said = await asyncio.wait_for(process.communicate(), DEADLINE)
    return out.decode() + said.decode()


def candidates(explained):
    """Read the rows of an explanation, by endpoint."""
    lines = iter(explained.splitlines())
    head = next(line for line in lines if line.startswith("  endpoint")).split()
    rows: dict[str, dict[str, float]] = {}
    for line in lines:
        if not line.startswith("  "):
            return rows
        name, *cells = line.split()
        rows[name.rpartition("/")[2]] = dict(zip(head[1:], map(float, cells), strict=True))
    raise AssertionError(explained)


def found(pattern, text):
    """Return the number that a pattern finds."""
    match = re.search(pattern, text)
    assert match, (pattern, text)
    return float(match[1])


async def read(gateway, path):
    async with gateway.client.get(gateway.operator_url(path)) as response:
        assert response.status == 200
        return await response.json()


async def endpoints(gateway):
    """Return what `epp top` shows, by endpoint."""
    page = await read(gateway, "/debug/endpoints")
    return {each["endpoint"].rpartition("/")[2]: each for each in page["endpoints"]}


async def reuse(gateway, model):
    """Return the three figures of a model, and what they are shares of."""
    figures = [await gateway.metric(REUSE, target_model_name=model, part=part) for part in PARTS]
    return dict(zip(PARTS, figures, strict=True))


async def logged(gateway, event):
    return [line for line in gateway.log_lines() if line["event"] == event]


# The hit ratio fell.


async def test_the_client_whose_prompts_begin_with_something_new_is_found(start):
    async with start(Plan(simulators=("a",), picker_flags=WATCHED)) as gateway:
        for number in range(3):
            for client, text in (
                ("good", HANDBOOK),
                ("new", f"It is {number} o'clock. {HANDBOOK}"),
            ):
                client_of_it = {"x-llm-d-inference-fairness-id": client}
                await ask(gateway, f"{client}-{number}", f"{text} {number}?", headers=client_of_it)
        await becomes(lambda: counted(gateway, MODEL, 6))
        available = {
            each: await gateway.metric(REUSE, fairness_id=each, part="available")
            for each in ("good", "new")
        }
        assert available["new"] == 0
        assert available["good"] > MAX_OF_IT
        page = await read(gateway, "/debug/prefixes")
        assert page["requests"] == 6
        assert sum(each["requests"] for each in page["roots"]) == 3


async def test_the_endpoint_whose_metrics_stopped_is_found(start):
    flags = ("--no-metrics-page",)
    async with start(Plan(simulators=("a",), server_flags=flags)) as gateway:
        await becomes(lambda: is_logged(gateway, "endpoint.metrics_missing"))
        (line,) = await logged(gateway, "endpoint.metrics_missing")
        assert (line["endpoint"], line["error"]) == ("default/a", "HTTP status 404")
        assert line["url"] == f"http://{gateway.targets['a']}/metrics"
        shown = (await endpoints(gateway))["a"]
        assert (shown["state"], shown["report_age"]) == ("ready", None)


async def is_logged(gateway, event):
    return bool(await logged(gateway, event))


# The hit ratio fell after an adapter's rollout.

ADAPTERS = ("--max-loras", "2", "--lora-modules", "sql-1", "sql-2")


async def asked_for_adapter(gateway, model, numbers):
    """Ask for an adapter, long enough for servers to show it."""
    for number in numbers:
        text = f"{HANDBOOK} question {number}"
        await ask(gateway, f"{model}-{number}", text, model=model, max_tokens=60)


async def test_an_adapter_of_a_new_name_has_nothing_cached_and_it_passes(start):
    plan = Plan(simulators=("a", "b"), server_flags=ADAPTERS, picker_flags=WATCHED)
    async with start(plan) as gateway:
        await asked_for_adapter(gateway, "sql-1", range(3))
        await asked_for_adapter(gateway, "sql-2", range(1))
        await becomes(lambda: counted(gateway, "sql-2", 1))
        before = await reuse(gateway, "sql-1")
        after = await reuse(gateway, "sql-2")
        assert before["available"] > before["prompt"] / 2
        assert (after["available"], after["captured"], after["delivered"]) == (0, 0, 0)
        why = candidates(await explain(gateway, "sql-2-0"))
        assert {name: row["cached"] for name, row in why.items()} == {"a": 0, "b": 0}
        await asked_for_adapter(gateway, "sql-2", range(1, 4))
        await becomes(lambda: counted(gateway, "sql-2", 4))
        again = await reuse(gateway, "sql-2")
        assert again["available"] > again["prompt"] / 2
        assert again["captured"] == again["available"] <= again["delivered"]


async def counted(gateway, model, requests):
    """Whether so many requests for a model are in the figures: each has the same prompt."""
    tokens = (await reuse(gateway, model))["prompt"]
    return tokens >= requests * MAX_OF_IT


async def test_new_weights_under_a_name_in_use_are_captured_and_not_delivered(start):
    plan = Plan(simulators=("a",), server_flags=ADAPTERS, picker_flags=WATCHED)
    async with start(plan) as gateway:
        await asked_for_adapter(gateway, "sql-1", range(2))
        await becomes(lambda: counted(gateway, "sql-1", 2))
        before = await reuse(gateway, "sql-1")
        for number in range(2, 4):
            await forget(gateway, "a")  # what blocks under this name were made of is no more
            await asked_for_adapter(gateway, "sql-1", [number])
        await becomes(lambda: counted(gateway, "sql-1", 4))
        after = await reuse(gateway, "sql-1")
        assert after["captured"] - before["captured"] > 2 * MAX_OF_IT
        assert after["delivered"] == before["delivered"]
        assert await gateway.metric(HITS, adapter="true", result="missed") == 2
        why = await explain(gateway, "sql-1-3")
        assert candidates(why)["a"]["cached"] > MAX_OF_IT
        assert found(r"then .* (\d+)/\d+ cached", why) == 0


async def forget(gateway, name):
    """Have a server drop its prefix cache."""
    url = f"http://{gateway.targets[name]}/reset_prefix_cache"
    async with gateway.client.post(url) as response:
        assert response.status == 200


# One pod gets everything.


async def test_one_pod_gets_everything_for_it_has_the_prefix_until_it_is_busy(start):
    async with start(Plan(simulators=("a", "b", "c"), picker_flags=WATCHED)) as gateway:
        served = [await ask(gateway, f"q-{each}", f"{HANDBOOK} {each}?") for each in range(4)]
        (one,) = set(served)
        why = await explain(gateway, "q-3")
        rows = candidates(why)
        mine = rows.pop(one)
        assert mine["cached"] > 0.9 * found(r"(\d+) prompt tokens", why)
        margin = found(r"by ([\d.]+) ms of cost", why)
        best = min(rows.values(), key=lambda row: row["cost"])
        computed = sum(best[term] - mine[term] for term in ("prefill", "class"))
        assert computed > 0.9 * margin > 0
        assert all(row["cached"] == row["queued"] == 0 for row in rows.values())
        others = [each for name, each in (await endpoints(gateway)).items() if name != one]
        assert {each["state"] for each in others} == {"ready"}
        assert sum(each["responses"] for each in others) == 0

        tails = [HANDBOOK.replace("rule", f"case {each}") for each in range(6)]
        burst = [ask(gateway, f"b-{at}", f"{HANDBOOK} {tail}") for at, tail in enumerate(tails)]
        served = await asyncio.gather(*burst)
        elsewhere = next(at for at, name in enumerate(served) if name != one)
        rows = candidates(await explain(gateway, f"b-{elsewhere}"))
        assert rows[one]["queued"] > rows[served[elsewhere]]["queued"]

        for name in {"a", "b", "c"} - {one}:
            gateway.signal(gateway.servers[name], signal.SIGKILL)
        await gateway.metric_becomes(1, READY)
        assert await ask(gateway, "last", "hello") == one
        states = {name: each["state"] for name, each in (await endpoints(gateway)).items()}
        assert [name for name, state in states.items() if state == "ready"] == [one]
        assert ": 1 candidate, " in await explain(gateway, "last")


# Time to first token rose since a cold replica joined.


async def test_a_cold_and_slow_server_joins(start):
    plan = Plan(simulators=("a",), picker_flags=WATCHED, routing="original_dst")
    async with start(plan) as gateway:
        for number in range(ENOUGH_OF_A_CLASS):
            await ask(gateway, f"alone-{number}", HANDBOOK.replace("The", f"The {number}th"))
        await ask(gateway, "warm", f"{HANDBOOK} warm?")
        slow = ("--speed=0.25", "--cold-requests=1", "--cold-seconds=1")
        gateway.plan = replace(plan, server_flags=slow)
        await gateway.start_server("b")
        gateway.write_endpoints("a", "b")
        await gateway.metric_becomes(2, READY)
        served: list[str] = []
        while served.count("b") < FEW:
            assert len(served) <= 16  # of which `epp explain` lists the last 20
            names = [f"r-{len(served) + each}" for each in range(4)]
            texts = [f"{HANDBOOK} {HANDBOOK.replace('rule', name)}" for name in names]
            served += await asyncio.gather(*map(ask, [gateway] * 4, names, texts))
        decided = [line.split() for line in (await explain(gateway)).splitlines()]
        theirs = [each[1] for each in decided if each[2] == "default/b"]
        first = await explain(gateway, theirs[0])
        rows = candidates(first)
        assert rows["b"]["cached"] == 0 < rows["a"]["cached"]
        assert rows["a"]["queued"] > rows["b"]["queued"]
        assert found(r"then .* ttft ([\d.]+) ms", first) > rows["b"]["ttft"] + 1000
        seen = await endpoints(gateway)
        assert seen["b"]["cached_prompt_tokens"] > 0  # it comes: the handbook is there now
        speed = "prefill_tokens_per_second"
        assert seen["b"][speed] < 0.8 * seen["a"][speed]
        mine = candidates(await explain(gateway, theirs[-1]))["b"]
        assert mine["prefill"] > mine["class"]


# Batch starves chat.

ONE_AT_A_TIME = ("--num-gpu-blocks-override=96", "--speed=0.5")
"""Of prompts of 600 words."""
FAIRNESS = "x-llm-d-inference-fairness-id"


async def test_batch_starves_chat_of_one_priority_and_one_line(start):
    plan = Plan(simulators=("a",), server_flags=ONE_AT_A_TIME, picker_flags=WATCHED)
    ended: list[str] = []

    async def client(name, tokens=4, **headers):
        await ask(gateway, name, f"{name:9}" + "word " * 600, max_tokens=tokens, headers=headers)
        ended.append(name)

    async with start(plan) as gateway, asyncio.TaskGroup() as group:
        running = asyncio.create_task(client("running", tokens=900))
        await gateway.metric_becomes(1, "llm_d_epp_request_running")
        for number in range(3):
            group.create_task(client(f"batch-{number}"))
        await gateway.metric_becomes(3, WAITING)
        group.create_task(client("chat"))
        await gateway.metric_becomes(4, WAITING)
        group.create_task(client("own-line", **{FAIRNESS: "chat"}))
        await gateway.metric_becomes(5, WAITING, priority="0")
        waiting = (await read(gateway, "/debug/console"))["waiting"]
        assert [band["requests"] for band in waiting["bands"]] == [5]
        assert waiting["no_room"]["memory"] == 5
        assert await gateway.metric(WAITED, fairness_source="default") == 4
        assert "not among the decisions that are kept" in await explain(gateway, "chat")
        running.cancel()
        await becomes(lambda: all_of(ended, 5))
        assert ended.index("own-line") < ended.index("batch-2") < ended.index("chat")
        why = await explain(gateway, "chat")
        ttft, waited = found(r"ttft ([\d.]+) ms", why), found(r"sent after ([\d.]+) ms", why)
        assert ttft / 2 < waited < ttft
        assert candidates(why)["a"]["ttft"] < waited / 2


async def all_of(ended, count):
    return len(ended) == count


# KV events stopped.

EVENTS = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: least-ttft-picker
- type: token-producer
  parameters: {{modelName: sim-model, vllm: {{url: "http://127.0.0.1:{server}"}}}}
- type: precise-prefix-cache-producer
  parameters:
    kvEventsConfig:
      topicFilter: "kv@"
      podDiscoveryConfig: {{socketPort: {publisher}}}
"""


def of_events(folder, topic):
    """One server that publishes by a topic, and a picker that follows it."""
    server, publisher = quiet_port(), quiet_port()
    path = folder / "config.yaml"
    path.write_text(EVENTS.format(server=server, publisher=publisher))
    events = {"enable_kv_cache_events": True, "endpoint": f"tcp://127.0.0.1:{publisher}"}
    return Plan(
        simulators=("a",),
        argv=(*SERVER_ARGV[:-1], str(server)),
        server_flags=("--kv-events-config", json.dumps(events | {"topic": topic})),
        picker_flags=(*WATCHED, f"--config-file={path}"),
    )


async def test_events_stop_as_a_server_comes_back_without_them(start, tmp_path):
    plan = of_events(tmp_path, "kv@a@sim-model")
    async with start(plan) as gateway:
        await gateway.metric_becomes(1, LIVE)
        await ask(gateway, "first", HANDBOOK)
        await gateway.metric_becomes(1, BATCHES, outcome="batches")
        await gateway.servers["a"].stop(0)
        gateway.plan = replace(plan, server_flags=())
        await gateway.start_server("a")
        await gateway.metric_becomes(0, LIVE, model_server_endpoint="a")
        await gateway.metric_becomes(1, READY)
        (lost,) = await logged(gateway, "kv_events.lost")
        assert (lost["endpoint"], "no publisher at tcp://" in lost["reason"]) == ("default/a", True)
        assert not (await endpoints(gateway))["a"]["events_live"]
        assert await ask(gateway, "meanwhile", HANDBOOK) == "a"  # routing goes on


async def test_events_of_another_topic_are_not_taken_and_the_log_names_it(start, tmp_path):
    async with start(of_events(tmp_path, "other")) as gateway:
        await gateway.metric_becomes(1, LIVE)
        await ask(gateway, "first", HANDBOOK)
        await becomes(lambda: logged(gateway, "kv_events.topic"))
        (named,) = await logged(gateway, "kv_events.topic")
        assert (named["endpoint"], named["detail"]) == ("default/a", "other")
        assert await gateway.metric(LIVE) == 1
        assert await gateway.metric(BATCHES) == 0
