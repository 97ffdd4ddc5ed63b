"""The settings of a model server, checked before minutes are spent on loading it.

Nothing here touches a file, a process, the environment or vLLM itself.
"""

from collections.abc import Mapping
from itertools import combinations
from typing import Literal

import msgspec

from model_server import extra

Device = Literal["cpu", "gpu"]
HashAlgorithm = Literal["sha256", "sha256_cbor"]

CPU_BLOCK_STEP = 32
"""vLLM's CPU attention takes blocks of a multiple of 32 tokens and fails at start on others."""
MAX_PORT = 65535

COUNTS = (
    "block_size",
    "kv_cache_bytes",
    "num_gpu_blocks",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "threads",
    "max_loras",
    "max_lora_rank",
    "nodes",
    "kv_events_port",
    "kv_replay_port",
)
"""The fields of Settings that are positive when they are set."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The settings that vLLM gets. `None` leaves the choice to vLLM.

    Raises `ValueError` for settings with which vLLM would fail half a minute after its start.
    """

    model: str
    """Folder or hub name of the model."""
    served_model_name: str
    """The name that clients put in `model`."""
    device: Device
    host: str = "127.0.0.1"
    port: int
    block_size: int | None = None
    """Tokens a KV block; vLLM's default is 16 on a GPU and 128 on a CPU."""
    hash_algorithm: HashAlgorithm = "sha256"
    """How blocks are hashed. Both are collision-safe: no client can craft a prompt that hits blocks
    of another one. Other languages can compute `sha256_cbor` too."""
    kv_cache_bytes: int | None = None
    """Bytes of KV cache. On a CPU vLLM takes nearly all of the machine's memory without it."""
    num_gpu_blocks: int | None = None
    """Exact number of KV blocks, the null block included; overrides `kv_cache_bytes`."""
    max_model_len: int | None = None
    """Longest prompt plus output in tokens; the model's own limit by default."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    tensor_parallel_size: int | None = None
    """GPUs of one node that share each layer."""
    pipeline_parallel_size: int | None = None
    """Groups of GPUs that share the layers among them; `nodes` by default."""
    data_parallel_size: int | None = None
    """Engines with a cache each. Rank R publishes on `kv_events_port` + R."""
    threads: int = 1
    """Compute threads on a CPU."""
    offline: bool = False
    """Never ask a model hub for anything."""
    lora_file: str | None = None
    """YAML with the LoRA adapters to serve, followed while the server runs. None: LoRA is off."""
    max_loras: int | None = None
    """Different adapters in one step; vLLM's default is 1."""
    max_lora_rank: int | None = None
    """Their greatest rank; vLLM's default is 16."""
    nodes: int = 1
    """Nodes that serve as one."""
    node_rank: int = 0
    """Which of them this is. Only 0 answers requests."""
    leader_address: str | None = None
    """Host name or address of node 0."""
    kv_events_port: int | None = None
    """Where changes of the KV cache are published (ZMQ), on every IPv4 interface: vLLM binds no
    other. None: nowhere. Pickers look for 5557, plus the data-parallel rank."""
    kv_replay_port: int | None = None
    """The port, plus the rank, at which the last 10,000 steps of them are sent again on request."""
    pod: str | None = None
    """What the topic of the changes calls this server; None: `pod_ip` and `port`."""
    pod_ip: str = "127.0.0.1"
    drain_seconds: int = 5
    """How long running requests may continue once vLLM is told to end."""
    extra: tuple[str, ...] = ()
    """Arguments handed to `vllm serve` as they are; the last of a repeated flag wins. Those of
    `model_server.extra.OWN` are refused."""

    def __post_init__(self) -> None:
        for name in COUNTS:
            count = getattr(self, name)
            if count is not None and count <= 0:
                raise ValueError(f"{name.replace('_', ' ')} is {count}, but must be positive")
        for check in (self._check_ports, self._check_drain, self._check_blocks, self._check_nodes):
            check()
        extra.check(self.extra)

    @property
    def serves(self) -> bool:
        """Whether this node answers requests."""
        return self.node_rank == 0 and "--headless" not in extra.flags(self.extra)

    @property
    def tls(self) -> bool:
        """Whether it answers them over TLS."""
        return "--ssl-certfile" in extra.flags(self.extra)

    @property
    def ports(self) -> dict[str, range]:
        """The ports that vLLM binds, by purpose."""
        told = extra.flags(self.extra).get("--data-parallel-size", "")
        ranks = (int(told) if told.isdecimal() else self.data_parallel_size) or 1
        named = {"port": (self.port, 1), "kv events port": (self.kv_events_port, ranks)}
        named["kv replay port"] = (self.kv_replay_port, ranks)
        return {
            name: range(port, port + count)
            for name, (port, count) in named.items()
            if port is not None
        }

    @property
    def lora(self) -> bool:
        """Whether adapters can be loaded."""
        return self.lora_file is not None or bool(self.max_loras or self.max_lora_rank)

    def _check_ports(self) -> None:
        for name, ports in self.ports.items():
            most = MAX_PORT + 1 - len(ports)
            if not 0 <= ports.start <= most:
                raise ValueError(f"{name} is {ports.start}, but must be a port up to {most}")
        check_apart(self.ports)
        if self.kv_replay_port is not None and self.kv_events_port is None:
            raise ValueError(
                "kv replay port requires a kv events port: without it there is nothing to replay"
            )

    def _check_drain(self) -> None:
        if self.drain_seconds < 0:
            raise ValueError(f"drain seconds is {self.drain_seconds}, but must be 0 or more")

    def _check_blocks(self) -> None:
        if self.device == "cpu" and (self.block_size or 0) % CPU_BLOCK_STEP:
            raise ValueError(
                f"block size is {self.block_size}, but on a CPU must be a multiple of"
                f" {CPU_BLOCK_STEP}"
            )
        if not (self.num_gpu_blocks and self.block_size and self.max_model_len):
            return
        needed = -(-self.max_model_len // self.block_size) + 1
        if self.num_gpu_blocks < needed:
            raise ValueError(
                f"{self.num_gpu_blocks} blocks of {self.block_size} tokens are too few: one request"
                f" of {self.max_model_len} tokens needs {needed}, including the null block"
            )

    def _check_nodes(self) -> None:
        if not 0 <= self.node_rank < self.nodes:
            raise ValueError(
                f"node rank is {self.node_rank}, but must be 0 to {self.nodes - 1}: one less"
                " than the number of nodes"
            )
        if self.nodes > 1 and not self.leader_address:
            raise ValueError(
                f"{self.nodes} nodes require a leader address: the host name of the node of rank 0"
            )


def check_apart(named: Mapping[str, range]) -> None:
    """Raise `ValueError` if two want the same port; 0 is any free one."""
    for (one, first), (other, second) in combinations(named.items(), 2):
        common = first.start < second.stop and second.start < first.stop
        if common and first.start and second.start:
            raise ValueError(
                f"{one} is {_said(first)} and {other} is {_said(second)}, but they must not overlap"
            )


def _said(ports: range) -> str:
    return f"{ports.start}-{ports[-1]}" if len(ports) > 1 else str(ports.start)


class Life(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """When a server counts as started, ready and done; all times are in seconds.

    Raises `ValueError` for impossible values.
    """

    probe_port: int | None = None
    """Where readiness and liveness are asked for, on `host`; 0 takes a free one. None: nowhere."""
    start_seconds: float = 600.0
    """To become healthy; then the start is given up."""
    leave_seconds: float = 0.0
    """After SIGTERM: not ready any more, and still serving whatever comes, for routers to see it.
    A preStop hook that sleeps does the same."""
    log_file: str | None = None
    """The engine's log; None: stderr."""

    def __post_init__(self) -> None:
        if self.start_seconds <= 0:
            raise ValueError(f"start seconds is {self.start_seconds:g}, but must be positive")
        if self.leave_seconds < 0:
            raise ValueError(f"leave seconds is {self.leave_seconds:g}, but must be 0 or more")
        if self.probe_port is not None and not 0 <= self.probe_port <= MAX_PORT:
            raise ValueError(
                f"probe port is {self.probe_port}, but must be a port up to {MAX_PORT}"
            )

    @property
    def ports(self) -> dict[str, range]:
        """The ports that the launcher itself binds."""
        port = self.probe_port
        return {} if port is None else {"probe port": range(port, port + 1)}
