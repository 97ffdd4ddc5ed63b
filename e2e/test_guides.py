"""The steps of docs/migrate-from-llm-d.md, followed with three of llm-d-router's guides."""

import json
import re

import pytest_asyncio
import yaml

from e2e.corridor import CHAT, SERVER, Plan, chat, until
from e2e.guides import GUIDES, MODEL, GuideCorridor
from e2e.kube_corridor import kube_corridor
from epp.cli.main import main

TEXTS = [f"Log {each}: the harbour master wrote every ship down. " * 60 for each in "abcdefghi"]
QUESTIONS = 4
SPEED = ("--speed", "5", "--block-size", "64")
WARNINGS = {
    "optimized-baseline": {"maxPrefixTokensToMatch"},
    "pd-disaggregation": {"maxPrefixTokensToMatch"},
    "precise-prefix-cache-routing": {
        "endpoint-notification-source",
        "speculativeIndexing",
        "indexerConfig.kvBlockIndexConfig.enableMetrics",
        "kvEventsConfig.concurrency",
    },
}
"""What a line at the start is about, of each guide's configuration."""
BETTER = {
    "optimized-baseline": None,
    "pd-disaggregation": ("prefill",),
    "precise-prefix-cache-routing": ("default",),
}
"""The profiles in which `least-ttft-picker` takes the place of the others; None: no file at all."""
DASHBOARDS = {
    "llm_d_epp": (
        *("request_total", "request_duration_seconds_bucket", "request_ttft_seconds_bucket"),
        *("request_processing_duration_seconds_bucket", "scheduler_e2e_duration_seconds_bucket"),
        *("ready_endpoints", "per_endpoint_queue_size", "average_queue_size"),
        *("average_kv_cache_utilization", "datalayer_poll_errors_total", "prefix_indexer_size"),
        *("prefix_indexer_hit_ratio_bucket", "prefix_indexer_hit_bytes_bucket"),
    ),
    "inference_objective": (
        *("request_total", "request_duration_seconds_bucket"),
        "normalized_time_per_output_token_seconds_bucket",
    ),
    "inference_pool": ("average_queue_size", "per_pod_queue_size"),
    "inference_extension": (
        *("scheduler_e2e_duration_seconds_bucket", "prefix_indexer_size"),
        *("prefix_indexer_hit_ratio_bucket", "prefix_indexer_hit_bytes_bucket"),
    ),
}
"""What llm-d's dashboards, alerts and PromQL examples read of the picker of every guide."""
OF_EVENTS = {
    "llm_d_epp_kv_cache_events_messages_received_total",
    "llm_d_epp_kv_cache_events_active_subscribers",
    "llm_d_epp_kv_cache_events_subscriber_reconnections_total",
    "llm_d_epp_prefix_prompt_tokens_sum",
    "llm_d_epp_prefix_predicted_cached_tokens_sum",
    "llm_d_epp_kv_cache_index_admissions_total",
    "llm_d_epp_kv_cache_index_evictions_total",
    "llm_d_epp_kv_cache_index_lookup_requests_total",
    "llm_d_epp_kv_cache_index_lookup_hits_total",
    "llm_d_epp_kv_cache_index_max_pod_hit_count_total",
    "llm_d_epp_kv_cache_events_pool_capacity",  # namespaces and pods to choose from are its labels
}
OF_STAGES = {
    "llm_d_epp_disagg_decision_total",
    "llm_d_inference_scheduler_disagg_decision_total",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=GUIDES)
async def gateway(request, tmp_path_factory):
    # The guides' dashboards read former names beside those that llm-d-router writes now.
    plan = Plan(tls=True, server_flags=SPEED, picker_flags=("--former-metrics",))
    folder = tmp_path_factory.mktemp(request.param)
    async with kube_corridor(plan, folder, GuideCorridor) as made:
        assert isinstance(made, GuideCorridor)
        made.follow(request.param)
        await made.start_pods()
        await made.start_picker()
        await made.start_gateway()
        await made.endpoints_become(len(GUIDES[request.param][1]))
        yield made


