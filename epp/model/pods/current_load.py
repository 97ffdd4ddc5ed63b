"""What an engine bears between two reports: the last one, and what was sent and seen done since.

A report shows an engine after its latest step, and lacks what came during that step and, of vLLM,
during the next: half a second under long prompts. The picker's books have its own requests at any
moment, and know by the engine's own rules which of them no step has reached. So the books are
believed of these, and a report of what it has beyond the books of the same moment: the requests
of others, and of this picker's those that wait report after report though a step could have
reached them, as the engine has limits that the books do not know (vLLM `max_num_seqs`).
"""

from collections.abc import Iterable
from math import inf
from typing import Final

from epp.model.endpoint import UNREPORTED, CurrentLoad, Load
from epp.model.pods.engine_scheduler import EngineScheduler
from epp.model.pods.ledger import Ledger

_MAX_ADAPTERS: Final = 10_000
"""Names of adapters beyond which all are learned anew."""


class LoadBooks:
    """One endpoint's load by its last report, and by the books of that moment and of others.

    Until the first report it is what the books say. `adapters` are shared by all endpoints: the
    names that any of them has ever reported as those of adapters.
    """

    def __init__(self, ledger: Ledger, scheduler: EngineScheduler, adapters: set[str]) -> None:
        self._ledger = ledger
        self._scheduler = scheduler
        self._adapters = adapters
        self._load = UNREPORTED
        self._models: dict[str, int] = {}
        self._others = 0.0
        self._others_waiting = 0.0
        self._most_waiting = inf  # less what was sent since the start
        self._kv_usage = 0.0  # beyond the books, or short of them
        # Own requests that reports show waiting beyond the books: the least of this window and of
        # the one before, each at least a step long.
        self._unreached = self._unreached_before = 0.0
        self._window = -inf
        self.held_up = False
        """Whether an own prompt of more than a step has run for longer than it was to take."""

    def add_request(self, model: str) -> None:
        """Count a request that was sent, for a model or an adapter."""
        self._models[model] = self._models.get(model, 0) + 1

    def remove_request(self, model: str) -> None:
        """Discount a request that has ended; one that was not counted changes nothing.

        The models keep the order in which they came: that is the order in which slots are held.
        """
        left = self._models.get(model, 0) - 1
        if left > 0:
            self._models[model] = left
        else:
            self._models.pop(model, None)

    def recount(self, models: Iterable[str]) -> None:
        """Count these requests in place of all others."""
        self._models = {}
        for model in models:
            self.add_request(model)

    def close(self, load: Load, step: float, now: float) -> None:
        """Compare a report with the books of the same moment.

        `step` is the duration of the engine's longest step, in seconds.
        """
        ledger, scheduler = self._ledger, self._scheduler
        self._load = load
        if load.running_adapters or load.waiting_adapters:
            self._learn_adapters(load)
        own, requests = ledger.requests, load.waiting + load.running
        self._others = max(0.0, requests - own)
        beyond = max(0.0, load.waiting - len(scheduler.waiting))
        self._others_waiting = min(self._others, beyond)
        unreached = beyond - self._others_waiting
        if now - self._window >= step:
            self._window, self._unreached_before = now, self._unreached
            self._unreached = unreached
        else:
            self._unreached = min(self._unreached, unreached)
        late = ledger.overdue(now)
        running = load.running - (self._others - self._others_waiting)
        begun = own - ledger.prefilling(now)
        self.held_up = late is not None and late[1] > step and running > begun
        # vLLM `schedule`: first come, first served, so that what runs does not wait again.
        self._most_waiting = load.waiting + max(0.0, own - requests) - ledger.sent
        if requests >= own:  # what came too late for the report holds blocks as well
            self._kv_usage = load.kv_usage - scheduler.usage
        else:  # what the books lack is in the report
            self._kv_usage = min(self._kv_usage, load.kv_usage)

    @property
    def unreached(self) -> float:
        """How many own requests wait although a step could have reached them."""
        return min(self._unreached, self._unreached_before)

    @property
    def held_tokens(self) -> float:
        """The tokens of KV cache that requests hold, no matter who sent them."""
        scheduler = self._scheduler
        return max(0.0, scheduler.held + self._kv_usage * scheduler.capacity)

    def at(self, now: float) -> CurrentLoad:
        """Return the load at `now`, in seconds; the scheduler has caught up by then."""
        ledger, scheduler = self._ledger, self._scheduler
        requests = ledger.requests + self._others
        # Of two numbers each: mypyc compiles that to a comparison, and calls `min` for three.
        waiting = len(scheduler.waiting) + self._others_waiting
        waiting += self.unreached
        waiting = min(waiting, ledger.prefilling(now) + self._others)
        waiting = min(waiting, ledger.sent + self._most_waiting)
        waiting = max(0.0, waiting)
        usage = max(0.0, scheduler.usage + self._kv_usage)
        kv_usage = min(1.0, usage)
        running = max(0.0, requests - waiting)
        load = self._load
        if not load.max_adapters:
            return CurrentLoad(waiting, running, kv_usage)
        return CurrentLoad(waiting, running, kv_usage, *self._adapters_of(load))

    def slot_seconds(self, adapter: str, response_seconds: float) -> tuple[float, float]:
        """Return how long a request of an adapter waits for a slot, and takes one from others.

        An engine computes the requests of a few adapters at once (vLLM `max_loras`). If as many
        have requests there, another waits until one of them has no request left. Responses take
        `response_seconds` and began at any time, so that the n of one adapter end after
        n / (n + 1) of these, and the first of several adapters after 1 / (1 + sum(1 / n)). A free
        slot is taken for one response, where there are more adapters than slots at one endpoint.
        """
        models, slots = self._models, self._load.max_adapters
        if not slots:
            return 0.0, 0.0
        order = [each for each in models if each in self._adapters]
        if self._others:  # whose adapters are known by the report alone
            order = [each for each in self._load.running_adapters if each not in models] + order
        known = adapter in order
        place = order.index(adapter) if known else len(order)
        if place < slots:
            scarce = not known and len(self._adapters) > slots
            return 0.0, response_seconds if scarce else 0.0
        ends = 1.0 + sum([1.0 / models.get(each, 1) for each in order[:slots]])
        return (1 + place - slots) * response_seconds / ends, 0.0

    def waits_for_slot(self, model: str) -> bool:
        """Whether a request of a model, an adapter or another, waits for a slot of adapters."""
        return model in self._adapters and self.slot_seconds(model, 1.0)[0] > 0

    def _learn_adapters(self, load: Load) -> None:
        if len(self._adapters) > _MAX_ADAPTERS:
            self._adapters.clear()
        self._adapters |= load.running_adapters
        self._adapters |= load.waiting_adapters

    def _adapters_of(self, load: Load) -> tuple[frozenset[str], frozenset[str]]:
        """Add those of own requests to the adapters that run, as far as there is room, or wait."""
        running, waiting = load.running_adapters, load.waiting_adapters
        fresh = [
            each
            for each in self._models
            if each in self._adapters and each not in running and each not in waiting
        ]
        if not fresh:  # a page may name thousands: they are not copied for nothing
            return running, waiting
        room = max(0, load.max_adapters - len(running | waiting))
        return running.union(fresh[:room]), waiting.union(fresh[room:])
