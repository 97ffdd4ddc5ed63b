"""Which endpoints have room for one more request, on five axes.

- Prefill: the endpoint owes less than `FlowSettings.prefill_seconds`.
- Memory: what requests hold, and the most that they will hold at once later, stay within a share of
  the cache, this request included.
- Slots: the engine runs fewer requests at once than it can (vLLM `max_num_seqs`), or none waits in
  it for the next free slot. No engine reports its number of slots. It is learned if, report after
  report, requests wait although the engine could have reached them and has memory, as many run as
  ever did, and new ones follow those that end (a prompt that takes longer than predicted would keep
  all others out).
- Adapters: the request's LoRA adapter has a slot (vLLM `max_loras`, docs/adr/0022), or one is free.
- Refusals: the endpoint's last answers were not all errors, or it is tested by one request a
  second.

The used part is what the last report shows and what was sent since, and at least what this picker
sent. So requests of other senders count, and those from before a restart of the picker. While
reports are missing, what this picker sent is still known: else all that wait would go to an
endpoint whose page is late. An endpoint without requests has room for any single one. Requests for
endpoints whose room is not known are sent at once, as without flow control.
"""

from collections.abc import Mapping
from enum import Enum
from math import ceil, inf
from typing import Final

from epp.model.endpoint import EndpointId, Load
from epp.model.pods.pod import Pod
from epp.policy.flow.memory_share import MemoryShare

_FIRST_SECONDS: Final = 5.0
"""Seconds after an endpoint was first checked in which its first report is expected. Until then its
room is known by the books alone, and only for prefill."""
_MODELLED: Final = frozenset(("vllm", "sglang"))
"""Cache models that show how much of an engine's memory is in use."""
_FULL: Final = 0.9
"""The share of a cache in use from which on requests wait for memory, not for a slot."""
_IN_A_ROW: Final = 4
_ROW_SECONDS: Final = 2.0
"""This many such reports over these seconds show the slots: a few may show one long step."""
_STEADY: Final = 0.05
"""The share of slots, at least one, that may be empty for a moment before they are filled again.

More responses must begin during these reports, so that some requests have replaced others."""
_SURE_SECONDS: Final = 60.0
"""If no request may wait for a slot, seconds until more requests than slots are tried again."""
_LARGE: Final = 0.8
"""A request that takes this share of a cache goes where others take no more than the rest.

It waits in the engine until enough of them have ended: small ones would keep it out for minutes.
"""
_NEXT: Final = 1
"""Requests that may wait in an engine for the next free slot, so that it is used at once."""
_MIN_SECONDS: Final = 1e-3
"""The fewest seconds that a prefill counts for."""


class Axis(Enum):
    """The axes of room; the values are a label of metrics."""

    PREFILL = "prefill"
    MEMORY = "memory"
    SLOTS = "slots"
    ADAPTERS = "adapters"
    REFUSALS = "refusals"


# Looked up once: docs/adr/0013-compiled.md says why.
_PREFILL: Final = Axis.PREFILL
_MEMORY: Final = Axis.MEMORY
_SLOTS: Final = Axis.SLOTS
_ADAPTERS: Final = Axis.ADAPTERS
_REFUSALS: Final = Axis.REFUSALS


