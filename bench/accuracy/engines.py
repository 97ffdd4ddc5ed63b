"""The model servers under measurement: real vLLM on the CPU, or the simulator."""

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Literal

import msgspec

from epp.demo.pools import flat
from epp.errors import ConfigError
from epp.gateway.processes import Process, spawn

EngineName = Literal["vllm", "simulator"]
MODEL = "tiny"
BLOCK = 32
BLOCKS = 256
CONTEXT = 4096
MODELS = Path(__file__).parents[2] / ".cache" / "models"
WORDS = 200
_SHARED: dict[str, object] = {
    "--served-model-name": MODEL,
    "--block-size": BLOCK,
    "--max-model-len": CONTEXT,
    "--max-num-seqs": 16,
}
"""Flags of either engine."""
_BUILD_SECONDS = 180.0
_VARIABLES = {"VLLM_SERVER_DEV_MODE": "1"}  # for /reset_prefix_cache


class Ports(msgspec.Struct, frozen=True):
    """Where one server listens, publishes what its cache does, and repeats that."""

    http: int
    events: int
    replay: int

    @property
    def target(self) -> str:
        """`ip:port`."""
        return f"127.0.0.1:{self.http}"


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of server with `BLOCKS` blocks of `BLOCK` tokens, the null block included.

    `grace` is how long one takes to end, `start_seconds` how long to start at most.
    """

    name: EngineName
    title: str
    start_seconds: float
    grace: float

    @property
    def folder(self) -> Path:
        """The model, where there is one."""
        return MODELS / MODEL

    async def prepare(self, log_dir: Path) -> None:
        """Build the model where it is not there yet. Raises `ConfigError`."""
        if self.name == "simulator":
            return
        argv = (sys.executable, "-m", "model_server.tiny_model", str(self.folder))
        builder = await spawn("build", (*argv, "--size", MODEL), log_dir=log_dir)
        if await builder.wait_exit(_BUILD_SECONDS) != 0:
            raise ConfigError(builder.log_path.read_text(encoding="utf-8"))

    async def start(self, ports: Ports, log_dir: Path) -> Process:
        """Start a server on its ports; it is healthy on return."""
        argv = self._simulator(ports) if self.name == "simulator" else self._vllm(ports)
        process = await spawn(f"server-{ports.http}", argv, log_dir=log_dir, env=_VARIABLES)
        try:
            await process.wait_ready_line(self.start_seconds)
        except BaseException:
            await process.stop(0)
            raise
        return process

    def words(self) -> Sequence[int]:
        """Tokens that any row of reads back as itself: whole words, each with its space.

        Real models write such text nearly always; random weights, left alone, do not.
        """
        if self.name == "simulator":
            return ()
        tokenizers = import_module("tokenizers")
        tokenizer = tokenizers.Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        words = sorted(word for word in vocabulary if word[0] == "Ġ" and word[1:].isalpha())
        ids = [
            vocabulary[word]
            for word in words
            if tokenizer.encode(f" {word[1:]}").ids == [vocabulary[word]]
        ]
        return ids[:: max(1, len(ids) // WORDS)][:WORDS]

    def _simulator(self, ports: Ports) -> tuple[str, ...]:
        flags = _SHARED | {"--port": ports.http, "--num-gpu-blocks-override": BLOCKS}
        return (sys.executable, "-m", "model_server.simulator", *flat(flags))

    def _vllm(self, ports: Ports) -> tuple[str, ...]:
        flags = _SHARED | {
            "--port": ports.http,
            "--num-gpu-blocks": BLOCKS,
            "--kv-cache-bytes": "64M",
            "--drain-seconds": 1,
        }
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://127.0.0.1:{ports.events}",
            "replay_endpoint": f"tcp://127.0.0.1:{ports.replay}",
            "topic": f"kv@{ports.target}@{MODEL}",
        }
        launch = (sys.executable, "-m", "model_server.launch", str(self.folder), *flat(flags))
        return (*launch, "--", "--kv-events-config", json.dumps(events))


ENGINES: dict[EngineName, Engine] = {
    "vllm": Engine(name="vllm", title="real vLLM on the CPU", start_seconds=300.0, grace=15.0),
    "simulator": Engine(name="simulator", title="simulated servers", start_seconds=30.0, grace=1.0),
}