async def ask(gateway, text, question):
    """Stream an answer: who computed the prompt, and the share that was cached there."""
    body = chat(f"{text} {question}", stream=True, stream_options={"include_usage": True})
    async with gateway.stream(CHAT, body | {"model": MODEL}) as response:
        assert response.status == 200, await response.text()
        where, lines = response.headers.get(SERVER), (await response.text()).split("\n\n")
    usage = json.loads(lines[-3].removeprefix("data: "))["usage"]
    if gateway.sidecars and gateway.sidecars[0].prefills:
        where, usage = gateway.sidecars[0].prefills.pop()
    return where, usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]


async def conversations(gateway):
    """Ask about each text once, then more: each question finds its text where the first was."""
    for name in gateway.servers:
        url = f"http://{gateway.server(name)}/reset_prefix_cache"
        assert (await gateway.client.post(url)).status == 200
    first = [await ask(gateway, text, "Who came?") for text in TEXTS]
    later = [
        (number, *await ask(gateway, text, f"And on day {day}?"))
        for day in range(QUESTIONS)
        for number, text in enumerate(TEXTS)
    ]
    return first, later


def warm(first, later):
    """Check that every later question went where its text was; give the mean cached share."""
    assert [(where, share > 0.9) for _, where, share in later] == [
        (first[number][0], True) for number, _, _ in later
    ]
    assert len({where for where, _ in first}) > 1
    return sum(share for _, _, share in later) / len(later)


async def test_check_takes_the_configuration_and_says_what_has_no_effect(gateway, capsys):
    gateway.arguments()
    path = gateway.directory / "config" / f"{gateway.guide}-plugins.yaml"
    assert main(["check", str(path)]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(said) == len(WARNINGS[gateway.guide])
    assert all(any(name in line for line in said) for name in WARNINGS[gateway.guide])


async def test_the_start_says_what_has_no_effect_and_no_right_is_missing(gateway):
    lines = gateway.log_lines()
    said = [line["warning"] for line in lines if line["event"] == "config.warning"]
    assert len(said) == len(WARNINGS[gateway.guide])
    assert all(any(name in line for line in said) for name in WARNINGS[gateway.guide])
    assert [line for line in lines if "without_effect" in line["event"]] == []
    assert [line for line in lines if "missing_rule" in str(line)] == []


async def test_questions_go_where_their_text_is_cached(gateway):
    assert warm(*await conversations(gateway)) > 0.9


async def test_dashboards_find_their_series(gateway):
    wanted = {f"{start}_{name}" for start, names in DASHBOARDS.items() for name in names}
    wanted |= OF_STAGES if gateway.sidecars else set()
    wanted |= OF_EVENTS if gateway.guide.startswith("precise") else set()

    async def there():
        return wanted <= set(re.findall(r"^([a-z0-9_]+)[{ ]", await gateway.page(), re.MULTILINE))

    await until(there)


async def test_least_ttft_in_the_place_of_the_old_scores(gateway):
    await gateway.picker.stop(5)
    profiles = BETTER[gateway.guide]
    if profiles is None:
        gateway.without_file = True
    else:
        gateway.configuration = least_ttft(gateway.configuration, profiles)
    await gateway.start_picker()
    await gateway.endpoints_become(len(GUIDES[gateway.guide][1]))
    assert warm(*await conversations(gateway)) > 0.9


def least_ttft(text, profiles):
    """The configuration with one picker in these profiles, and the roles' filters as they were."""
    config = yaml.safe_load(text)
    config["plugins"].append({"type": "least-ttft-picker"})
    for profile in config["schedulingProfiles"]:
        if profile["name"] in profiles:
            roles = [each for each in profile["plugins"] if "fill-filter" in each["pluginRef"]]
            profile["plugins"] = [*roles, {"pluginRef": "least-ttft-picker"}]
    return yaml.safe_dump(config)
