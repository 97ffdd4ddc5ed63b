"""The predictors that the cache model is measured against, told exact token ids.

Written from their published rules, without anything of `epp.model`.
"""

from array import array
from collections import OrderedDict
from hashlib import blake2b
from typing import Protocol

LLM_D_ROUTER_ENTRIES = 31_250
LLM_D_ROUTER_BLOCK = 64
"""llm-d-router's approximate prefix cache: its default capacity, its smallest block (tokens)."""


class Blocks:
    """A prompt as blocks of any size, each named by all that stands before it and its own."""

    def __init__(self, ids: "array[int]") -> None:
        self._ids = ids
        self._names: dict[int, list[bytes]] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def names(self, block: int) -> list[bytes]:
        """Names of all full blocks of `block` tokens."""
        known = self._names.get(block)
        if known is None:
            known = self._names[block] = []
            data, width, name = self._ids.tobytes(), block * self._ids.itemsize, b""
            for start in range(0, len(data) - width + 1, width):
                name = blake2b(name + data[start : start + width], digest_size=16).digest()
                known.append(name)
        return known


class Predictor(Protocol):
    """Guesses cached tokens for one server."""

    def predict(self, prompt: Blocks) -> int:
        """How many of a prompt's tokens are cached."""

    def sent(self, prompt: Blocks) -> None:
        """The prompt goes to this server."""


class Lru:
    """`entries` blocks of `block` tokens, the least recently used one evicted first.

    Blocks are written when a prompt is sent, its own tokens only, from the first one on, and a
    prompt's hit ends at the first block that is missing.
    """

    def __init__(self, entries: int, block: int) -> None:
        self._entries = entries
        self._block = block
        self._held: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, name: bytes) -> bool:
        return name in self._held

    def predict(self, prompt: Blocks) -> int:
        """Whole blocks, and never the last token."""
        hits = 0
        for name in prompt.names(self._block):
            if name not in self._held:
                break
            hits += self._block
        return min(hits, (len(prompt) - 1) // self._block * self._block)

    def sent(self, prompt: Blocks) -> None:
        """Write and touch all full blocks, the first one first."""
        for name in prompt.names(self._block):
            self._held[name] = None
            self._held.move_to_end(name)
            if len(self._held) > self._entries:
                self._held.popitem(last=False)


class LlmDRouter:
    """One index over all servers, as llm-d-router keeps it; made for one server at a time.

    A prompt is looked up until the first block that no server holds; a server is credited with
    each block that it holds itself, holes or not.
    """

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._servers: dict[str, Lru] = {}

    def of(self, server: str) -> "LlmDRouterServer":
        """Return the predictor for one server."""
        own = self._servers.setdefault(server, Lru(self._entries, LLM_D_ROUTER_BLOCK))
        return LlmDRouterServer(own, self._servers)


class LlmDRouterServer:
    """One server's share of llm-d-router's index."""

    def __init__(self, own: Lru, everybody: dict[str, Lru]) -> None:
        self._own = own
        self._everybody = everybody

    def predict(self, prompt: Blocks) -> int:
        """Credit each held block before the first one that nobody holds."""
        credited = 0
        for name in prompt.names(LLM_D_ROUTER_BLOCK):
            if not any(name in held for held in self._everybody.values()):
                break
            credited += name in self._own
        return credited * LLM_D_ROUTER_BLOCK

    def sent(self, prompt: Blocks) -> None:
        """Write the prompt's blocks."""
        self._own.sent(prompt)
