"""docs/replay-traffic.md keeps up with the code: formats, workloads, parameters and examples."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from epp.replay.traffic.calls import tokens_in
from epp.replay.traffic.reading import ALIASES, WORKLOADS, Parameters, read
from epp.replay.traffic.workloads.catalog import CATALOG

PAGE = (Path(__file__).parents[3] / "docs" / "replay-traffic.md").read_text()
EXAMPLES = re.findall(r"^epp replay (\S+)", PAGE, re.MULTILINE)


def rows(heading):
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| ")]


def test_every_workload_is_in_the_table_and_no_other():
    named = [name for row in rows("Workloads") for name in re.findall(r"`(.*?)`", row)]
    assert sorted(named) == sorted((*WORKLOADS, *ALIASES))
    for row in rows("Workloads")[1:]:
        names = re.findall(r"`(.*?)`", row)
        assert len({ALIASES.get(name, name) for name in names}) == 1


def test_every_parameter_is_in_the_table_and_no_other():
    named = [name for row in rows("Arrivals") for name in re.findall(r"`(.*?)`", row)]
    assert sorted(named) == sorted(Parameters.__struct_fields__)


def test_lengths_are_those_of_the_catalog():
    for name, entry in CATALOG.items():
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}`")]
        numbers = {int(each.replace(",", "")) for each in re.findall(r"\d[\d,]*\d|\d", row)}
        assert entry.system in numbers or "nothing shared" in row
        assert entry.output.mean in numbers or entry.output.low in numbers


@pytest.mark.parametrize(
    "example", [each for each in EXAMPLES if "." not in each and "/" not in each]
)
def test_an_example_of_a_workload_works(example):
    name, _, given = example.partition(":")
    kept = [each for each in given.split(",") if not each.startswith("sessions")]
    assert read(f"{name}:{','.join([*kept, 'sessions=5'])}").calls


JQ = shutil.which("jq") or ""
FOUND = re.findall(r"^# (.*)\njq (-cn?) '([^']*)'\s*log\.jsonl >", PAGE, re.MULTILINE)
RECIPES = {name: (flags, script) for name, flags, script in FOUND}
HELLO = [{"role": "user", "content": "x" * 128}]
KINDS = ("input_tokens", "output_tokens")


def span(at, **attributes):
    named = {f"gen_ai.{name.replace('__', '.')}": value for name, value in attributes.items()}
    listed = [{"key": name, "value": {"stringValue": named[name]}} for name in named]
    used = zip(KINDS, (32, 7), strict=True)
    listed += [{"key": f"gen_ai.usage.{kind}", "value": {"intValue": str(n)}} for kind, n in used]
    one = {"startTimeUnixNano": str(at * 10**9), "attributes": listed}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [one]}]}]}


def parts(role, text):
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])


def mooncake(at, **more):
    return {"timestamp": at * 1000, "input_length": 130, "output_length": 7, **more}


# What each recipe reads: a request at a time in seconds, and its tokens of prompt and response.
# Text of 128 characters is 32 tokens, and the roles of a message and of its answer 4 each.
OTHERS = {
    "one model": (lambda at: {"ts": at, "model": "llama", "messages": HELLO}, 40, 256),
    "LiteLLM": (
        lambda at: {"startTime": at, "prompt_tokens": 32, "completion_tokens": 7, "messages": {}},
        *(32, 7),
    ),
    "Langfuse": (
        lambda at: {
            "type": "GENERATION",
            "start_time": f"2026-01-01 00:00:{at % 60:02}.000000",
            "input": json.dumps(HELLO),
            "output": json.dumps({"role": "assistant", "content": "hi"}),
            "usage_details": {"input": 32, "output": 7},
        },
        *(40, 7),
    ),
    "spans (OTLP": (
        lambda at: span(
            at,
            input__messages=parts("user", HELLO[0]["content"]),
            output__messages=parts("assistant", "hi"),
        ),
        *(40, 7),
    ),
    "spans with gen_ai.prompt": (
        lambda at: span(
            at,
            prompt__0__role="user",
            prompt__0__content=HELLO[0]["content"],
            completion__0__content="hi",
        ),
        *(40, 7),
    ),
    "spans without": (lambda at: span(at, conversation__id=str(at)), 32, 7),
    "Kong": (
        lambda at: {
            "started_at": at * 1000,
            "request": {"method": "POST"},
            "response": {"status": 200},
            "ai": {
                "proxy": {
                    "payload": {"request": json.dumps({"messages": HELLO}), "response": "{}"},
                    "usage": {"prompt_tokens": 32, "completion_tokens": 7},
                }
            },
        },
        *(40, 7),
    ),
    "SGLang": (
        lambda at: {
            "timestamp": at,
            "event": "request.received",
            "obj": {"text": "x" * 128, "sampling_params": {"max_new_tokens": 7}},
        },
        *(32, 7),
    ),
    "NVIDIA Dynamo": (
        lambda at: {
            "event_type": "request_end",
            "request": {
                "request_received_ms": at * 1000,
                "output_tokens": 7,
                "replay": {
                    "trace_block_size": 64,
                    "input_length": 130,
                    "input_sequence_hashes": [2**63 + at, 2**62, 2**61],
                },
            },
        },
        *(130, 7),
    ),
    "lines as Mooncake's, with blocks of 64": (
        lambda at: mooncake(at, hash_ids=[1, 2, at]),
        130,
        7,
    ),
    "lines as Mooncake's (milliseconds)": (mooncake, 130, 7),
    "Weka": (
        lambda at: {
            "block_size": 64,
            "requests": [
                {"t": at, "type": "n", "in": 200, "out": 7, "hash_ids": [1, 2, 3]},
                {"t": at, "type": "subagent", "requests": []},
            ],
        },
        *(192, 7),
    ),
    "inference-perf": (
        lambda at: [
            {
                "start_time": at,
                "request": json.dumps({"messages": HELLO}),
                "response": "data: [DONE]",
                "info": {"input_tokens": 32, "response_metrics": {"output_tokens": 7}},
                "error": None,
            }
        ],
        *(40, 7),
    ),
    "aiperf": (
        lambda at: {
            "metadata": {"request_start_ns": at * 10**9, "x_correlation_id": str(at)},
            "metrics": {
                "input_sequence_length": {"value": 32},
                "output_sequence_length": {"value": 7},
            },
            "error": None,
        },
        *(32, 7),
    ),
    "WildChat": (
        lambda at: {
            "timestamp": at,
            "conversation": [*HELLO, {"role": "assistant", "content": "y" * 128}],
        },
        *(40, 32),
    ),
    "ShareGPT": (
        lambda _: [
            {
                "conversations": [
                    {"from": "human", "value": HELLO[0]["content"]},
                    {"from": "gpt", "value": "y" * 128},
                ]
            }
        ],
        *(40, 32),
    ),
}


@pytest.mark.skipif(not JQ, reason="NOT TESTED: how logs are converted: there is no jq; install it")
@pytest.mark.parametrize("recipe", RECIPES)
def test_other_logs_are_converted_as_the_page_says(tmp_path, recipe):
    (row, prompt, response), *more = [OTHERS[name] for name in OTHERS if recipe.startswith(name)]
    assert not more
    log, made = tmp_path / "log.jsonl", tmp_path / "requests.jsonl"
    log.write_text("".join(json.dumps(row(at)) + "\n" for at in (1_764_460_800, 1_764_460_803)))
    run = subprocess.run([JQ, *RECIPES[recipe], log], capture_output=True, check=True)
    made.write_bytes(run.stdout)
    first, second = read(str(made), strict=True).calls
    assert second.at - first.at == (0 if recipe.startswith("ShareGPT") else 3)
    assert (tokens_in(first.prompt), tokens_in(first.response)) == (prompt, response)


def test_every_recipe_is_tried():
    assert len(RECIPES) == len(OTHERS) == PAGE.count("\njq -c")
