"""The one typed file, the flags that say the same, and what Kubernetes tells a pod."""

import argparse
import re
from pathlib import Path

import pytest
from model_server import command
from model_server.command import FLAGS, KEYS, ODD_KEYS, Refused, api_key, camel
from model_server.flags import environment, serve_arguments, topic
from model_server.launch import parse
from model_server.settings import Life, Settings
from msgspec.structs import fields

DOCUMENT = Path(__file__).parents[2] / "docs" / "model-server.md"
PARTS = (Settings, Life)
SAID_OTHERWISE = {"podIp", "nodes", "nodeRank", "blockSize", "kvCacheBytes", "pipelineParallelSize"}
"""What follows from something else where nobody says it."""
FLAG_LESS = {"model", "device", "offline", "extra", "podIp"}
EVERYTHING = """
model: hub/llama
servedModelName: llama
device: gpu
host: 0.0.0.0
port: 8000
blockSize: 16
hashAlgorithm: sha256_cbor
kvCacheBytes: 8G
numGpuBlocks: 5000
maxModelLen: 8192
maxNumSeqs: 64
maxNumBatchedTokens: 4096
tensorParallelSize: 4
pipelineParallelSize: 2
dataParallelSize: 2
threads: 3
loraFile: /adapters/adapters.yaml
maxLoras: 4
maxLoraRank: 32
nodes: 2
nodeRank: 0
leaderAddress: llama-0.llama
kvEventsPort: 5557
kvReplayPort: 5600
pod: llama-0
leaveSeconds: 5
drainSeconds: 60
startSeconds: 1800
probePort: 8001
logFile: /tmp/vllm.log
"""


def launched(tmp_path, text, *flags):
    file = tmp_path / "server.yaml"
    file.write_text(text)
    return parse(["--config", str(file), *flags])


def refused(tmp_path, capsys, text, *flags):
    with pytest.raises(SystemExit) as exit_:
        launched(tmp_path, text, *flags)
    assert exit_.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_every_key_has_a_flag_and_every_flag_a_key():
    flags = {ODD_KEYS.get(flag, camel(flag)) for group in FLAGS.values() for flag in group}
    assert flags | FLAG_LESS == set(KEYS)
    assert not flags & FLAG_LESS


def test_the_file_and_the_flags_say_the_same(tmp_path):
    by_key = {ODD_KEYS.get(flag, camel(flag)): flag for group in FLAGS.values() for flag in group}
    words = ["hub/llama", "--device", "gpu"]
    for line in EVERYTHING.split():
        if line.endswith(":") and line[:-1] in by_key:
            words.append(by_key[line[:-1]])
        elif words[-1].startswith("--") and words[-1] != "--device":
            words.append(line)
    assert launched(tmp_path, EVERYTHING) == parse(words)


def test_everything_is_told_to_vllm(tmp_path):
    settings = launched(tmp_path, EVERYTHING).settings
    arguments = serve_arguments(settings)
    assert arguments[0] == "hub/llama"
    told = dict(zip(arguments, [*arguments[1:], ""], strict=True))
    expected = {
        "--served-model-name": "llama",
        "--host": "0.0.0.0",  # noqa: S104 - nothing is bound
        "--port": "8000",
        "--block-size": "16",
        "--prefix-caching-hash-algo": "sha256_cbor",
        "--kv-cache-memory-bytes": str(8 << 30),
        "--num-gpu-blocks-override": "5000",
        "--tensor-parallel-size": "4",
        "--pipeline-parallel-size": "2",
        "--data-parallel-size": "2",
        "--max-loras": "4",
        "--max-lora-rank": "32",
        "--api-server-count": "1",
        "--nnodes": "2",
        "--node-rank": "0",
        "--master-addr": "llama-0.llama",
        "--shutdown-timeout": "60",
    }
    assert expected.items() <= told.items()
    assert "--enable-lora" in arguments
    assert environment(settings)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"


