"""Pools of model servers that the demo can start, each with a workload that fits it.

The simulated ones keep the shape of a real deployment: an 8B model in 16-bit weights on a 40 GB
card computes about 10,000 prompt tokens a second and has room for about 150,000 tokens of KV
cache (128 KiB each). Two choices shorten the show and are named in the report: users think for
seconds instead of minutes, and documents are asked about within half a minute of each other.
"""

import sys
from pathlib import Path

import msgspec

from epp.demo.requirements import EngineKind
from epp.demo.workload import Workload

SIMULATED_MODEL = "demo-8b"
TINY_MODEL = "demo-small"
SPEED = 0.4
"""The speed of a simulated server; 1 is the simulator's, an H100's: 40 us a prompt token."""
QUICK = 0.5
"""The share of the standard time, and so of the conversations, that `--quick` plays."""


class DemoPool(msgspec.Struct, frozen=True, kw_only=True):
    """Model servers and their workload."""

    kind: EngineKind
    """The engine of the servers."""
    title: str
    """What the report calls them."""
    model: str
    """The model that requests name."""
    servers: int
    """How many there are."""
    block_size: int
    """Tokens of a block of a server's cache."""
    cache_tokens: int
    """Tokens of a server's cache."""
    workload: Workload
    """What is sent to them."""
    argv: tuple[str, ...]
    """The command that starts one, which prints its port as JSON."""
    prepare: tuple[str, ...] = ()
    """A command that runs once before; empty: none."""
    every_second: tuple[str, ...] = ()
    """Further flags of every second server."""
    prompt_rate: float | None = None
    """Prompt tokens a second of a server that does nothing else; None if unknown."""
    start_seconds: float = 30.0
    """The deadline of a start."""


class Size(msgspec.Struct, frozen=True):
    """The size that the command line asks for; None: the default of the kind of model server."""

    servers: int | None = None
    seconds: float | None = None
    conversations: int | None = None
    quick: bool = False


def choose_pool(kind: EngineKind, size: Size, directory: Path) -> DemoPool:
    """Return servers and workload; arrivals per server are the same for every size."""
    standard = _simulated() if kind == "simulator" else _vllm(directory)
    servers = size.servers or standard.servers
    workload = _scaled(standard.workload, size, servers / standard.servers)
    return msgspec.structs.replace(standard, servers=servers, workload=workload)


def _simulated() -> DemoPool:
    blocks, block_size = 9216, 16
    flags = {
        "--port": 0,
        "--served-model-name": SIMULATED_MODEL,
        "--num-gpu-blocks-override": blocks,
        "--block-size": block_size,
        "--max-num-batched-tokens": 8192,
        "--speed": SPEED,
    }
    return DemoPool(
        kind="simulator",
        title="a simulated 8B model on a 40 GB A100-class GPU",
        model=SIMULATED_MODEL,
        servers=4,
        block_size=block_size,
        cache_tokens=blocks * block_size,
        workload=Workload(
            conversations=115, seconds=26, dossiers=80, sections=20, gap=3.0, answer=(20, 48)
        ),
        argv=(sys.executable, "-P", "-m", "model_server.simulator", *flat(flags)),
        prompt_rate=SPEED * 1e6 / 40,
    )


def _vllm(directory: Path) -> DemoPool:
    blocks, block_size = 1024, 32
    folder = str(directory / TINY_MODEL)
    flags = {
        "--served-model-name": TINY_MODEL,
        "--num-gpu-blocks": blocks,
        "--block-size": block_size,
        "--max-model-len": 8192,
    }
    return DemoPool(
        kind="vllm",
        title="vLLM on the CPU with a 26M-parameter model of random weights",
        model=TINY_MODEL,
        servers=2,
        block_size=block_size,
        cache_tokens=blocks * block_size,
        workload=Workload(
            conversations=14,
            seconds=45,
            dossiers=9,
            sections=5,
            turns=(3, 5),
            gap=4.0,
            answer=(8, 16),
        ),
        argv=(sys.executable, "-P", "-m", "model_server.launch", folder, *flat(flags)),
        prepare=(sys.executable, "-P", "-m", "model_server.tiny_model", folder, "--size", "small"),
        start_seconds=300.0,
    )


def flat(flags: dict[str, object]) -> tuple[str, ...]:
    """Return flags and their values as a command line."""
    return tuple(text for name, value in flags.items() for text in (name, str(value)))


def _scaled(standard: Workload, size: Size, width: float) -> Workload:
    """Scale conversations and documents with the number of servers (`width`) and with the time."""
    seconds = size.seconds or standard.seconds * (QUICK if size.quick else 1.0)
    count = size.conversations or round(standard.rate * seconds * width)
    return msgspec.structs.replace(
        standard,
        conversations=max(1, count),
        seconds=seconds,
        dossiers=max(1, round(standard.dossiers * width * seconds / standard.seconds)),
    )
