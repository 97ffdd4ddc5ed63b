"""The arguments and environment of `vllm serve`, as functions of one frozen value.

Nothing here touches a file, a process, the environment or vLLM itself. Flags are those of 0.32.
"""

import json
from collections.abc import Collection

from model_server.settings import Settings

BINDING = "VLLM_CPU_OMP_THREADS_BIND"
"""Names the cores of a CPU worker, and so how many threads it has."""


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
        "--tensor-parallel-size": settings.tensor_parallel_size,
        "--data-parallel-size": settings.data_parallel_size,
        "--prefix-caching-hash-algo": settings.hash_algorithm,
        "--shutdown-timeout": settings.drain_seconds,
        "--kv-events-config": _kv_events(settings),
        "--max-loras": settings.max_loras,
        "--max-lora-rank": settings.max_lora_rank,
        # Adapters that come and go must be known to every API server, so there is but one.
        "--api-server-count": 1 if settings.lora_file and settings.serves else None,
        **_nodes(settings),
    }
    pairs = [text for flag, v in chosen.items() if v is not None for text in (flag, str(v))]
    return [settings.model, *pairs, *_switches(settings), *settings.extra]


def _switches(settings: Settings) -> list[str]:
    switches = {
        "--enable-prefix-caching": True,
        "--enable-prompt-tokens-details": True,  # else usage says nothing of cached tokens
        "--disable-uvicorn-access-log": True,  # a scrape a second would fill it
        "--enforce-eager": settings.device == "cpu",  # compiling takes minutes there
        "--enable-lora": settings.lora,
        "--headless": settings.node_rank > 0,
    }
    return [flag for flag, on in switches.items() if on]


def _nodes(settings: Settings) -> dict[str, object]:
    """Return the arguments of nodes, each of which holds a part of the layers by default."""
    layers = settings.pipeline_parallel_size
    if settings.nodes == 1:
        return {"--pipeline-parallel-size": layers}
    return {
        "--pipeline-parallel-size": settings.nodes if layers is None else layers,
        "--nnodes": settings.nodes,
        "--node-rank": settings.node_rank,
        "--master-addr": settings.leader_address,
    }


def topic(settings: Settings) -> str:
    """Return the topic of KV events: `kv@POD@MODEL`, where POD is `ip:port` by default."""
    ip = f"[{settings.pod_ip}]" if ":" in settings.pod_ip else settings.pod_ip
    return f"kv@{settings.pod or f'{ip}:{settings.port}'}@{settings.served_model_name}"


def _kv_events(settings: Settings) -> str | None:
    """Return vLLM's `KVEventsConfig` as JSON; None if nothing is published."""
    if settings.kv_events_port is None:
        return None
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{settings.kv_events_port}",
        "topic": topic(settings),
    }
    if settings.kv_replay_port is not None:
        config["replay_endpoint"] = f"tcp://*:{settings.kv_replay_port}"
    return json.dumps(config)


def environment(settings: Settings, given: Collection[str] = ()) -> dict[str, str]:
    """Return the variables that vLLM needs in addition to the caller's, whose names are `given`."""
    variables = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if settings.lora_file is not None:
        variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if settings.offline:
        variables |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if settings.device == "cpu":
        variables["OMP_NUM_THREADS"] = str(settings.threads)
        if BINDING not in given:
            # "auto" would bind the worker of every server on the machine to core 0.
            variables[BINDING] = "nobind"
    return variables
