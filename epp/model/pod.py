"""Everything that is believed of one endpoint: its load, its books, its cache."""

from collections import deque

from msgspec.structs import replace

from epp.model.blockpool import BlockPool
from epp.model.blocks import Chain
from epp.model.endpoint import UNREPORTED, Endpoint, Load
from epp.model.events import OrcaReported
from epp.model.lease import Lease
from epp.model.ledger import Ledger
from epp.model.prefill import PrefillModel
from epp.model.prefixindex import PrefixIndex, Slot
from epp.model.ruler import Ruler

UNKNOWN_CAPACITY = 1_000_000
"""Tokens of cache where an endpoint has not said: too much costs little, too little a lot."""

UNKNOWN_BLOCK = 16
"""Tokens of a block where an endpoint has not said: vLLM's default on GPUs."""

_SCRAPES_TO_DOUBT = 3


class Stay:
    """One prompt at one pod: what it holds there (`lease`), or that it waits to (None)."""

    __slots__ = ("chain", "lease", "pool", "ruler")

    def __init__(self, chain: Chain, ruler: Ruler, pool: BlockPool) -> None:
        self.chain = chain
        self.ruler = ruler
        self.pool = pool
        self.lease: Lease | None = None

    def try_admit(self) -> bool:
        """Allocate the prompt if it fits."""
        chain, ruler = self.chain, self.ruler
        blank = ruler.tokens(chain.size) - ruler.covered(len(chain.hashes))
        self.lease = self.pool.admit(chain.hashes, ruler.sizes, max(0, blank), chain.lookup)
        return self.lease is not None


class Pod:
    """One endpoint. Its pool's content is mirrored in the fleet's index under `slot`.

    `foreign` counts requests that waited there at the last report and are not this picker's;
    `engine_block` is the size of the engine's blocks, in tokens.
    """

    def __init__(self, endpoint: Endpoint, index: PrefixIndex, prefill: PrefillModel) -> None:
        self.endpoint = endpoint
        self.prefill = prefill
        self.load: Load = UNREPORTED
        self.ledger = Ledger()
        self.slot: Slot = index.open()
        self.reachable = True
        self.foreign = 0.0
        self.engine_block = UNKNOWN_BLOCK
        self._index = index
        self._failures = 0
        self._started_at: float | None = None
        self._pool = BlockPool(UNKNOWN_CAPACITY)
        self._waiting: deque[Stay] = deque()
        self._present = True

    @property
    def capacity(self) -> int:
        """The size of the cache, in tokens."""
        return self._pool.capacity

    def leave(self) -> None:
        """The endpoint is gone; requests still under way change nothing any more."""
        self._index.close(self.slot, self._pool.hashes())
        self._present = False

    def restart(self) -> None:
        """The engine began anew: its cache is empty."""
        self._index.remove(self.slot, self._pool.hashes())
        self._pool = BlockPool(self._pool.capacity)
        self._waiting.clear()

    def report(self, load: Load) -> None:
        """Take in a scrape: capacity, restarts, reachability."""
        self.load = load
        self._failures, self.reachable = 0, True
        self._count_foreign()
        self.engine_block = load.block_size or UNKNOWN_BLOCK
        if load.num_blocks and load.block_size:
            capacity = max(1, (load.num_blocks - 1) * load.block_size)
            if capacity != self._pool.capacity:
                self._pool.resize(capacity)
                self._settle()
        if load.started_at is not None:
            if self._started_at not in {None, load.started_at}:
                self.restart()
            self._started_at = load.started_at

    def overhear(self, report: OrcaReported, now: float) -> None:
        """Take in what a response's headers said of the load."""
        named = {"kv_usage": report.kv_usage, "waiting": report.waiting, "running": report.running}
        known = {key: value for key, value in named.items() if value is not None}
        self.load = replace(self.load, at=now, **known)
        self._count_foreign()

    def _count_foreign(self) -> None:
        """Compare a report with the books of the same moment; later they no longer go together."""
        self.foreign = max(0.0, self.load.waiting - self.ledger.requests)

    def fail(self, *, refused: bool) -> None:
        """Take in a scrape that failed: nobody at home at once, silence after three times."""
        self._failures += 1
        if refused or self._failures >= _SCRAPES_TO_DOUBT:
            self.reachable = False

    def enter(self, chain: Chain, ruler: Ruler) -> Stay:
        """Let a prompt in as the engine will: at once where it fits, else in line."""
        stay = Stay(chain, ruler, self._pool)
        if self._waiting or not stay.try_admit():
            self._waiting.append(stay)
        self._mirror()
        return stay

    def exit(self, stay: Stay, generated: int, *, revoked: bool) -> None:
        """Let a prompt out: what it computed stays, to be evicted in its turn.

        `revoked`: the engine never computed it.
        """
        if stay.lease is None:
            if stay in self._waiting:
                self._waiting.remove(stay)
        elif revoked:
            stay.pool.revoke(stay.lease)
        else:
            stay.pool.grow(stay.lease, generated)
            stay.pool.release(stay.lease)
        self._settle()

    def _settle(self) -> None:
        """Let in those in line that fit by now, and tell the index."""
        while self._waiting and self._waiting[0].try_admit():
            self._waiting.popleft()
        self._mirror()

    def _mirror(self) -> None:
        stored, evicted = self._pool.take_stored(), self._pool.take_evicted()
        if self._present:
            # A block may be evicted and stored anew in one step, never the other way round.
            self._index.remove(self.slot, evicted)
            self._index.add(self.slot, stored)
