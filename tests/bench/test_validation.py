"""The cost that a real run is worth, and the trace that its questions make."""

from contextlib import AsyncExitStack

import aiohttp
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.table import markdown
from bench.validation.benchmark import compared
from bench.validation.real import BLOCK, WORKLOAD, Question, planned, warm_up
from bench.validation.simulated import SCRAPED, CannotCalibrate, calibrated, play
from epp.demo.figures import Sample
from epp.demo.pools import Size, choose_pool
from epp.demo.testbed import start_servers
from epp.replay.engines.cost import StepCost
from epp.replay.simulation.outcome import CallStatus

STEP_MS, PREFILL_US = 40.0, 1500.0
COST = StepCost(
    step_ms=STEP_MS,
    prefill_us_per_token=PREFILL_US,
    attention_ns=0,
    decode_us_per_seq=0,
    decode_ns_per_context_token=0,
)
DOCUMENTS = 4
QUESTIONS = tuple(
    Question(1.5 * number, (*[number % DOCUMENTS] * 800, *range(100, 120), number + 1000), 10)
    for number in range(24)
)


def samples(outcomes):
    """What a client would have measured."""
    return [
        Sample(
            conversation=each.call,
            turn=0,
            sent_at=each.at,
            ttft=each.ttft,
            seconds=each.end_to_end,
            prompt_tokens=each.prompt,
            cached_tokens=each.cached,
            completion_tokens=each.generated,
            server=str(each.endpoint),
        )
        for each in outcomes
    ]


def test_the_cost_of_a_run_is_found_again():
    cost = calibrated(samples(play("round-robin", QUESTIONS, COST)))
    assert cost.step_ms == pytest.approx(STEP_MS, rel=1e-6)
    assert cost.prefill_us_per_token == pytest.approx(PREFILL_US, rel=1e-6)


def test_prompts_that_shared_a_server_teach_nothing():
    crowd = [msgspec.structs.replace(each, at=0.0) for each in QUESTIONS]
    with pytest.raises(CannotCalibrate, match="too high"):
        calibrated(samples(play("round-robin", crowd, COST)))


def test_tokens_that_come_at_once_are_no_short_step():
    seen = samples(play("round-robin", QUESTIONS, COST))
    late = [msgspec.structs.replace(each, ttft=each.seconds) for each in seen[:3]]
    assert calibrated([*late, *seen[3:]]).step_ms == pytest.approx(STEP_MS, rel=1e-6)


def test_the_runs_of_the_other_policies_need_not_show_what_a_token_costs():
    seen = {name: samples(play(name, QUESTIONS, COST)) for name in ("round-robin", "least-ttft")}
    at_once = [msgspec.structs.replace(each, sent_at=0.0) for each in seen["least-ttft"]]
    report = compared(QUESTIONS, seen | {"least-ttft": at_once})
    runs = {figure.key: figure.runs for figure in report.figures}
    assert "ttft_own_speed_least-ttft" not in runs
    assert runs["ttft_real_least-ttft"][0] == pytest.approx(runs["ttft_simulated_least-ttft"][0])
    assert "What a prompt token took in each real run: round-robin 1,500 us." in report.notes
    markdown(report, machine="", command="")


async def test_servers_answer_before_the_first_question_and_cache_nothing(tmp_path):
    pool = choose_pool("simulator", Size(servers=1), tmp_path)
    async with AsyncExitStack() as stack:
        _, servers = await start_servers(pool, tmp_path, stack)
        await warm_up(servers, pool.model)
        client = await stack.enter_async_context(aiohttp.ClientSession())
        async with client.get(f"http://{servers[0]}/metrics") as response:
            page = await response.text()
    said = {
        each.name: each.value
        for family in text_string_to_metric_families(page)
        for each in family.samples
    }
    assert said["vllm:generation_tokens_total"] == 4
    assert 0 < said["vllm:prompt_tokens_total"] < pool.block_size


def test_a_report_has_each_policy_in_reality_and_in_simulation():
    policies = ("round-robin", "least-ttft")
    report = compared(QUESTIONS, {name: samples(play(name, QUESTIONS, COST)) for name in policies})
    runs = {figure.key: figure.runs for figure in report.figures}
    for key in ("ttft", "ratio", "cached"):
        for policy in policies:
            (real,) = runs[f"{key}_real_{policy}"]
            for column in ("simulated", "own_speed"):
                # One of the simulated runs is what was taken for real here.
                assert real == pytest.approx(runs[f"{key}_{column}_{policy}"][0])


def test_all_questions_are_sent_when_they_were_and_answered():
    played = sorted(play("least-ttft", QUESTIONS, COST), key=lambda each: each.call)
    assert {each.status for each in played} == {CallStatus.SERVED}
    assert [each.at for each in played] == [SCRAPED + each.at for each in QUESTIONS]
    assert [each.prompt for each in played] == [len(each.prompt) for each in QUESTIONS]
    assert [each.generated for each in played] == [each.answer for each in QUESTIONS]
    # 800 tokens are 25 blocks; what a question adds is one only where it fills it.
    assert {each.cached for each in played} == {0, 800 // BLOCK * BLOCK}


def test_the_plan_is_of_single_questions_about_a_few_documents():
    plan = planned(1)
    assert len(plan) == WORKLOAD.conversations
    assert {len(each.turns) for each in plan} == {1}
    assert len({each.system for each in plan}) == WORKLOAD.dossiers