def test_a_flag_wins_over_the_file_and_the_file_over_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("POD_IP", "10.0.0.9")
    by_environment = launched(tmp_path, "model: m").settings
    by_file = launched(tmp_path, "{model: m, podIp: 10.0.0.8, blockSize: 64}").settings
    by_flag = launched(tmp_path, "{model: m, blockSize: 64}", "--block-size", "32").settings
    assert (by_environment.pod_ip, by_file.pod_ip) == ("10.0.0.9", "10.0.0.8")
    assert (by_file.block_size, by_flag.block_size) == (64, 32)


def test_arguments_for_vllm_may_stand_in_the_file(tmp_path):
    text = "{model: m, extra: [--seed, '1']}"
    assert launched(tmp_path, text).settings.extra == ("--seed", "1")
    assert launched(tmp_path, text, "--", "--seed", "2").settings.extra == ("--seed", "2")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model: m\nblokSize: 16", "unknown key blokSize; did you mean blockSize?"),
        ("model: m\nxyzzy: 16", "unknown key xyzzy; write one of model, servedModelName"),
        ("model: m\nblockSize: '16'", "blockSize: Expected `int | null`, got `str`"),
        ("model: m\nport: 70000", "port is 70000, but must be a port up to 65535"),
        ("model: m\ndevice: tpu", "device: Invalid enum value 'tpu'"),
        ("model: m\nhashAlgorithm: xxhash", "hashAlgorithm: Invalid enum value 'xxhash'"),
        ("model: m\nkvCacheBytes: lots", "kvCacheBytes: 'lots' is not a size"),
        ("model: m\nextra: [1]", "extra[0]: Expected `str`, got `int`"),
        ("model: m\nkvEventsPort: 8000\nport: 8000", "8000, but they must not overlap"),
        ("model: m\nport: 8000\nprobePort: 8000", "probe port is 8000, but they must"),
        ("model: m\nkvEventsPort: 8080\nprobePort: 8080", "8080, but they must not overlap"),
        (
            "model: m\ndataParallelSize: 2\nkvEventsPort: 5557\nkvReplayPort: 5558",
            "kv events port is 5557-5558 and kv replay port is 5558-5559, but they must not",
        ),
        (
            "model: m\ndataParallelSize: 3\nkvEventsPort: 7998\nport: 8000",
            "port is 8000 and kv events port is 7998-8000, but they must not overlap",
        ),
        (
            "model: m\ndataParallelSize: 2\nkvEventsPort: 65535",
            "kv events port is 65535, but must be a port up to 65534",
        ),
        (
            "model: m\nkvEventsPort: 5557\nkvReplayPort: 5558\nextra: [--data-parallel-size=2]",
            "is 5557-5558 and kv replay port is 5558-5559, but they must not overlap",
        ),
        ("model: m\nextra: [--port, '9000']", "--port must not be given to vLLM alone: set port"),
        ("model: m\nextra: [--host=0.0.0.0]", "--host must not be given to vLLM alone: set host"),
        (
            "model: m\nextra: [--shutdown_timeout, '60']",
            "--shutdown-timeout must not be given to vLLM alone: set drain",
        ),
        ("model: m\nkvReplayPort: 5558", "kv replay port requires a kv events port"),
        ("model: m\nleaveSeconds: -1", "leave seconds is -1, but must be 0 or more"),
        ("model: m\nstartSeconds: 0", "start seconds is 0, but must be positive"),
        ("model: m\nprobePort: -1", "probe port is -1"),
        ("model: m\nnodes: 2", "2 nodes require a leader address"),
        ("model: m\nnodeRank: 1", "node rank is 1, but must be 0 to 0: one less"),
        ("model: m\nmaxLoras: 0", "max loras is 0, but must be positive"),
        ("port: 8000", "no model: write a folder"),
        ("model: 3", "no model: write a folder"),
        ("- model", "must be a mapping, such as"),
        ("model: [", "is not YAML"),
    ],
)
def test_what_makes_no_sense_is_refused_with_place_and_remedy(tmp_path, capsys, text, says):
    assert says in refused(tmp_path, capsys, text)


