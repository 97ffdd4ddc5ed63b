"""Named engines: models on hardware, by published and measured rates.

If only the prefill rate is published, decoding follows from the hardware, at the same shares of its
peak as in the 8B preset: a step reads the weights at 80 % of the memory's bandwidth (3.35 TB/s per
H100) and the keys and values of the context at 70 %, and attention computes at 300 TFLOP/s. The KV
cache gets 92 % of the memory, less the weights and 3 GB.
"""

from collections.abc import Mapping

import msgspec

from epp.errors import ConfigError
from epp.replay.engines.contract import Limits
from epp.replay.engines.cost import StepCost, StepWork

DEFAULT_PRESET = "8b-h100"
TRANSFER_BYTES_PER_SECOND = 31e9
"""Between engines of two servers: Llama 8B's 128 KiB a token, 46k more tokens in 200 ms more.

llm-d blog of 2026-08-15 (P2P KV pulls: 2k tokens in 35 ms, 48k in 235 ms).
"""

_CHUNK = 8192
"""Tokens of a step's prefill at which rates were measured."""


class EnginePreset(msgspec.Struct, frozen=True, kw_only=True):
    """An engine: what it may hold and compute, what its steps cost, and the source of both."""

    limits: Limits
    cost: StepCost
    kv_bytes_per_token: int
    source: str

    @property
    def transfer_seconds_per_token(self) -> float:
        """What a prompt's KV cache takes to another engine."""
        return self.kv_bytes_per_token / TRANSFER_BYTES_PER_SECOND


def limits_of(
    kv_tokens: int,
    block_size: int = 16,
    max_num_batched_tokens: int = 8192,
    max_num_seqs: int = 1024,
) -> Limits:
    """Return the limits of an engine whose cache holds this many tokens, in whole blocks.

    The limits of a step are those of vLLM's server on an H100 (arg_utils.py `get_batch_defaults`).
    """
    return Limits(
        block_size=block_size,
        num_gpu_blocks=max(1, kv_tokens // block_size) + 1,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
    )


_OF_CPU = limits_of(8_160, block_size=32, max_num_batched_tokens=2048, max_num_seqs=128)


def _at_rate(tokens_per_second: float, cost: StepCost) -> StepCost:
    """Return the cost at which prompts of one chunk are computed at a measured rate."""
    work = StepWork(prefill=_CHUNK, attended=_CHUNK * _CHUNK / 2)
    free = msgspec.structs.replace(cost, prefill_us_per_token=0.0)
    left = _CHUNK / tokens_per_second - free.seconds(work)
    return msgspec.structs.replace(cost, prefill_us_per_token=left * 1e6 / _CHUNK)


PRESETS: Mapping[str, EnginePreset] = {
    "8b-h100": EnginePreset(
        limits=limits_of(416_000),
        cost=StepCost(),
        kv_bytes_per_token=131_072,
        source="the routing study's cost model A, as the simulator of model-server has it: 25,000"
        " prompt tokens/s; 8B in bfloat16 on one H100",
    ),
    "8b-h100-p2p": EnginePreset(
        limits=limits_of(416_000),
        cost=StepCost(prefill_us_per_token=35.2, attention_ns=0.19),
        kv_bytes_per_token=131_072,
        source="llm-d blog of 2026-08-15: 2k tokens computed in 78 ms, 48k in 1,988 ms",
    ),
    "70b-tp4-h100": EnginePreset(
        limits=limits_of(430_000),
        cost=StepCost(
            step_ms=15.0,
            prefill_us_per_token=88.0,
            attention_ns=2.2,
            decode_us_per_seq=20.0,
            decode_ns_per_context_token=35.0,
        ),
        kv_bytes_per_token=327_680,
        source="the 8B's shares of peak for 70B in bfloat16 on four H100, and 2 ms a step for"
        " their all-reduces; not measured",
    ),
    "qwen3-32b-tp2-h100": EnginePreset(
        limits=limits_of(280_000),
        cost=_at_rate(
            15_928,
            StepCost(
                step_ms=13.0,
                attention_ns=3.5,
                decode_us_per_seq=20.0,
                decode_ns_per_context_token=56.0,
            ),
        ),
        kv_bytes_per_token=262_144,
        source="llm-d blog of 2026-08-17: 15,928 prompt tokens/s in chunks of 8,192 (the recipe;"
        " the fit says 20,480) on two H100, 200,000 to 300,000 tokens of KV cache",
    ),
    "gpt-oss-120b-h100": EnginePreset(
        limits=limits_of(100_000),
        cost=_at_rate(
            39_065,
            StepCost(
                step_ms=10.0,
                attention_ns=1.0,
                decode_us_per_seq=40.0,
                decode_ns_per_context_token=16.0,
            ),
        ),
        kv_bytes_per_token=73_728,
        source="llm-d blog of 2026-08-17: 39,065 prompt tokens/s in chunks of 8,192 on one H100;"
        " decoding is a guess: how many experts a step reads depends on the batch",
    ),
    "cpu-small": EnginePreset(
        limits=_OF_CPU,
        cost=StepCost(
            step_ms=3.8,
            prefill_us_per_token=150.0,
            attention_ns=80.0,
            decode_us_per_seq=150.0,
            decode_ns_per_context_token=80.0,
        ),
        kv_bytes_per_token=4_096,
        source="measured on vLLM 0.32 on two CPU cores, 26M parameters: prompts of 2,048 tokens in"
        " 437 to 555 ms, of 8,192 in 3.9 to 4.0 s, 264 tokens/s",
    ),
    "cpu-tiny": EnginePreset(
        limits=_OF_CPU,
        cost=StepCost(
            step_ms=1.0,
            prefill_us_per_token=6.0,
            attention_ns=0.0,
            decode_us_per_seq=6.0,
            decode_ns_per_context_token=0.0,
        ),
        kv_bytes_per_token=512,
        source="measured on vLLM 0.32 on two CPU cores, 336k parameters: prompts of 2,048 tokens in"
        " 18 to 24 ms, 7 to 9 ms where they are cached, 700 to 1,300 tokens/s",
    ),
}


def preset(name: str) -> EnginePreset:
    """Return an engine by name. Raises `ConfigError` if the name is unknown."""
    if name not in PRESETS:
        raise ConfigError(f"no engine is called {name!r}: there are {', '.join(PRESETS)}")
    return PRESETS[name]
