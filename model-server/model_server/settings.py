"""The one typed file: what a model server is, checked before minutes are spent on loading it.

Nothing here touches a file, a process, the environment or vLLM itself.
"""

from typing import Literal

import msgspec

Device = Literal["cpu", "gpu"]
HashAlgorithm = Literal["sha256", "sha256_cbor"]

CPU_BLOCK_STEP = 32
"""vLLM's CPU attention takes blocks of a multiple of 32 tokens and fails at start on others."""
MOST_PORT = 65535

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
    """What vLLM is told. `None` leaves the choice to vLLM.

    Raises ValueError where vLLM would fail half a minute after its start.
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
    """How blocks are named. Both are collision-safe: nobody can craft a prompt that hits another
    one's blocks. `sha256_cbor` is the one that other languages can compute too."""
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
    """Where changes of the KV cache are published (ZMQ), on every interface: vLLM binds no other.
    None: nowhere. Pickers look for 5557, plus the data-parallel rank."""
    kv_replay_port: int | None = None
    """Where the last 10,000 steps of them are sent again, to those who missed some."""
    pod: str | None = None
    """What the topic of the changes calls this server; None: `pod_ip` and `port`."""
    pod_ip: str = "127.0.0.1"
    drain_seconds: int = 5
    """How long running requests may go on once vLLM is told to end."""
    extra: tuple[str, ...] = ()
    """Arguments handed to `vllm serve` as they are; the last of a repeated flag wins."""

    def __post_init__(self) -> None:
        for name in COUNTS:
            count = getattr(self, name)
            if count is not None and count <= 0:
                raise ValueError(f"{name.replace('_', ' ')} {count}: a positive number is needed")
        for check in (self._check_ports, self._check_drain, self._check_blocks, self._check_nodes):
            check()

    @property
    def serves(self) -> bool:
        """Whether this node answers requests."""
        return self.node_rank == 0

    @property
    def lora(self) -> bool:
        """Whether adapters can be loaded."""
        return self.lora_file is not None or bool(self.max_loras or self.max_lora_rank)

    def _check_ports(self) -> None:
        named = {"port": self.port, "kv events port": self.kv_events_port}
        named["kv replay port"] = self.kv_replay_port
        last = (self.data_parallel_size or 1) - 1
        for name, port in named.items():
            if port is not None and not 0 <= port <= MOST_PORT - last * (name != "port"):
                raise ValueError(f"{name} {port}: a number up to {MOST_PORT} is needed")
        given = [port for port in named.values() if port]
        if len(given) > len(set(given)):
            raise ValueError(f"ports {', '.join(map(str, given))}: they must differ")
        if self.kv_replay_port is not None and self.kv_events_port is None:
            raise ValueError("kv replay port without a kv events port: nothing would be sent again")

    def _check_drain(self) -> None:
        if self.drain_seconds < 0:
            raise ValueError(f"drain seconds {self.drain_seconds}: 0 or more are needed")

    def _check_blocks(self) -> None:
        if self.device == "cpu" and (self.block_size or 0) % CPU_BLOCK_STEP:
            raise ValueError(
                f"block size {self.block_size}: on a CPU it is a multiple of {CPU_BLOCK_STEP}"
            )
        if not (self.num_gpu_blocks and self.block_size and self.max_model_len):
            return
        needed = -(-self.max_model_len // self.block_size) + 1
        if self.num_gpu_blocks < needed:
            raise ValueError(
                f"{self.num_gpu_blocks} blocks of {self.block_size}: one request of"
                f" {self.max_model_len} tokens needs {needed} with the null block"
            )

    def _check_nodes(self) -> None:
        if not 0 <= self.node_rank < self.nodes:
            raise ValueError(
                f"node rank {self.node_rank} of {self.nodes} nodes: from 0 to {self.nodes - 1}"
            )
        if self.nodes > 1 and not self.leader_address:
            raise ValueError(
                f"{self.nodes} nodes need a leader address: the host name of the node of rank 0"
            )


class Life(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """When a server counts as started, ready and done; seconds throughout.

    Raises ValueError for what cannot be.
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
            raise ValueError(f"start seconds {self.start_seconds:g}: a positive number is needed")
        if self.leave_seconds < 0:
            raise ValueError(f"leave seconds {self.leave_seconds:g}: 0 or more are needed")
        if self.probe_port is not None and not 0 <= self.probe_port <= MOST_PORT:
            raise ValueError(f"probe port {self.probe_port}: a number up to {MOST_PORT} is needed")
