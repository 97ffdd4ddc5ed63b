"""Which endpoints have room for one more request, on four axes.

- Prefill: the endpoint owes less than `FlowSettings.prefill_seconds`.
- Memory: what requests hold, and what they are expected to generate yet, leaves room for the
  request within a share of the cache.
- Slots: fewer requests run than the engine runs at once (vLLM `max_num_seqs`). No engine reports
  that; it shows when requests wait although the engine could have reached them and has memory.
- Adapters: its LoRA adapter has a slot (vLLM `max_loras`, docs/adr/0022), or takes a free one.

What is used is what the last report says and what was sent since, and never less than what was
sent: requests of other senders count, and so do those from before a restart of the picker. An
endpoint without any request has room for every single one. At endpoints that cannot be accounted
for, requests go at once, as without flow control.
"""

from collections.abc import Mapping
from enum import Enum
from math import ceil, inf
from typing import Final

from epp.model.endpoint import EndpointId
from epp.model.pods.pod import Pod
from epp.policy.flow.memory_share import MemoryShare

_STALE_SECONDS: Final = 10.0
"""The age of a report that says nothing any more."""
_MODELLED: Final = frozenset(("vllm", "sglang", "vllm-v0"))
"""Cache models that know how much of an engine's memory is in use."""
_FULL: Final = 0.9
"""The share of a cache in use from which on requests wait for memory, not for a slot."""


_LEAST_SECONDS: Final = 1e-3
"""What the shortest prefill is taken for."""


class Axis(Enum):
    """What an endpoint has no room in; the values are a label of metrics."""

    PREFILL = "prefill"
    MEMORY = "memory"
    SLOTS = "slots"
    ADAPTERS = "adapters"


# Looked up once: docs/adr/0013-compiled.md says why.
_PREFILL: Final = Axis.PREFILL
_MEMORY: Final = Axis.MEMORY
_SLOTS: Final = Axis.SLOTS
_ADAPTERS: Final = Axis.ADAPTERS


class Rooms:
    """The room of each endpoint; `share` is that of its cache which may be taken."""

    def __init__(self, prefill_seconds: float, share: MemoryShare) -> None:
        self.share: Final = share
        self._prefill_seconds: Final = prefill_seconds
        self._slots: dict[EndpointId, float] = {}
        self._accounts: dict[EndpointId, _Account] = {}

    def full(
        self, pod: Pod, seconds: float, tokens: float, now: float, adapter: str = ""
    ) -> Axis | None:
        """Return what an endpoint lacks for a request; None if it has room.

        The request's prefill takes `seconds` there; it has `tokens` with its response. `adapter` is
        the model that it asks for, a LoRA adapter or another.
        """
        ledger, load = pod.ledger, pod.load
        if not ledger.requests and not load.running and not load.waiting:
            return None
        queued = ledger.queued_seconds(now) + ledger.external_waiting * seconds
        axis = None
        if queued >= self._prefill_seconds:
            axis = _PREFILL
        elif self.used(pod) + tokens > self.share.value * pod.scheduler.capacity:
            axis = _MEMORY
        elif self._slots and pod.running >= self._slots.get(pod.endpoint.id, inf):
            axis = _SLOTS
        elif adapter and load.max_adapters and pod.books.waits_for_slot(adapter):
            axis = _ADAPTERS
        return axis if axis is not None and self._accounted(pod, now) else None

    def _accounted(self, pod: Pod, now: float) -> bool:
        """Return whether an endpoint's room is known: `unaccounted` says why not."""
        name, load = pod.endpoint.id, pod.load
        account = self._accounts.get(name)
        if account is None or account.load is not load:
            account = self._accounts[name] = _Account(pod)
        return account.known and pod.reachable and now - account.at <= _STALE_SECONDS

    @staticmethod
    def used(pod: Pod) -> float:
        """Return how many tokens requests hold at an endpoint, and are expected to hold yet."""
        scheduler = pod.scheduler
        used = max(scheduler.held, pod.books.held_tokens) + pod.coming_tokens
        for sequence in scheduler.waiting:
            used += sequence.offsets.total
        return used

    def free(self, pod: Pod) -> float:
        """Return how many tokens more an endpoint may hold."""
        return max(0.0, self.share.value * pod.scheduler.capacity - self.used(pod))

    def fitting(self, pod: Pod, seconds: float, tokens: float, now: float) -> int:
        """Return how many requests an endpoint has room for, one after the other.

        The prefill of each takes `seconds`; each has `tokens` with its response. None if the room
        is not known.
        """
        if unaccounted(pod, now) or self.full(pod, seconds, tokens, now) is not None:
            return 0
        owed = pod.ledger.queued_seconds(now) + pod.ledger.external_waiting * seconds
        prefills = ceil((self._prefill_seconds - owed) / max(seconds, _LEAST_SECONDS))
        slots = self._slots.get(pod.endpoint.id, inf) - pod.running
        return max(1, int(min(prefills, self.free(pod) // max(1.0, tokens), slots)))

    def ratios(self, pod: Pod, now: float) -> Mapping[Axis, float]:
        """Return what is used of an endpoint's room on each axis that is known; 1 is full."""
        memory = self.used(pod) / max(1.0, self.share.value * pod.scheduler.capacity)
        found = {
            Axis.PREFILL: pod.ledger.queued_seconds(now) / self._prefill_seconds,
            Axis.MEMORY: memory,
        }
        if pod.endpoint.id in self._slots:
            found[Axis.SLOTS] = pod.running / self._slots[pod.endpoint.id]
        return found

    def reported(self, pod: Pod) -> None:
        """Learn from a report how many requests an engine runs at once.

        What is learned holds no engine below what it can do: where as many run and none waits, one
        more may.
        """
        load, name, slots = pod.load, pod.endpoint.id, self._slots
        if pod.books.unreached > 0 and load.running and load.kv_usage < _FULL:
            slots[name] = load.running
        elif not load.waiting and load.running >= slots.get(name, inf):
            slots[name] = load.running + 1

    def forget(self, name: EndpointId) -> None:
        """Forget an endpoint that is gone."""
        self._slots.pop(name, None)
        self._accounts.pop(name, None)


class _Account:
    """What one report says of whether an endpoint's room is `known`, if it is not too old."""

    __slots__ = ("at", "known", "load")

    def __init__(self, pod: Pod) -> None:
        self.load: Final = pod.load
        self.at: Final = pod.load.at
        self.known: Final = not _unknown(pod)


def _unknown(pod: Pod) -> str:
    """Return why an endpoint's room is not known, whatever the age of its report."""
    load = pod.load
    if load.ranks > 1:
        return "several-engines"
    if load.capacity_tokens is None:
        return "no-block-count"
    return "" if pod.scheduler.spec.model in _MODELLED else "cache-model"


def unaccounted(pod: Pod, now: float) -> str:
    """Return why an endpoint's room is not known; empty if it is."""
    stale = not pod.reachable or now - pod.load.at > _STALE_SECONDS
    return _unknown(pod) or ("stale" if stale else "")
