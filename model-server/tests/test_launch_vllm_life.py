"""The launcher's probes, adapters and end with real vLLM on a CPU, one server for all of them."""

import asyncio
import json
import select
import subprocess
import sys
from importlib import import_module

import aiohttp
import psutil
import pytest
from model_server.flags import serve_arguments
from model_server.settings import Settings

from tests.held_port import held_port

from .launched import all_gone, ask, eventually

pytestmark = pytest.mark.vllm
HIDDEN, LAYERS, RANK = 64, 2, 4
ANSWER = 24


def build_adapter(folder, seed):
    """A random LoRA adapter for the tiny model."""
    torch, safetensors = import_module("torch"), import_module("safetensors.torch")
    torch.manual_seed(seed)
    folder.mkdir()
    weights = {
        f"base_model.model.model.layers.{layer}.self_attn.{name}_proj.lora_{half}.weight": (
            torch.randn((RANK, HIDDEN) if half == "A" else (HIDDEN, RANK))
        )
        for layer in range(LAYERS)
        for name in "qv"
        for half in "AB"
    }
    safetensors.save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 64, "bias": "none"}
    config |= {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


class Server:
    """A launcher with real vLLM, its probes' port and the file of adapters that it follows."""

    def __init__(self, folder, probes):
        self.folder = folder
        self.probes = probes
        self.adapters = folder / "adapters.yaml"
        self.seen_while_loading = set()

    def want(self, **adapters):
        entries = [{"name": name, "path": path} for name, path in adapters.items()]
        draft = self.folder / "draft"
        draft.write_text(json.dumps({"adapters": entries}))
        draft.replace(self.adapters)

    def start(self, model):
        flags = {
            "--num-gpu-blocks": 257,
            "--max-model-len": 4096,
            "--lora-file": self.adapters,
            "--max-loras": 2,
            "--max-lora-rank": 8,
            "--probe-port": self.probes,
            "--leave-seconds": 5,
            "--drain-seconds": 60,
            "--log-file": self.folder / "vllm.log",
        }
        words = [str(word) for pair in flags.items() for word in pair]
        # Some virtual machines announce instructions for bfloat16 that end vLLM (SIGILL).
        words += ["--", "--dtype", "float32"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "model_server.launch", model, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def load(self):
        """Ask the probes until the line is there, and keep what they said."""
        while not select.select([self.process.stdout], [], [], 0.2)[0]:
            both = tuple(ask(self.probes, path)[0] for path in ("/ready", "/live"))
            self.seen_while_loading.add(both)
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.url = f"http://127.0.0.1:{json.loads(line)['port']}"

    def status(self):
        return json.loads(ask(self.probes, "/status")[1])

    async def complete(self, model):
        body = {"model": model, "prompt": "def main", "max_tokens": ANSWER}
        body |= {"temperature": 0, "ignore_eos": True}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/v1/completions", json=body) as response,
        ):
            said = await response.json()
            return response.status, said["choices"][0]["text"] if "choices" in said else ""


@pytest.fixture(scope="module")
def probe_port():
    with held_port() as port:
        yield port


@pytest.fixture(scope="module")
def server(tmp_path_factory, probe_port):
    folder = tmp_path_factory.mktemp("launched")
    model = folder / "tiny"
    command = [sys.executable, "-m", "model_server.tiny_model", str(model), "--size", "tiny"]
    subprocess.run(command, check=True, capture_output=True)
    made = Server(folder, probe_port)
    made.first, made.second = (build_adapter(folder / name, seed) for seed, name in enumerate("ab"))
    made.want(a=made.first)
    made.start(str(model))
    try:
        made.load()
        yield made
    finally:
        if made.process.poll() is None:
            made.process.terminate()
        made.process.communicate()


def test_it_is_alive_at_once_and_ready_when_it_serves(server):
    # Before the probes' port is bound nobody answers: 0.
    assert server.seen_while_loading <= {(0, 0), (0, 200), (503, 200), (200, 200)}
    assert (503, 200) in server.seen_while_loading
    eventually(lambda: ask(server.probes, "/ready") == (200, b'{"ok":true}'))


async def test_adapters_come_change_and_go(server):
    status, base = await server.complete("tiny")
    assert status == 200
    status, first = await server.complete("a")
    assert status == 200
    assert first != base
    server.want(a=server.second, b=server.first, none=str(server.folder / "none"))
    eventually(lambda: server.status()["adapters"].get("b", {}).get("loaded"))
    eventually(lambda: server.status()["adapters"]["none"].get("error"))
    assert server.status()["adapters"]["a"] == {"path": server.second, "loaded": True}
    assert await server.complete("b") == (200, first)
    status, second = await server.complete("a")
    assert status == 200
    assert second not in {first, base}
    eventually(lambda: ask(server.probes, "/ready")[0] == 200)
    server.want(b=server.first)
    eventually(lambda: set(server.status()["adapters"]) == {"b"})
    assert (await server.complete("a"))[0] == 404
    assert (await server.complete("b"))[0] == 200


async def test_it_leaves_under_traffic_and_no_request_fails(server):
    processes = psutil.Process(server.process.pid).children(recursive=True)
    answers, gone = [], asyncio.Event()

    async def client(model):
        while not gone.is_set():
            answers.append((await server.complete(model))[0])

    async def watch():
        while (await asyncio.to_thread(ask, server.probes, "/ready"))[0] == 200:
            await asyncio.sleep(0.1)
        gone.set()

    async with asyncio.TaskGroup() as group:
        for model in ("tiny", "b", "tiny", "b"):
            group.create_task(client(model))
        async with asyncio.timeout(60):
            while len(answers) < 12:
                await asyncio.sleep(0.05)
        group.create_task(watch())
        server.process.terminate()
    assert set(answers) == {200}
    assert await asyncio.to_thread(server.process.wait, 90) == 0
    eventually(lambda: all_gone(processes))


VARIANTS = {
    "cpu": {"device": "cpu", "block_size": 32, "kv_cache_bytes": 1 << 28},
    "gpu": {"device": "gpu", "tensor_parallel_size": 2, "hash_algorithm": "sha256_cbor"},
    "events": {"device": "gpu", "kv_events_port": 5557, "kv_replay_port": 5600},
    "lora": {"device": "gpu", "lora_file": "a.yaml", "max_loras": 4, "max_lora_rank": 32},
    "ranks": {"device": "gpu", "data_parallel_size": 4, "lora_file": "a.yaml"},
    "worker": {"device": "gpu", "nodes": 2, "node_rank": 1, "leader_address": "leader"},
}


PARSER = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
for arguments in json.load(sys.stdin):
    given = parser.parse_args(arguments)
    events = given.kv_events_config is not None
    read = given.headless, given.nnodes, bool(given.enable_lora), events  # not given: None
    print("read", json.dumps(read))
"""


def test_vllms_own_parser_takes_every_flag():
    common = {"model": "m", "served_model_name": "m", "port": 8000}
    every = [Settings(**common, **variant) for variant in VARIANTS.values()]
    told = json.dumps([serve_arguments(settings) for settings in every])
    done = subprocess.run(
        [sys.executable, "-c", PARSER], input=told, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    read = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("read ")]
    assert read == [
        [not each.serves, each.nodes, each.lora, each.kv_events_port is not None] for each in every
    ]
