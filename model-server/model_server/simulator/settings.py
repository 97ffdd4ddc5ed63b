"""Every setting of the simulator, with unit and default. Knows no flags and no files."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from model_server.simulator.kv_config import KvEventsConfig
from model_server.simulator.strain import Strain


@dataclass(frozen=True, slots=True)
class Speed:
    """Cost of one engine step; the defaults resemble an 8B model on one H100.

    step = step_ms + prefill_us_per_token * prefill tokens
         + attention_ns * sum(chunk tokens * mean context of the chunk)
         + decode_us_per_seq * decoding sequences
         + decode_ns_per_context_token * their context tokens, all divided by `factor`.
    """

    step_ms: float = 6.0
    prefill_us_per_token: float = 40.0
    attention_ns: float = 1.75
    decode_us_per_seq: float = 20.0
    decode_ns_per_context_token: float = 56.0
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine may hold and do in one step; names and meanings are vLLM's."""

    block_size: int = 16
    num_gpu_blocks: int = 8192
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    max_model_len: int = 131072
    max_loras: int = 1

    @property
    def context_len(self) -> int:
        """Longest sequence in tokens: `max_model_len`, or what the usable blocks can hold."""
        return min(self.max_model_len, (self.num_gpu_blocks - 1) * self.block_size)


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration; `port` 0 means any free port, times are seconds.

    `lora_modules` are the adapters' paths by name.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    name: str = ""
    served_model_name: str = "sim-model"
    lora_modules: Mapping[str, str] = field(default_factory=dict)
    runtime_loras: bool = False
    responses_store: bool = False
    limits: Limits = field(default_factory=Limits)
    speed: Speed = field(default_factory=Speed)
    output_tokens: int = 256
    tokens_per_chunk: int = 1
    prompt_tokens_details: bool = True
    seed: int = 0
    faults: bool = False
    strain: Strain = field(default_factory=Strain)
    drain_seconds: float = 5.0
    kv_events: KvEventsConfig = field(default_factory=KvEventsConfig)
