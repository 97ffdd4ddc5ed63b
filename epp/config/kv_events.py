"""Where engines publish KV events, and how the blocks in them are hashed."""

import re
from typing import Annotated, Literal

from epp.label_selector import parse_label_selector
from epp.model.endpoint import LAST_PORT
from epp.policy.bounds import BoundedParameters, at_least, within
from epp.policy.effects import without_effect
from epp.policy.plugins import PluginParameters

_ZMQ_ADDRESS = re.compile(r"tcp://\S+:(?:(\d{1,5})|\*)|ipc://\S+")
_TOKENS = at_least(0, "tokens, such as 16")
_RANKS_KNOWN = without_effect("ranks are known by the pool's ports, or by labels")
_OWN_ADDRESS = without_effect("the events of an endpoint are read at its own address only")
_HASHED_AGAIN = without_effect("events carry the tokens, which are hashed again")


class TokenProcessor(BoundedParameters, frozen=True):
    """Length and hashing of blocks of token ids."""

    block_size_tokens: Annotated[int, _TOKENS] = 0
    block_size: Annotated[int, _TOKENS] = 0
    hash_seed: Annotated[str, _HASHED_AGAIN] = ""
    hash_algorithm: Annotated[Literal["", "cbor-fnv", "xxh64"], _HASHED_AGAIN] = ""

    @property
    def tokens(self) -> int:
        """The length of a block in tokens; the deprecated name counts if the other is 0."""
        return self.block_size_tokens or self.block_size or 16


class RankPods(PluginParameters, frozen=True):
    """Labels of the pods that hold the ranks of one endpoint."""

    group_label_key: str = ""
    rank_label_key: str = ""
    ranks_per_pod: int = 0


class PodDiscovery(BoundedParameters, frozen=True):
    """Ports at which each pod publishes; a data-parallel rank adds its number to both."""

    socket_port: Annotated[int, within(1, LAST_PORT, "a port, such as 5557")] = 5557
    replay_socket_port: Annotated[int, within(0, LAST_PORT, "a port, or 0 for none")] = 0
    pod_label_selector: str = ""
    pod_namespace: str = ""
    data_parallel_size: Annotated[int, _RANKS_KNOWN] = 0
    rank_pod_mapping: Annotated[RankPods | None, _OWN_ADDRESS] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_label_selector(self.pod_label_selector)


_BY_FORM = without_effect("the events of vLLM and SGLang are recognised by their form")


class KvEventsConfig(PluginParameters, frozen=True):
    """Subscriptions to the KV events of engines: to each pod, and at an address of the picker's."""

    zmq_endpoint: str = ""
    topic_filter: str = "kv@"
    concurrency: Annotated[int, without_effect("one event loop reads all events")] = 4
    max_queue_depth: Annotated[int, without_effect("what is not read stays with the engine")] = 0
    engine_type: Annotated[Literal["", "vllm", "sglang"], _BY_FORM] = "vllm"
    tracing: Annotated[bool, without_effect("events have no spans")] = False
    discover_pods: bool = True
    pod_discovery_config: PodDiscovery = PodDiscovery()

    def __post_init__(self) -> None:
        found = _ZMQ_ADDRESS.fullmatch(self.zmq_endpoint)
        # ZMQ binds 99999 as 34463
        if self.zmq_endpoint and (found is None or int(found[1] or 0) > LAST_PORT):
            problem = "is not a ZMQ address; write tcp://0.0.0.0:5557"
            raise ValueError(f"`zmqEndpoint`: `{self.zmq_endpoint}` {problem}")

    @property
    def heard(self) -> bool:
        """Whether anything is listened to."""
        return bool(self.discover_pods or self.zmq_endpoint)