def test_a_file_that_is_not_there_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        parse(["--config", str(tmp_path / "none.yaml")])
    assert f"{tmp_path / 'none.yaml'}: No such file" in capsys.readouterr().err


LWS = {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "llm-0.llm"}


def test_a_leaderworkerset_tells_its_nodes_apart(monkeypatch):
    for name, value in LWS.items():
        monkeypatch.setenv(name, value)
    arguments = serve_arguments(parse(["m"]).settings)
    assert "--headless" in arguments
    told = dict(zip(arguments, [*arguments[1:], ""], strict=True))
    expected = {"--nnodes": "2", "--node-rank": "1", "--master-addr": "llm-0.llm"}
    assert (expected | {"--pipeline-parallel-size": "2"}).items() <= told.items()
    assert "--headless" not in serve_arguments(parse(["m", "--node-rank", "0"]).settings)


def test_an_engine_for_another_nodes_server_answers_nothing_itself():
    settings = parse(["m", "--lora-file", "l", "--", "--headless"]).settings
    assert not settings.serves
    arguments = serve_arguments(settings)
    assert arguments.count("--headless") == 1
    assert "--api-server-count" not in arguments  # vLLM refuses both


def test_every_rank_has_ports_of_its_own(tmp_path):
    text = "{model: m, dataParallelSize: 2, kvEventsPort: 5557, kvReplayPort: 5559, port: 5561}"
    launch = launched(tmp_path, text, "--probe-port", "5562")
    assert [*launch.settings.ports["kv replay port"]] == [5559, 5560]
    free = launched(tmp_path, "{model: m, port: 0, probePort: 0}")
    assert (free.settings.port, free.life.probe_port) == (0, 0)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"LWS_GROUP_SIZE": "2"}, "LWS_GROUP_SIZE is set, but LWS_WORKER_INDEX is not"),
        (LWS | {"LWS_WORKER_INDEX": "one"}, "LWS_WORKER_INDEX is 'one', but must be a number"),
    ],
)
def test_a_broken_leaderworkerset_is_refused(variables, says):
    with pytest.raises(Refused, match=re.escape(says)):
        command.from_environment(variables)


def test_a_group_of_one_is_no_group():
    assert command.from_environment({"LWS_GROUP_SIZE": "1", "POD_IP": ""}) == {}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"pod_ip": "10.0.0.1"}, "kv@10.0.0.1:8000@llama"),
        ({"pod_ip": "fd00::1"}, "kv@[fd00::1]:8000@llama"),
        ({"pod_ip": "10.0.0.1", "pod": "llama-0"}, "kv@llama-0@llama"),
    ],
)
def test_the_topic_has_the_pods_identity(given, expected):
    settings = Settings(model="m", served_model_name="llama", device="gpu", port=8000, **given)
    assert topic(settings) == expected


@pytest.mark.parametrize(
    ("extra", "variables", "expected"),
    [
        ((), {}, None),
        ((), {"VLLM_API_KEY": "k"}, "k"),
        (("--api-key", "a"), {"VLLM_API_KEY": "k"}, "a"),
        (("--api-key=a", "--seed", "1"), {}, "a"),
        (("--api_key", "a", "b"), {}, "a"),
        (("--api-key", "a", "--api-key", "b"), {}, "b"),
    ],
)
def test_the_engines_key_is_known(extra, variables, expected):
    assert api_key(extra, variables) == expected


def said(default):
    if default is None or default in {"", ()}:
        return ""
    return f"`{default:g}`" if isinstance(default, float) else f"`{str(default).lower()}`"


def test_the_document_has_every_key_with_its_default():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) ?\|", DOCUMENT.read_text(), re.MULTILINE)
    given = [(field, dict(rows)[field.encode_name]) for p in PARTS for field in fields(p)]
    assert sorted(key for key, _ in rows) == sorted(KEYS)
    for field, default in given:
        if not field.required and field.encode_name not in SAID_OTHERWISE:
            assert default == said(field.default), field.encode_name


def test_sizes_are_refused_in_argparses_way():
    with pytest.raises(argparse.ArgumentTypeError):
        command.size("12Q")
