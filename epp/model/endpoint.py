"""An endpoint: its identity, the load that it last reported, and the state of its cache."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import NewType

import msgspec

EndpointId = NewType("EndpointId", str)
"""`namespace/name`; one per (pod, target port, data-parallel rank)."""

Target = NewType("Target", str)
"""`ip:port`, IPv6 in brackets: the form that Envoy takes."""
LAST_PORT = 65_535
EngineId = tuple[str, Target, int | None]
"""The identity of an engine: pod UID, target, data-parallel rank."""

RANK_LABEL = "warmpick.io/data-parallel-rank"
"""Which engine of a server that runs several behind one port an endpoint is: 0, 1, ..."""

OFFLOAD_LABEL = "warmpick.io/offload-tokens"
"""The capacity of the second tier of an endpoint's cache, in tokens, if no metric has it."""

ROLE_LABEL = "llm-d.ai/role"
"""Which stages of requests an endpoint takes (llm-d-router); all of them without the label."""

PARTIAL_ROLES = frozenset(("prefill", "encode", "encode-prefill"))
"""Roles of endpoints that do not serve whole requests: they prepare what others generate."""

H2C = "kubernetes.io/h2c"
"""HTTP/2 in plain text, with prior knowledge (Gateway API inference extension, `AppProtocol`)."""

HTTPS = "https"
"""HTTP over TLS (Kubernetes `appProtocol`, by IANA's name of the service)."""

VLLM = "vllm"
"""The value of `Load.engine` for vLLM."""

_KNOWN_PLACES = 4096
_LONGEST_NUMBER = 15
"""The most digits of a number in a label; longer text does not count as a number."""


def target_of(address: str, port: int) -> Target:
    """Join an IP address and a port the way Envoy expects them (RFC 3986 §3.2.2: IPv6)."""
    return Target(f"[{address}]:{port}" if ":" in address else f"{address}:{port}")


def canonical_ip(text: str) -> str | None:
    """Return an IP address as Envoy writes it (RFC 5952 §4), None for other text.

    One of IPv4 that is mapped into IPv6 is written as IPv4, which reaches the same host.
    """
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return None
    return str((ip.ipv4_mapped if ip.version == 6 else None) or ip)  # noqa: PLR2004 (IPv6)


@lru_cache(_KNOWN_PLACES)
def canonical_place(text: str) -> str:
    """Return an address, or a target, of IPv6 as endpoints have it; other text as it is."""
    if text.count(":") <= 1:
        return text
    ip, _, port = text.removeprefix("[").partition("]")
    found = canonical_ip(ip)
    if found is None:
        return text
    return f"[{found}]{port}" if port and ":" in found else found + port


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One model server, or one engine of one, that can be picked."""

    namespace: str
    """Its namespace."""
    name: str
    """Its name, with the namespace its identity."""
    address: str
    """Its IP address."""
    port: int
    """Its port."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Its labels, which are its pod's."""
    uid: str = ""
    """The pod's UID, which distinguishes pods of the same name."""
    rank: int | None = None
    """The data-parallel rank of an engine that shares its target with others.

    None (and no such label) if a target is one endpoint."""
    pod: str = ""
    """The name of its pod; empty if there is none."""
    node_address: str = ""
    """The IP address of the pod's node; empty if there is none."""
    hostname: str = ""
    """The pod's `spec.hostname`; empty if there is none."""
    metrics_host: str = ""
    """Where its metrics page is (`host:port`); empty: at the target."""
    app_protocol: str = ""
    """The `appProtocol` of its pool, which it speaks at its target; empty if it is not given."""
    port_index: int = 0
    """The index of its port among the target ports of its pool; 0 if there is none."""
    id: EndpointId = field(init=False)
    """The namespace and the name."""
    target: Target = field(init=False)
    """The address and the port, as Envoy takes them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", EndpointId(f"{self.namespace}/{self.name}"))
        object.__setattr__(self, "target", target_of(self.address, self.port))
        if self.rank is None:
            object.__setattr__(self, "rank", _number(self.labels.get(RANK_LABEL, "")))

    @property
    def engine(self) -> EngineId:
        """The identity of its engine: an endpoint that changes in it has an empty cache."""
        return self.uid, self.target, self.rank

    @property
    def engine_index(self) -> int:
        """Which of its pod's engines it is: its rank, else that of its port, as llm-d runs them."""
        return self.port_index if self.rank is None else self.rank

    @property
    def partial(self) -> bool:
        """Whether its role does not serve whole requests."""
        return self.labels.get(ROLE_LABEL) in PARTIAL_ROLES

    @property
    def offload_tokens(self) -> int | None:
        """The capacity of a second tier by its label, in tokens; None without a number there."""
        return _number(self.labels.get(OFFLOAD_LABEL, ""))


def attribute_key(name: str, producer: str = "") -> str:
    """Return the key under which `Load.attributes` has an attribute of a producer.

    llm-d-router distinguishes attributes of one name by the plug-in type that makes them; "" stands
    for any.
    """
    return f"{name}/{producer}" if producer else name


