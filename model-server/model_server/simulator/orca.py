"""ORCA load reports in the form of vLLM 0.32 (`vllm/entrypoints/openai/orca_metrics.py`)."""

import json

from model_server.simulator.metrics import Load

REQUEST_HEADER = "endpoint-load-metrics-format"
RESPONSE_HEADER = "endpoint-load-metrics"


def report(wanted: str, load: Load) -> dict[str, str]:
    """Write the response header that answers format `wanted` (TEXT or JSON); none for any other."""
    metrics = {
        "num_requests_waiting": float(load.waiting),
        "kv_cache_usage_perc": float(load.usage),
    }
    match wanted.lower():
        case "text":
            text = ", ".join(f"named_metrics.{name}={value}" for name, value in metrics.items())
            return {RESPONSE_HEADER: f"TEXT {text}"}
        case "json":
            return {RESPONSE_HEADER: f"JSON {json.dumps({'named_metrics': metrics})}"}
        case _:
            return {}
