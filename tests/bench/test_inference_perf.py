"""The configurations for inference-perf: fields that 0.7.0 has, and numbers that fit together."""

import re
from pathlib import Path
from typing import Literal

import msgspec
import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "bench" / "inference-perf").glob("*.yaml"))
PAGE = (ROOT / "docs" / "benchmarking.md").read_text()
FEWEST = {"min": 10, "max": 1024}
"""What its lengths are cut to where the file does not say."""


class Known(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of a configuration; a field that inference-perf does not know makes it refuse."""


class Lengths(Known):
    type: Literal["normal", "lognormal", "fixed"]
    mean: float
    min: int = FEWEST["min"]
    max: int = FEWEST["max"]
    std_dev: float = 0


class SharedPrefix(Known):
    # Its aliases num_unique_system_prompts and num_users_per_system_prompt clash with its flags.
    num_groups: int
    num_prompts_per_group: int
    system_prompt_len: int
    question_len: int
    output_len: int
    seed: int


class Conversations(Known):
    seed: int
    num_conversations: int
    max_model_len: int
    shared_system_prompt_len: int
    turns_per_conversation: Lengths
    input_tokens_per_turn: Lengths
    output_tokens_per_turn: Lengths
    dynamic_system_prompt_len: Lengths | None = None
    tool_call_latency_sec: Lengths | None = None


class Agents(Known):
    seed: int
    num_sessions: int
    use_static_model: Literal[True]
    static_model_name: str
    max_model_len: int
    shared_system_prompt_len: int
    turns_per_session: Lengths
    input_tokens_per_turn: Lengths
    output_tokens_per_turn: Lengths
    tool_loop_depth: Lengths
    fanout_probability: float
    tool_call_latency_sec: Lengths


class Data(Known):
    type: Literal["shared_prefix", "conversation_replay", "synthetic_agentic"]
    shared_prefix: SharedPrefix | None = None
    conversation_replay: Conversations | None = None
    synthetic_agentic: Agents | None = None


class Api(Known):
    type: Literal["completion", "chat"]
    streaming: Literal[True]


class Load(Known):
    type: Literal["poisson", "concurrent", "trace_session_replay"]
    stages: list[dict[str, int]]
    num_workers: int
    worker_max_concurrency: int
    base_seed: int


class Server(Known):
    type: Literal["vllm"]
    base_url: str


class Report(Known):
    request_lifecycle: dict[Literal["use_server_output_tokens"], Literal[True]]
    goodput: dict[Literal["constraints"], dict[Literal["ttft", "tpot"], float]] = {}


class Configuration(Known):
    api: Api
    data: Data
    load: Load
    server: Server
    report: Report
    storage: dict[Literal["local_storage"], dict[Literal["path"], str]]


STAGES = {
    "poisson": {"rate", "duration"},
    "concurrent": {"num_requests", "concurrency_level"},
    "trace_session_replay": {"num_sessions", "concurrent_sessions"},
}
each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def read(file):
    return msgspec.convert(yaml.safe_load(file.read_text()), Configuration)


@each_file
def test_inference_perf_knows_every_field(file):
    configuration = read(file)
    load, data = configuration.load, configuration.data
    assert all(set(stage) == STAGES[load.type] for stage in load.stages)
    assert getattr(data, data.type) is not None
    # Trees of calls need sessions, and only chats can carry their tools.
    agents = data.type == "synthetic_agentic"
    assert agents == (load.type == "trace_session_replay") == (configuration.api.type == "chat")


@each_file
def test_it_asks_where_epp_up_listens_and_writes_to_a_folder_of_its_own(file):
    configuration = read(file)
    assert configuration.server.base_url == "http://127.0.0.1:8080"
    assert configuration.storage["local_storage"]["path"] == f"inference-perf-reports/{file.stem}"


@each_file
def test_lengths_leave_room_for_a_prompt(file):
    data = read(file).data
    for part in (data.conversation_replay, data.synthetic_agentic):
        if part is not None:
            for name in part.__struct_fields__:
                lengths = getattr(part, name)
                if isinstance(lengths, Lengths) and lengths.type != "fixed":
                    assert lengths.min < lengths.mean < lengths.max, name
            assert part.output_tokens_per_turn.max < part.max_model_len


@each_file
def test_as_many_conversations_as_are_held_at_once(file):
    """Each slot owns a conversation, and takes its next one when that ends."""
    configuration = read(file)
    conversations = configuration.data.conversation_replay
    if conversations is not None and configuration.load.type == "concurrent":
        (stage,) = configuration.load.stages
        assert stage["concurrency_level"] == conversations.num_conversations


def test_each_stage_of_the_shared_prefixes_asks_every_prompt_once():
    configuration = read(ROOT / "bench" / "inference-perf" / "shared-prefix.yaml")
    prefixes = configuration.data.shared_prefix
    prompts = prefixes.num_groups * prefixes.num_prompts_per_group
    assert {stage["rate"] * stage["duration"] for stage in configuration.load.stages} == {prompts}


def test_the_page_has_every_file():
    assert re.findall(r"^\| `([\w-]+\.yaml)`", PAGE, re.MULTILINE) == [
        "shared-prefix.yaml",
        *sorted({file.name for file in FILES} - {"shared-prefix.yaml"}, key=PAGE.index),
    ]
