"""The three ways in which the picker can know blocks, as its configuration says them."""

import json
from collections.abc import Sequence
from typing import Any, Literal

from bench.accuracy.engines import MODEL, Engine, EngineName, Ports
from epp.errors import ConfigError

Identity = Literal["text", "tokens", "events"]
IDENTITIES: dict[EngineName, tuple[Identity, ...]] = {
    "vllm": ("text", "tokens", "events"),
    "simulator": ("text",),  # nobody but itself has its tokenizer, and it publishes no events
}
EVENTS_PORT = "warmpick.io/kv-events-port"
REPLAY_PORT = "warmpick.io/kv-replay-port"


def chosen(engine: EngineName, asked: Sequence[Identity]) -> Sequence[Identity]:
    """Return what is asked for, by default all that the engine allows. Raises `ConfigError`.

    A picker without the tokenizer takes text, whatever it is told.
    """
    allowed = IDENTITIES[engine]
    if other := next((each for each in asked if each not in allowed), None):
        raise ConfigError(
            f"blocks of {engine} can be known by {', '.join(allowed)}", f"--identity {other}"
        )
    return asked or allowed


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
