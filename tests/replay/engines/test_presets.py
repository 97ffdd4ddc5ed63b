"""Engines under names."""

import pytest

from epp.errors import ConfigError
from epp.replay.engines.contract import Limits
from epp.replay.engines.cost import StepWork
from epp.replay.engines.presets import PRESETS, limits_of, preset


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_costs_something_and_says_where_that_is_from(name):
    found = preset(name)
    assert found.source
    assert found.cost.step_ms > 0
    assert found.cost.prefill_us_per_token > 0
    assert found.limits.context > found.limits.block_size
    assert 0 < found.transfer_seconds_per_token < 1e-3


@pytest.mark.parametrize(
    ("name", "chunk", "tokens_per_second"),
    [("qwen3-32b-tp2-h100", 8192, 15_928), ("gpt-oss-120b-h100", 8192, 39_065)],
)
def test_published_rates_of_prefill_come_out(name, chunk, tokens_per_second):
    work = StepWork(prefill=chunk, attended=chunk * chunk / 2)
    assert chunk / preset(name).cost.seconds(work) == pytest.approx(tokens_per_second)


@pytest.mark.parametrize(
    ("name", "prompt", "shortest", "longest"),
    [
        ("cpu-small", 2048, 0.437, 0.555),
        ("cpu-small", 8192, 3.9, 4.0),
        ("cpu-tiny", 2048, 0.010, 0.017),  # 18 to 24 ms, 7 to 9 of which are not the engine's
        ("8b-h100-p2p", 2048, 0.077, 0.079),
        ("8b-h100-p2p", 49_152, 1.95, 2.03),
    ],
)
def test_measured_times_of_prompts_come_out(name, prompt, shortest, longest):
    found = preset(name)
    budget = found.limits.max_num_batched_tokens
    steps = [(start, min(budget, prompt - start)) for start in range(0, prompt, budget)]
    seconds = sum(
        found.cost.seconds(StepWork(size, size * (start + size / 2))) for start, size in steps
    )
    assert shortest <= seconds <= longest


def test_a_cache_of_so_many_tokens_has_whole_blocks_and_one_that_is_never_used():
    assert limits_of(100) == Limits(num_gpu_blocks=7, max_num_seqs=1024)
    assert limits_of(100).capacity == 96
    assert limits_of(3).capacity == 16


@pytest.mark.parametrize("name", PRESETS)
def test_steps_have_the_limits_of_vllms_server_on_that_hardware(name):
    """vLLM 0.32 arg_utils.py `get_batch_defaults`, of an API server."""
    limits = preset(name).limits
    of_hardware = (2048, 128) if name.startswith("cpu-") else (8192, 1024)
    assert (limits.max_num_batched_tokens, limits.max_num_seqs) == of_hardware


def test_an_unknown_name_is_answered_with_those_that_are_known():
    with pytest.raises(ConfigError, match=r"no engine is called 'h200'.*8b-h100"):
        preset("h200")
