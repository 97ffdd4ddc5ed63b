"""An engine's load between two reports: the last report, and what was sent and has ended since.

A report shows an engine after its latest step. It lacks the requests that came during that step
and, with vLLM, during the next one: half a second under long prompts. The picker's books have its
own requests at any moment, and show by the engine's own rules which of them no step has reached. So
own requests are taken from the books. The report adds what the books of the same moment lack:

- requests of other senders;
- own requests that wait, report after report, although a step could have reached them, because the
  engine has limits that the books do not know (vLLM `max_num_seqs`).
"""

from collections.abc import Iterable
from math import inf
from typing import Final

from msgspec.structs import replace

from epp.model.endpoint import UNREPORTED, CurrentLoad, Load
from epp.model.events import OrcaReported
from epp.model.pods.engine_scheduler import EngineScheduler
from epp.model.pods.ledger import Ledger
from epp.model.quote import Quote

_MAX_ADAPTERS: Final = 10_000
"""The most names of adapters; beyond it, all are learned anew."""


class LoadBooks:
    """One endpoint's load, by its last report, the books of that moment and the books of now.

    Until the first report the books alone count. `adapters` is shared by all endpoints: the names
    of adapters that any of them has ever reported.
    """

    def __init__(self, ledger: Ledger, scheduler: EngineScheduler, adapters: set[str]) -> None:
        self._ledger = ledger
        self._scheduler = scheduler
        self._adapters = adapters
        self._load = UNREPORTED
        self._has_adapters = False
        self._waiting_adapters: frozenset[str] = frozenset()  # those that do not run
        self._models: dict[str, int] = {}
        self._others = 0.0
        self._others_waiting = 0.0
        self._most_waiting = inf  # minus all that was ever sent
        self._kv_usage = 0.0  # the report's minus the books'
        # Own requests that wait by the reports and not by the books: the least number in this
        # window and in the one before, each at least a step long.
        self._unreached = self._unreached_before = 0.0
        self._window = -inf
        self.held_up = False
        """Whether an own prompt of more than a step has run for longer than predicted."""
        self.counted = 0
        """The own requests as engines count them: each answer to each prompt is one."""

    def add_request(self, quote: Quote) -> None:
        """Count a request that was sent, for a model or an adapter."""
        model = quote.target_model
        self._models[model] = self._models.get(model, 0) + 1
        self.counted += max(1, quote.answers)

    def remove_request(self, quote: Quote) -> None:
        """Stop counting a request that has ended; one that was not counted changes nothing.

        The models keep their order of arrival, in which they hold slots.
        """
        model = quote.target_model
        left = self._models.get(model, 0) - 1
        if left < 0:
            return
        if left:
            self._models[model] = left
        else:
            self._models.pop(model)
        self.counted = max(0, self.counted - max(1, quote.answers)) if self._models else 0

    def recount(self, quotes: Iterable[Quote]) -> None:
        """Count these requests in place of all others."""
        self._models, self.counted = {}, 0
        for quote in quotes:
            self.add_request(quote)

    def close(self, load: Load, step: float, now: float) -> None:
        """Compare a report with the books of the same moment.

        `step` is the duration of the engine's longest step, in seconds.
        """
        ledger, scheduler = self._ledger, self._scheduler
        self._load = load
        self._has_adapters = bool(
            load.max_adapters or load.running_adapters or load.waiting_adapters
        )
        if self._has_adapters:
            self._learn_adapters(load)
            # vLLM `LoRARequestStates` names all adapters that have requests as both.
            self._waiting_adapters = load.waiting_adapters - load.running_adapters
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
        begun = own - ledger.count_prefilling(now)
        self.held_up = late is not None and late[1] > step and running > begun
        # vLLM `schedule`: first come, first served, so a running request does not wait again.
        self._most_waiting = load.waiting + max(0.0, own - requests) - ledger.sent
        if requests >= own:  # those that the report lacks hold blocks, too
            self._kv_usage = load.kv_usage - scheduler.usage
        else:  # the report has what the books lack
            self._kv_usage = min(self._kv_usage, load.kv_usage)

    def complete(self, load: Load, part: OrcaReported, now: float) -> Load:
        """Return a load of which only a part was reported at `now`, the rest as the books have it.

        vLLM's headers do not say how many requests run.
        """
        booked = self.at(now)
        usage = booked.kv_usage if part.kv_usage is None else part.kv_usage
        waiting = booked.waiting if part.waiting is None else part.waiting
        running = part.running
        if running is None:
            running = max(0.0, booked.waiting + booked.running - waiting)
        return replace(load, kv_usage=usage, waiting=waiting, running=running)

    @property
    def unreached(self) -> float:
        """How many own requests wait although a step could have reached them."""
        return min(self._unreached, self._unreached_before)

    @property
    def held_tokens(self) -> float:
        """The tokens of KV cache that the requests of all senders hold."""
        scheduler = self._scheduler
        return max(0.0, scheduler.held + self._kv_usage * scheduler.capacity)

    def at(self, now: float) -> CurrentLoad:
        """Return the load at `now`, in seconds, after the scheduler was brought up to date."""
        ledger, scheduler = self._ledger, self._scheduler
        requests = ledger.requests + self._others
        # `min` of two numbers compiles to a comparison; of three it is a call.
        waiting = len(scheduler.waiting) + self._others_waiting
        waiting += self.unreached
        waiting = min(waiting, ledger.count_prefilling(now) + self._others)
        waiting = min(waiting, ledger.sent + self._most_waiting)
        usage = max(0.0, scheduler.usage + self._kv_usage)
        kv_usage = min(1.0, usage)
        running = requests - waiting
        if not self._has_adapters:
            return CurrentLoad(waiting, running, kv_usage)
        return CurrentLoad(waiting, running, kv_usage, *self._adapters_of(self._load))

    def slot_seconds(self, adapter: str, response_seconds: float) -> tuple[float, float]:
        """Return for how long a request of an adapter waits for a slot, and takes one from others.

        An engine computes the requests of a few adapters at once (vLLM `max_loras`). If that many
        have requests, another adapter waits until one of them has no request left. Responses take
        `response_seconds` and may have begun at any time. So on average all n of one adapter have
        ended after n / (n + 1) of that time, and those of the first adapter after
        1 / (1 + sum(1 / n)) of it. If there are more adapters than slots, a request that takes a
        free slot keeps it from others for one response.
        """
        models, slots = self._models, self._load.max_adapters
        if not slots:
            return 0.0, 0.0
        order = [each for each in models if each in self._adapters]
        if self._others:  # their adapters are only known from the report
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
        """Return the running and waiting adapters of the report, with those of own requests."""
        running, waiting = load.running_adapters, self._waiting_adapters
        fresh = [
            each
            for each in self._models
            if each in self._adapters and each not in running and each not in waiting
        ]
        if not fresh:  # a page may name thousands: they are not copied for nothing
            return running, waiting
        most = load.max_adapters or _MAX_ADAPTERS
        room = max(0, most - len(running) - len(waiting))
        return running.union(fresh[:room]), waiting.union(fresh[room:])
