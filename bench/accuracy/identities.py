"""The three ways in which the picker can know blocks, as its configuration says them."""

import json
from typing import Any, Literal

from bench.accuracy.engines import MODEL, Engine, EngineName, Ports

Identity = Literal["text", "tokens", "events"]
IDENTITIES: dict[EngineName, tuple[Identity, ...]] = {
    "vllm": ("text", "tokens", "events"),
    "simulator": ("text",),  # nobody but itself has its tokenizer, and it publishes no events
}
EVENTS_PORT = "warmpick.io/kv-events-port"
REPLAY_PORT = "warmpick.io/kv-replay-port"


def configuration(identity: Identity, engine: Engine) -> str:
    """Write the configuration for an identity, as JSON (which is YAML too)."""
    plugins: list[dict[str, Any]] = [{"type": "least-ttft-picker"}]
    if identity != "text":
        producer = {"tokenizer": str(engine.folder), "modelName": MODEL}
        plugins.append({"type": "token-producer", "parameters": producer})
    if identity == "events":
        sockets = {"topicFilter": "kv@", "podDiscoveryConfig": {"socketPort": 5557}}
        parameters = {"kvEventsConfig": sockets}
        plugins.append({"type": "precise-prefix-cache-producer", "parameters": parameters})
    return json.dumps({"plugins": plugins})


def endpoints(servers: list[Ports], identity: Identity) -> str:
    """Write the file of endpoints."""
    entries = [
        {
            "name": f"server-{number}",
            "namespace": "bench",
            "address": "127.0.0.1",
            "port": ports.http,
            "labels": _labels(ports) if identity == "events" else {},
        }
        for number, ports in enumerate(servers)
    ]
    return json.dumps({"endpoints": entries})


def _labels(ports: Ports) -> dict[str, str]:
    return {EVENTS_PORT: str(ports.events), REPLAY_PORT: str(ports.replay)}
