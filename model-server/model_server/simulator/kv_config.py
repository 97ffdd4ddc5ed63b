"""The value of `--kv-events-config`: JSON, with names and defaults of vLLM's `KVEventsConfig`."""

from typing import Literal

import msgspec

MAX_PORT = 65535


class KvEventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where KV events are published.

    Endpoints are `tcp://HOST:PORT` and are bound; the host `*` is the server's own, and port 0 a
    free one. `replay_endpoint`, if set, sends the last `buffer_steps` batches again.
    `max_queue_size` is accepted because vLLM has it: nothing queues here.
    """

    enable_kv_cache_events: bool = False
    publisher: Literal["null", "zmq"] | None = None
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""

    def __post_init__(self) -> None:
        for endpoint in (self.endpoint, self.replay_endpoint or "tcp://*:0"):
            host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
            known = port.isdecimal() and int(port) <= MAX_PORT
            if not (endpoint.startswith("tcp://") and host and known):
                raise ValueError(f"{endpoint!r} is not tcp://HOST:PORT")
        if min(self.buffer_steps, self.hwm) < 0:
            raise ValueError("buffer_steps and hwm must be 0 or more")

    @property
    def publishes(self) -> bool:
        """Whether anything is published at all."""
        return self.enable_kv_cache_events and self.publisher != "null"


def parse_config(text: str) -> KvEventsConfig:
    """Read the flag's value; raises `ValueError` if it cannot be used."""
    try:
        return msgspec.json.decode(text, type=KvEventsConfig)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