DCGM_EXTRACTOR = "dcgm-extractor"
"""The producer of `GPUUtilization`, under whatever name its extractor is configured."""
MULTICLUSTER_KV_USAGE = "llm-d.ai/multicluster-kv-cache-utilization"
MULTICLUSTER_QUEUE_SIZE = "llm-d.ai/multicluster-queue-size"
"""Keys of `Load.attributes`, of any producer (llm-d-router)."""
NO_ATTRIBUTES: Mapping[str, float] = MappingProxyType({})


def is_number(text: str) -> bool:
    """Whether the value of a label counts as a number."""
    return text.isdecimal() and len(text) <= _LONGEST_NUMBER


def _number(text: str) -> int | None:
    return int(text) if is_number(text) else None


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load that an endpoint's metrics showed.

    The sums are over the `ranks` engines that the endpoint stands for, which share nothing.
    """

    waiting: float = 0.0
    """Requests that wait, a sum."""
    running: float = 0.0
    """Requests that run, a sum."""
    counted: bool = False
    """Whether the report itself had `waiting` and `running`; else they are an earlier one's."""
    awake: bool = True
    """False while the engine sleeps: it keeps requests waiting, or refuses them."""
    emptied: bool = False
    """Whether it sleeps without its weights, and so without a cache."""
    kv_usage: float = 0.0
    """The share (0..1) of the KV cache that is in use."""
    running_adapters: frozenset[str] = frozenset()
    """Adapters of requests that run."""
    waiting_adapters: frozenset[str] = frozenset()
    """Adapters of requests that wait."""
    max_adapters: int = 0
    """How many adapters run at once; 0 while unknown."""
    engine: str = ""
    """The kind of server; empty while unknown."""
    ranks: int = 1
    """How many engines the endpoint stands for."""
    block_size: int | None = None
    """Tokens of a block; None while unknown."""
    num_blocks: int | None = None
    """All blocks, null blocks included, a sum; None while unknown."""
    spread: float = 1.0
    """How many blocks `block_size` tokens of the longest request take.

    More than 1 in hybrid models, whose kinds of layers all take blocks of the one pool; less if all
    layers free the blocks that are out of their window."""
    max_tokens: int | None = None
    """The engine's own count of its cache, if that is not in blocks; None while unknown."""
    caching: bool = True
    """False if prefix caching is switched off."""
    match_unit: int | None = None
    """Tokens that hits end at a multiple of, if not of the block; None while unknown."""
    offload_tokens: int | None = None
    """The tokens that a second tier can hold; None while unknown."""
    cache_queries: float | None = None
    """Prompt tokens looked up in the prefix cache since the engine started, a sum.

    None while unknown."""
    cache_hits: float | None = None
    """How many of these tokens it had, in total; None while unknown."""
    started_at: float | None = None
    """When the engine started, in Unix seconds; None while unknown."""
    attributes: Mapping[str, float] = NO_ATTRIBUTES
    """Numbers that extractors of the configuration found, by `attribute_key`."""
    at: float = float("-inf")
    """When the page was read, in seconds of the picker's clock."""

    @property
    def capacity_tokens(self) -> int | None:
        """The capacity of the caches of all `ranks`, in tokens; None while unknown, at least 1.

        For a hybrid model (`spread`) it is what the longest requests can fill.
        """
        if self.max_tokens is not None:
            return self.max_tokens
        if self.num_blocks is None or self.block_size is None:
            return None
        # vLLM v1/core/block_pool.py `null_block`: one block of each pool is never allocated. An
        # unknown engine counts as vLLM.
        kept = self.ranks if self.engine in {"", VLLM} else 0
        return max(1, int((self.num_blocks - kept) * self.block_size / max(1.0, self.spread)))

    def uncounted(self, at: float) -> "Load":
        """Return it without requests and what they use, as of a page that was last true then."""
        return msgspec.structs.replace(
            self, waiting=0.0, running=0.0, counted=False, kv_usage=0.0, at=at
        )


UNREPORTED = Load()
"""The load of an endpoint that has not answered a scrape yet."""


class CurrentLoad(msgspec.Struct, frozen=True):
    """The load of an endpoint at one moment: its last report, corrected by what happened since.

    `waiting` and `running` requests are those of all clients, never negative; `kv_usage` is the
    share of the cache that they hold, in 0..1. The adapters are those of running requests, and of
    those that wait.
    """

    waiting: float
    running: float
    kv_usage: float
    running_adapters: frozenset[str] = frozenset()
    waiting_adapters: frozenset[str] = frozenset()


class CacheStats(msgspec.Struct, frozen=True):
    """An endpoint's cache as the picker models it.

    `capacity`, `used` (by requests) and `filled` (used, or left by requests) are in tokens;
    `blocks` can be found by their hashes. `trust`, in 0..1, is the share of recent predictions
    that held. `live`: the engine's own events correct the model.
    """

    endpoint: Endpoint
    capacity: int
    used: int
    filled: int
    blocks: int
    trust: float
    live: bool