class Rooms:
    """The room of each endpoint; `share` is the share of the cache that may be used.

    An endpoint that owes `prefill_seconds` has no room. One whose report is older than
    `stale_seconds` is stale: what others sent counts only until it is too old (`is_old`). `waiting`
    requests may wait in an engine for a slot.
    """

    def __init__(
        self,
        prefill_seconds: float,
        share: MemoryShare,
        stale_seconds: float,
        waiting: int = _NEXT,
    ) -> None:
        self.share: Final = share
        self._prefill_seconds: Final = prefill_seconds
        self._stale_seconds: Final = stale_seconds
        self._waiting: Final = waiting
        self._slots: dict[EndpointId, _Slots] = {}
        self._accounts: dict[EndpointId, _Account] = {}

    def lacks(  # noqa: PLR0913, PLR0917 (what is known of the request)
        self,
        pod: Pod,
        seconds: float,
        prompt: float,
        now: float,
        adapter: str = "",
        response: float = 0.0,
        answers: int = 1,
        shared: float = 0.0,
    ) -> Axis | None:
        """Return what an endpoint lacks for a request; None if it has room.

        The request's prefill takes `seconds` there. It has `prompt` tokens, of which running
        requests hold `shared`, and each of its `answers` is expected to have `response` tokens.
        `adapter` is the model that it names, which need not be a LoRA adapter.
        """
        ledger, load = pod.ledger, pod.load
        if now < ledger.refuses_until:
            return _REFUSALS
        if not ledger.requests and not load.running and not load.waiting:
            return None
        queued = ledger.queued_seconds(now) + ledger.external_waiting * seconds
        axis = None
        if queued >= self._prefill_seconds:
            axis = _PREFILL
        elif self._lacks_memory(pod, prompt - shared, response, answers, shared):
            axis = _MEMORY
        elif self._slots and _sequences(pod) >= self._known_slots(pod) + self._waiting:
            axis = _SLOTS
        elif adapter and load.max_adapters and pod.books.waits_for_slot(adapter):
            axis = _ADAPTERS
        return axis if axis is not None and self._accounted(pod, axis, now) else None

    def _accounted(self, pod: Pod, axis: Axis, now: float) -> bool:
        """Return whether an endpoint's room on an axis is known (`unaccounted`)."""
        name, load = pod.endpoint.id, pod.load
        account = self._accounts.get(name)
        if account is None or account.load is not load:
            since = now if account is None else account.since
            account = self._accounts[name] = _Account(pod, since)
        if account.at == -inf:
            return axis is _PREFILL and pod.reachable and now - account.since <= _FIRST_SECONDS
        return account.known and pod.reachable

    @staticmethod
    def _held_tokens(pod: Pod) -> float:
        scheduler = pod.scheduler
        held = max(scheduler.held, pod.books.held_tokens)
        for sequence in scheduler.waiting:
            held += sequence.computed  # vLLM computes the output of a preempted request again
        return held

    def used_tokens(self, pod: Pod) -> float:
        """Return how many tokens the requests at an endpoint hold, and may still add."""
        return self._held_tokens(pod) + pod.growth.most()

    def _lacks_memory(
        self, pod: Pod, prompt: float, response: float, answers: int, shared: float
    ) -> bool:
        held = self._held_tokens(pod) + prompt
        all_of_it = pod.growth.total + answers * response
        capacity = pod.scheduler.capacity
        if held + all_of_it <= self.share.value * capacity:
            return False
        large = self._waiting and prompt + answers * response >= _LARGE * capacity
        if large and held - prompt <= (1.0 - _LARGE) * capacity:
            return False
        limit = self._most_tokens(pod)
        most = pod.growth.most(answers, response, prompt)
        if shared:  # no end but the last one of those that hold it frees it
            most = min(all_of_it, most + shared * pod.ledger.requests)
        return held >= limit or held + most > limit

    def _most_tokens(self, pod: Pod) -> float:
        """Return the tokens that an endpoint may hold: more if its steps are short."""
        return self.share.at(pod.step_ratio) * pod.scheduler.capacity

    def free_tokens(self, pod: Pod) -> float:
        """Return how many more tokens an endpoint may hold."""
        return max(0.0, self._most_tokens(pod) - self.used_tokens(pod))

    def requests_that_fit(self, pod: Pod, seconds: float, tokens: float, now: float) -> int:
        """Return how many requests an endpoint has room for, one after the other.

        The prefill of each takes `seconds`; each has `tokens`, its response included. Returns 0 if
        the room is not known.
        """
        if self.unaccounted(pod, now) or self.lacks(pod, seconds, tokens, now) is not None:
            return 0
        owed = pod.ledger.queued_seconds(now) + pod.ledger.external_waiting * seconds
        prefills = ceil((self._prefill_seconds - owed) / max(seconds, _MIN_SECONDS))
        slots = self._known_slots(pod) - _sequences(pod)
        return max(1, int(min(prefills, self.free_tokens(pod) // max(1.0, tokens), slots)))

    def ratios(self, pod: Pod, now: float) -> Mapping[Axis, float]:
        """Return the used part of an endpoint's room on each known axis; 1: it is full."""
        memory = self.used_tokens(pod) / max(1.0, self._most_tokens(pod))
        found = {
            Axis.PREFILL: pod.ledger.queued_seconds(now) / self._prefill_seconds,
            Axis.MEMORY: memory,
        }
        slots = self._known_slots(pod)
        if slots < inf:
            found[Axis.SLOTS] = _sequences(pod) / (slots + self._waiting)
        return found

    def is_stale(self, pod: Pod, now: float) -> bool:
        """Whether an endpoint does not report its metrics, or never did."""
        return not pod.reachable or now - pod.load.at > self._stale_seconds

    def unaccounted(self, pod: Pod, now: float) -> str:
        """Return why an endpoint's room is not known, or not by a report; empty if it is.

        `stale` is checked first: an endpoint that never reported lacks its block count, too.
        """
        return "stale" if self.is_stale(pod, now) else _unknown(pod)

    def _known_slots(self, pod: Pod) -> float:
        slots = self._slots.get(pod.endpoint.id)
        return inf if slots is None else slots.known

    def reported(self, pod: Pod) -> None:
        """Learn from a report how many requests an engine runs at once."""
        load, name = pod.load, pod.endpoint.id
        slots, engine = self._slots.get(name), pod.scheduler.generation
        if slots is None or slots.engine != engine:  # one that restarted may have other limits
            self._slots.pop(name, None)
            if not load.running:
                return
            slots = self._slots[name] = _Slots(self._waiting, engine)
        # vLLM `LoRARequestStates` names all adapters that have requests as running and as waiting.
        adapters = len(load.running_adapters | load.waiting_adapters)
        lacks_adapter = 0 < load.max_adapters < adapters
        elsewhere = load.kv_usage >= _FULL or lacks_adapter or pod.books.held_up
        slots.learn(load, pod.ledger.begun, waits=pod.books.unreached > 0 and not elsewhere)

    def forget(self, name: EndpointId) -> None:
        """Forget an endpoint that is gone."""
        self._slots.pop(name, None)
        self._accounts.pop(name, None)


class _Slots:
    """How many requests an engine runs at once: `known`, which is infinite until it is learned.

    `engine` is the generation of the endpoint's cache: another one means that it restarted. `known`
    is the most that ever ran, once about as many ran in report after report while others waited
    and ran later. If more run, the engine has more slots. If no request may be `waiting` in the
    engine, at most the known number are sent, so one more is tried now and then. If that one has to
    wait, requests of other priorities wait behind it.
    """

    def __init__(self, waiting: int, engine: int) -> None:
        self.known = inf
        self.engine: Final = engine
        self._tries: Final = not waiting
        self._sure_until = -inf  # until then no more are tried
        self._most = 0.0
        self._in_a_row = 0
        self._since = 0.0
        self._from = 0.0  # the most that had run when the first of these reports came
        self._begun = 0  # how many responses had begun then

    def learn(self, load: Load, begun: int, *, waits: bool) -> None:
        """Learn from a report; `waits`: requests wait, for nothing but a slot.

        `begun` is the number of responses that have begun in all.
        """
        running = load.running
        self._most = max(self._most, running)
        few = max(1.0, _STEADY * self._most)
        if not waits or running < self._most - few:
            self._in_a_row = 0
        elif not self._in_a_row or self._most > self._from + max(1.0, _STEADY * self._from):
            self._in_a_row, self._from, self._since = 1, self._most, load.at
            self._begun = begun
        else:
            self._in_a_row += 1
            long = self._in_a_row >= _IN_A_ROW and load.at - self._since >= _ROW_SECONDS
            if long and begun - self._begun > few:
                self.known = self._most
                self._sure_until = load.at + _SURE_SECONDS
        if running > self.known:
            self.known, self._sure_until = running, -inf
        unsure = self._tries and load.at >= self._sure_until
        if unsure and running >= self.known and not load.waiting:
            self.known = running + 1


class _Account:
    """Whether an endpoint's room is `known` since one report.

    `since` is when the room was first asked for.
    """

    def __init__(self, pod: Pod, since: float) -> None:
        self.since: Final = since
        self.load: Final = pod.load
        self.at: Final = pod.load.at
        self.known: Final = not _unknown(pod)


def _sequences(pod: Pod) -> float:
    """Return how many slots requests take or wait for; each answer to a prompt takes one."""
    return max(pod.running, float(pod.books.counted))


def _unknown(pod: Pod) -> str:
    """Return why an endpoint's room is not known, whatever the age of its report."""
    load = pod.load
    if load.ranks > 1:
        return "several-engines"
    if load.capacity_tokens is None:
        return "no-block-count"
    return "" if pod.scheduler.spec.model in _MODELLED else "cache-model"
