"""Costs out of what engines took: one that is known comes back."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import ConfigError
from epp.replay.engines.calibration import _nonnegative, calibrate
from epp.replay.engines.contract import Job, Limits, Progress
from epp.replay.engines.cost import StepCost
from epp.replay.engines.engine import Engine
from epp.replay.simulation.clock import Clock
from epp.replay.traffic.calls import Run

TRUE = StepCost(
    step_ms=12.0,
    prefill_us_per_token=90.0,
    attention_ns=3.0,
    decode_us_per_seq=150.0,
    decode_ns_per_context_token=20.0,
)
PARAMETERS = StepCost.__struct_fields__


def served(sizes, together=1):
    """Log of requests that simulated engines served, `together` alike ones at a time."""
    rows = []
    for token, (cached, uncached, generated) in enumerate(sizes):
        clock = Clock()
        times: dict[tuple[Job, Progress], float] = {}

        def listen(job, told, times=times, clock=clock):
            times.setdefault((job, told), clock.now)

        engine = Engine(Limits(), TRUE, clock, listen)
        if cached:
            engine.submit(Job(0, [Run(1 + token, cached)], [Run(2, 1)]))
            clock.run(lambda: False)
        begin = clock.now
        jobs = [
            Job(
                n,
                [Run(1 + token, cached), Run(100 + n, uncached)][not cached :],
                [Run(3, generated)],
            )
            for n in range(together)
        ]
        for job in jobs:
            engine.submit(job)
        clock.run(lambda: False)
        job = jobs[-1]
        first, last = times[job, Progress.FIRST], times[job, Progress.LAST]
        rows.append(
            {
                "prompt_tokens": cached + uncached,
                "cached_tokens": job.cached,
                "ttft": first - begin,
                "tpot": (last - first) / (generated - 1),
                "completion_tokens": generated,
                "running": together,
            }
        )
    return rows


SIZES = [
    (0, 200, 20),
    (0, 3000, 50),
    (0, 7000, 30),
    (4800, 300, 20),
    (8000, 2000, 40),
    (0, 20, 200),
]


CROWDED = [(0, 200, 20), (4800, 100, 40), (9600, 150, 60), (0, 20, 200)]
"""Forty such prompts are computed in one step."""


def log(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_known_cost_comes_back_from_a_log(tmp_path):
    alone = served(SIZES)
    together = [row for size in (8, 40) for row in served(CROWDED, size)]
    for row in together:  # their prompts were computed together
        (like,) = served([(row["cached_tokens"], row["prompt_tokens"] - row["cached_tokens"], 2)])
        row["ttft"] = like["ttft"]
    found = calibrate([log(tmp_path / "a", alone), log(tmp_path / "b", together)], StepCost())
    assert list(found.fitted) == list(PARAMETERS)
    for name in PARAMETERS:
        assert getattr(found.cost, name) == pytest.approx(getattr(TRUE, name), rel=0.05), name
    assert found.error < 0.01
    assert (found.observations, found.queued, found.limits) == (14, True, None)


def test_requests_that_waited_tell_little(tmp_path):
    rows = served(SIZES * 4)
    for number, row in enumerate(rows):
        row["ttft"] *= 1 + 3 * (number % 4 == 0)
    found = calibrate([log(tmp_path / "a", rows)], StepCost())
    assert found.cost.prefill_us_per_token == pytest.approx(TRUE.prefill_us_per_token, rel=0.15)


def test_what_is_not_told_is_kept(tmp_path):
    rows = [{"prompt_tokens": 4000, "ttft": 0.5}, {"prompt_tokens": 1000, "ttft": 0.125}]
    prior = StepCost(decode_us_per_seq=77.0)
    found = calibrate([log(tmp_path / "a", rows)], prior)
    assert "prefill_us_per_token" in found.fitted
    assert {"decode_us_per_seq", "decode_ns_per_context_token"} <= set(found.kept)
    assert found.cost.decode_us_per_seq == pytest.approx(77.0)
    told, kept, waited = found.summary().splitlines()
    assert told.startswith("fitted to 2 observations, ")
    assert kept.startswith("not determined by them, and kept: ")
    assert "decode_us_per_seq 77" in kept
    assert waited == "what came late may have waited, and counts little"


PAGE = """\
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
vllm:prompt_tokens_total{{engine="0",model_name="m"}} {prompt}
vllm:generation_tokens_total{{engine="0",model_name="m"}} {generated}
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:request_prefill_time_seconds_sum{{engine="0",model_name="m"}} {prefill}
vllm:request_prefill_time_seconds_count{{engine="0",model_name="m"}} {requests}
vllm:request_prefill_kv_computed_tokens_sum{{engine="0",model_name="m"}} {computed}
vllm:request_prefill_kv_computed_tokens_count{{engine="0",model_name="m"}} {requests}
vllm:inter_token_latency_seconds_sum{{engine="0",model_name="m"}} {between}
vllm:inter_token_latency_seconds_count{{engine="0",model_name="m"}} {generated}
vllm:cache_config_info{{block_size="16",num_gpu_blocks="5001",engine="0"}} 1.0
"""
FIRST = {
    "requests": 10,
    "prompt": 50_000,
    "computed": 40_000,
    "generated": 1000,
    "running": 4,
    "prefill": 2.0,
    "between": 20.0,
}
SECOND = {
    "requests": 30,
    "prompt": 90_000,
    "computed": 70_000,
    "generated": 4000,
    "running": 4,
    "prefill": 2.9,
    "between": 80.0,
}


def page(path, values):
    path.write_text(PAGE.format(**values))
    return path


def test_metrics_pages_tell_of_the_requests_between_them(tmp_path):
    pages = [page(tmp_path / "1", FIRST), page(tmp_path / "2", SECOND)]
    found = calibrate(pages, StepCost())
    # 20 requests of 1,500 computed tokens in 45 ms; 20 ms between tokens.
    assert found.limits == Limits(block_size=16, num_gpu_blocks=5001)
    assert (found.observations, found.queued) == (1, False)
    cost = found.cost
    attended = 1500 * (500 + 750)
    assert cost.step_ms + cost.prefill_us_per_token * 1.5 + cost.attention_ns * attended * 1e-6 == (
        pytest.approx(45, rel=0.01)
    )
    assert found.error < 0.01


def test_a_page_of_data_parallel_engines_tells_what_one_of_them_does(tmp_path):
    one = [page(tmp_path / name, values) for name, values in (("1", FIRST), ("2", SECOND))]
    eight = [tmp_path / "8 engines 1", tmp_path / "8 engines 2"]
    for path, alike in zip(one, eight, strict=True):
        lines = path.read_text().splitlines()
        samples = [line.replace('engine="0"', f'engine="{n}"') for line in lines for n in range(8)]
        alike.write_text("\n".join(samples) + "\n")
    assert calibrate(eight, StepCost()).cost == calibrate(one, StepCost()).cost


def test_an_engine_hundreds_of_times_slower_than_the_prior_is_found_too(tmp_path):
    slow = FIRST | {"prefill": 800.0, "between": 2000.0}
    found = calibrate([page(tmp_path / "1", slow)], StepCost())
    assert found.error < 0.01


def test_one_page_tells_of_all_since_the_start(tmp_path):
    found = calibrate([page(tmp_path / "1", FIRST)], StepCost())
    assert found.error < 0.01
    assert found.observations == 1


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "nothing to calibrate with"),
        ([""], "is empty: neither a metrics page nor a log"),
        (['{"prompt_tokens": 5}\n'], "0:1: Object missing required field `ttft`"),
        (['{"prompt_tokens": 5, "ttft": 1}\n{"prompt_tokens": -5, "ttft": 1}'], "0:2: Expected"),
        (['{"prompt_tokens": 5, "ttft": 1, "cached_tokens": 5}'], "0:1: 5 of 5 tokens are cached"),
        (['{"prompt_tokens": 5, "ttft"'], "0:1: "),
        (["# HELP x\nother:metric 1\n"], "has no vllm:request_prefill_time_seconds or vllm:time"),
        ([PAGE.format(**{**FIRST, "requests": 0})], "counts no request"),
        ([PAGE.format(**SECOND), PAGE.format(**FIRST)], "was the server restarted?"),
        ([PAGE.format(**FIRST), '{"prompt_tokens": 5}'], "give one or the other"),
    ],
)
def test_what_is_missing_is_named(tmp_path, texts, message):
    paths = [tmp_path / str(number) for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        calibrate(paths, StepCost())


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere: No such file"):
        calibrate([Path(tmp_path / "nowhere")], StepCost())


@given(
    st.lists(
        st.tuples(st.lists(st.floats(0, 3), min_size=3, max_size=3), st.floats(-2, 3)),
        min_size=1,
        max_size=8,
    ),
    st.lists(st.floats(0, 3), min_size=3, max_size=3),
)
def test_no_other_point_is_nearer(rows, other):
    rows = [*rows, *(([float(i == j) for i in range(3)], 0.5) for j in range(3))]
    found = _nonnegative(rows, [1.0] * len(rows))

    def loss(values):
        return sum((sum(map(float.__mul__, row, values)) - b) ** 2 for row, b in rows)

    assert min(found) >= 0
    assert loss(found) <= loss(other) + 1e-6


ODD = ("-1", "0", "1e-300", "5e-324", "1e12", "1e300", "1e999", str(2**70), "NaN", "Infinity")
ODD_ROW = {"prompt_tokens": 500, "cached_tokens": 3, "ttft": 0.1, "tpot": 0.02, "running": 2}


@pytest.mark.parametrize("value", ODD)
def test_any_number_may_be_anything(value, tmp_path):
    path = tmp_path / "log"
    row = json.dumps(ODD_ROW)
    texts = [
        f"{row}\n{json.dumps({**ODD_ROW, key: 'HERE'})}\n".replace('"HERE"', value)
        for key in ODD_ROW
    ]
    texts += [PAGE.format(**{**FIRST, key: value}) for key in FIRST]
    for text in texts:
        path.write_text(text)
        with contextlib.suppress(ConfigError):
            found = calibrate([path], StepCost())
            costs = [getattr(found.cost, name) for name in StepCost.__struct_fields__]
            assert all(0 <= each < 1e12 for each in costs)
