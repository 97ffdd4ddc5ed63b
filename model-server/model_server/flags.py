"""What `vllm serve` is told: its arguments and environment as functions of one frozen value.

Nothing here touches a file, a process, the environment or vLLM itself. Flags are those of 0.32.
"""

import json
from typing import Literal

import msgspec

Device = Literal["cpu", "gpu"]

CPU_BLOCK_STEP = 32
"""vLLM's CPU attention takes blocks of a multiple of 32 tokens and fails at start on others."""

COUNTS = (
    "block_size",
    "kv_cache_bytes",
    "num_gpu_blocks",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "threads",
    "kv_events_port",
    "kv_replay_port",
)
"""The fields of Settings that are positive when they are set."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One model server. `None` leaves the choice to vLLM.

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
    kv_cache_bytes: int | None = None
    """Bytes of KV cache. On a CPU vLLM takes nearly all of the machine's memory without it."""
    num_gpu_blocks: int | None = None
    """Exact number of KV blocks, the null block included; overrides `kv_cache_bytes`."""
    max_model_len: int | None = None
    """Longest prompt plus output in tokens; the model's own limit by default."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    threads: int = 1
    """Compute threads on a CPU."""
    offline: bool = False
    """Never ask a model hub for anything."""
    kv_events_port: int | None = None
    """Where changes of the KV cache are published (ZMQ), on every interface: vLLM binds no other.
    None: nowhere. Pickers look for 5557, plus the data-parallel rank."""
    kv_replay_port: int | None = None
    """Where the last 10,000 steps of them are sent again, to those who missed some."""
    pod: str = "pod"
    """What the topic of the changes calls this server."""
    drain_seconds: int = 5
    """How long running requests may go on after SIGTERM."""
    extra: tuple[str, ...] = ()
    """Arguments handed to `vllm serve` as they are; the last of a repeated flag wins."""

    def __post_init__(self) -> None:
        for name in COUNTS:
            count = getattr(self, name)
            if count is not None and count <= 0:
                raise ValueError(f"{name.replace('_', ' ')} {count}: a positive number is needed")
        if self.drain_seconds < 0:
            raise ValueError(f"drain seconds {self.drain_seconds}: 0 or more are needed")
        if self.device == "cpu" and (self.block_size or 0) % CPU_BLOCK_STEP:
            raise ValueError(
                f"block size {self.block_size}: on a CPU it is a multiple of {CPU_BLOCK_STEP}"
            )
        self._check_room()

    def _check_room(self) -> None:
        if not (self.num_gpu_blocks and self.block_size and self.max_model_len):
            return
        needed = -(-self.max_model_len // self.block_size) + 1
        if self.num_gpu_blocks < needed:
            raise ValueError(
                f"{self.num_gpu_blocks} blocks of {self.block_size}: one request of"
                f" {self.max_model_len} tokens needs {needed} with the null block"
            )


def serve_arguments(settings: Settings) -> list[str]:
    """Return everything after `vllm serve`."""
    chosen = {
        "--served-model-name": settings.served_model_name,
        "--host": settings.host,
        "--port": settings.port,
        "--block-size": settings.block_size,
        "--kv-cache-memory-bytes": settings.kv_cache_bytes,
        "--num-gpu-blocks-override": settings.num_gpu_blocks,
        "--max-model-len": settings.max_model_len,
        "--max-num-seqs": settings.max_num_seqs,
        "--max-num-batched-tokens": settings.max_num_batched_tokens,
        # Collision-safe: nobody can craft a prompt that hits another one's blocks.
        "--prefix-caching-hash-algo": "sha256",
        "--shutdown-timeout": settings.drain_seconds,
        "--kv-events-config": _kv_events(settings),
    }
    switches = [
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",  # else usage says nothing of cached tokens
        "--disable-uvicorn-access-log",  # a scrape a second would fill it
        *(["--enforce-eager"] if settings.device == "cpu" else []),  # compiling takes minutes there
    ]
    pairs = [text for flag, v in chosen.items() if v is not None for text in (flag, str(v))]
    return [settings.model, *pairs, *switches, *settings.extra]


def _kv_events(settings: Settings) -> str | None:
    """Return vLLM's `KVEventsConfig` as JSON; None where nothing is published."""
    if settings.kv_events_port is None:
        return None
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{settings.kv_events_port}",
        "topic": f"kv@{settings.pod}@{settings.served_model_name}",
    }
    if settings.kv_replay_port is not None:
        config["replay_endpoint"] = f"tcp://*:{settings.kv_replay_port}"
    return json.dumps(config)


def environment(settings: Settings) -> dict[str, str]:
    """Return the variables that vLLM needs on top of the caller's."""
    variables = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if settings.offline:
        variables |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if settings.device == "cpu":
        # "auto" would bind the worker of every server on the machine to core 0.
        variables |= {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(settings.threads),
        }
    return variables
