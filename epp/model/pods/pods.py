"""All endpoints, by id and by target, and the ones that may be picked."""

from collections import Counter
from collections.abc import Collection, Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from epp.model.caches.choice import DEFAULT_MODEL, CacheSpec
from epp.model.caches.kv_event_mirror import KvEventCounts, KvEventMirror
from epp.model.endpoint import Endpoint, EndpointId, Target, canonical_place
from epp.model.events import LearnedCopied, ModelsListed
from epp.model.kv_changes import BlocksCleared, Cleared
from epp.model.learning.output_lengths import OutputLengths
from epp.model.learning.prefill import Speed
from epp.model.pods.pace import PaceClass
from epp.model.pods.pod import Pod
from epp.model.prefix_index.index import PrefixIndex, Slot
from epp.model.prompts.block_hasher import TOKEN_BLOCK, BlockHasher
from epp.model.prompts.reader import Prompts
from epp.model.prompts.served_names import ServedNames
from epp.model.quote import Quote

_PARTS: Final = 64
"""One 64th of the fullest cache is forgotten, then the fullest one is looked for again."""
CLASS_LABEL: Final = "warmpick.io/endpoint-class"
"""Endpoints with the same value of this label count as equally fast."""


def _label_of(endpoint: Endpoint) -> str:
    return endpoint.labels.get(CLASS_LABEL, "")


class EligiblePods:
    """Pods that may be picked, and the index slots and speeds of each, in the same order.

    Valid until a pod is added, removed or ejected, or its slot, speed or reachability changes.
    """

    def __init__(self, pods: list[Pod]) -> None:
        self.pods: Final = pods
        self.places: Final[list[tuple[Slot, Speed]]] = [(pod.slot, pod.speed) for pod in pods]


def _serving(pods: list[Pod], model: str) -> list[Pod]:
    """Return the pods that may serve a model; all if none lists it."""
    serving = [pod for pod in pods if pod.models is None or model in pod.models]
    return serving if any(pod.models for pod in serving) else pods


class Pods:
    """All pods. `capacity`, in tokens, is assumed for caches that no report has described.

    `adapters` has the names of all adapters that any endpoint has reported. `shortest_context` is
    the lowest listed limit of a context, in tokens: shorter requests fit everywhere. `changes`
    counts events that may have changed which pods are eligible, other than lists of models.
    `kv_events` counts the KV events of all pods, removed ones included.
    """

    def __init__(self, index: PrefixIndex, hasher: BlockHasher, capacity: int) -> None:
        self._index = index
        self.kv_events: Final = KvEventCounts()
        self._new_mirror: Final = partial(KvEventMirror, hasher, counts=self.kv_events)
        self._unknown = CacheSpec(model=DEFAULT_MODEL, capacity=capacity, block=TOKEN_BLOCK)
        self.adapters: Final[set[str]] = set()
        self._by_id: dict[EndpointId, Pod] = {}
        self._by_target: dict[tuple[Target, int | None], Pod] | None = None
        self._classes: Final[dict[str, PaceClass]] = {}
        self._members: Counter[str] = Counter()
        self._eligible: EligiblePods | None = None
        self._whole: EligiblePods | None = None
        self.changes = 0
        self._served: Counter[str] = Counter()
        self._listed = 0
        self._open = 0
        self.shortest_context = inf
        self._contexts: Counter[int] = Counter()
        self._names: Final = ServedNames(hasher)

    def __getitem__(self, endpoint_id: EndpointId) -> Pod:
        return self._by_id[endpoint_id]

    def get(self, endpoint_id: EndpointId) -> Pod | None:
        """Return an endpoint's pod; None for an unknown one."""
        return self._by_id.get(endpoint_id)

    def at(self, target: Target, rank: int | None) -> Pod | None:
        """Return the pod of a rank at a target; any pod there if none has that rank."""
        if self._by_target is None:
            self._by_target = {}
            for each in self._by_id.values():
                listens = each.endpoint.target
                self._by_target[listens, None] = self._by_target[listens, each.endpoint.rank] = each
        known = self._by_target
        return known.get((target, rank)) or known.get((target, None))

    def values(self) -> Collection[Pod]:
        """Return all pods, in the order in which they were added."""
        return self._by_id.values()

    def endpoint(self, endpoint_id: EndpointId) -> Endpoint | None:
        """Return an endpoint by its id."""
        pod = self._by_id.get(endpoint_id)
        return None if pod is None else pod.endpoint

    @property
    def engine_blocks(self) -> set[int]:
        """The sizes of the blocks of engines that have reported, in tokens."""
        return {pod.reported_block for pod in self._by_id.values() if pod.reported_block}

    def upsert(self, endpoint: Endpoint) -> bool:
        """Add an endpoint, replacing another engine of its name; relabel the same engine.

        Return whether it was added.
        """
        pod = self._by_id.get(endpoint.id)
        of_class = self._join(endpoint)
        self.refresh()
        if pod is not None and pod.endpoint.engine == endpoint.engine:
            self._leave(pod.endpoint)
            pod.relabel(endpoint, of_class)
            return False
        self.remove(endpoint.id)
        pod = Pod(endpoint, self._index, of_class, self._new_mirror, self._unknown, self.adapters)
        self._by_id[endpoint.id] = pod
        self._by_target = None
        return True

    def remove(self, endpoint_id: EndpointId) -> None:
        """Remove an endpoint, if there is one."""
        pod = self._by_id.pop(endpoint_id, None)
        if pod is not None:
            self.refresh()
            self._by_target = None
            self._unlist(pod)
            self._names.remove(endpoint_id)
            self._leave(pod.endpoint)
            pod.detach()

    def _join(self, endpoint: Endpoint) -> PaceClass:
        """Return the class of an endpoint, and count one more member."""
        label = _label_of(endpoint)
        self._members[label] += 1
        found = self._classes.get(label)
        if found is None:
            found = self._classes[label] = PaceClass()
        return found

    def _leave(self, endpoint: Endpoint) -> None:
        """Count one member less; forget a class without members, except the unlabelled one."""
        label = _label_of(endpoint)
        self._members[label] -= 1
        if label and not self._members[label]:
            del self._members[label], self._classes[label]

    def list_models(self, event: ModelsListed) -> None:
        """Record the models that an endpoint serves, and the limits of their contexts."""
        pod = self._by_id.get(event.endpoint_id)
        if pod is not None:
            self._unlist(pod)
            pod.models, pod.max_model_lens = event.models, event.max_model_lens
            pod.serves_others = event.serves_others
            self._listed += 1
            self._open += event.serves_others
            self._served.update(event.models)
            self._contexts.update(event.max_model_lens.values())
            self._names.add(event.endpoint_id, event.models, event.aliases)
            self.shortest_context = min(self._contexts, default=inf)

    def least_context(self, quote: Quote, prompts: Prompts) -> int:
        """Return the least length of a request's context, in tokens; 0 if it fits everywhere.

        The estimated length decides whether it fits everywhere, not the least length.
        """
        if quote.tokens + (quote.max_tokens or 0) <= self.shortest_context:
            return 0
        return quote.least_context(prompts.estimator.error(quote.target_model, quote.kind))

    def _unlist(self, pod: Pod) -> None:
        if pod.models is not None:
            self._listed -= 1
            self._open -= pod.serves_others
            self._served -= Counter(pod.models)
            self._contexts -= Counter(pod.max_model_lens.values())
            self.shortest_context = min(self._contexts, default=inf)

    def serves(self, model: str) -> bool | None:
        """Return whether any endpoint serves a model; None while that is not known.

        It is known if endpoints are asked for their models (`ModelsListed`): true once one has
        listed it, false once all have listed theirs without it.
        """
        if not self._listed:
            return None
        if self._served[model]:
            return True
        return None if self._listed - self._open < len(self._by_id) else False

    def follow_anew(self) -> None:
        """Follow KV events anew, as after a gap: prompts are cut into other blocks now."""
        for pod in self._by_id.values():
            if pod.scheduler.mirror is not None:
                pod.follow((BlocksCleared(Cleared.GAP),))

    def save_memory(self) -> None:
        """Forget blocks of the fullest pods until the index is within its budget."""
        if not self._index.excess:
            return
        pods = enumerate(self._by_id.values())
        fullest = [(-pod.scheduler.blocks, number, pod) for number, pod in pods]
        heapify(fullest)
        while self._index.excess and fullest:
            _, number, pod = heappop(fullest)
            if self._forget_some(pod):
                heappush(fullest, (-pod.scheduler.blocks, number, pod))

    def _forget_some(self, pod: Pod) -> bool:
        """Forget some blocks of a pod, not all; return whether there were any to forget."""
        held, blocks = self._index.held, pod.scheduler.blocks
        some = max(1, blocks // _PARTS)
        while some < 2 * blocks:
            pod.scheduler.coarsen(some)
            if self._index.held < held:
                return True
            some *= 2  # what went may be blocks of responses, which the index does not have
        return False

    def refresh(self) -> None:
        """Discard the lists of eligible pods, because a pod's `eligibility` or ejection changed."""
        self.changes += 1
        self._eligible = self._whole = None

    def eligible(
        self,
        subset: tuple[str, ...] | None,
        model: str = "",
        *,
        whole: bool = False,
        ejected: bool = False,
    ) -> EligiblePods:
        """Return the pods of a subset that are reachable and, unless `ejected`, not ejected.

        If all reachable pods are ejected, they are all returned; if none is reachable, all are. For
        a `whole` request, pods whose roles serve only parts are left out. If any pod lists `model`,
        those whose lists lack it are left out.

        `subset` holds targets (`ip:port`) or addresses, as GIE's endpoint picker protocol has
        them in `x-gateway-destination-endpoint-subset`; None stands for all pods.
        """
        differ = self._listed and 0 < self._served[model] < self._listed
        if subset is not None or ejected or differ:
            within = list(self._by_id.values() if subset is None else self._within(subset))
            if differ:
                within = _serving(within, model)
            return self._answering(within, whole, ejected)
        known = self._whole if whole else self._eligible
        if known is None:
            known = self._answering(list(self._by_id.values()), whole, False)  # noqa: FBT003 (`ejected`)
            if whole:
                self._whole = known
            else:
                self._eligible = known
        return known

    def _within(self, subset: tuple[str, ...]) -> Iterator[Pod]:
        allowed = set(map(canonical_place, subset))
        for pod in self._by_id.values():
            if allowed & {pod.endpoint.target, pod.endpoint.address}:
                yield pod

    @staticmethod
    def _answering(pods: list[Pod], whole: bool, ejected: bool) -> EligiblePods:  # noqa: FBT001 (as in `eligible`)
        if whole:
            pods = [pod for pod in pods if not pod.partial]
        answering = [pod for pod in pods if pod.reachable] or pods
        if not ejected:
            answering = [pod for pod in answering if pod.outlier.ejected is None] or answering
        return EligiblePods(answering)

    # What was learned.

    def learned(self, lengths: OutputLengths) -> LearnedCopied:
        """Return what was learned of speeds and lengths, for another replica."""
        classes = [each.state(label) for label, each in self._classes.items()]
        endpoints = [
            (
                pod.endpoint.id,
                _label_of(pod.endpoint),
                pod.pace.prefill_slowness.state,
                pod.pace.decode_slowness.state,
            )
            for pod in self._by_id.values()
        ]
        return LearnedCopied(classes, endpoints, lengths.state, lengths.ttft_share.state)

    def take_over(self, event: LearnedCopied, lengths: OutputLengths, now: float) -> None:
        """Continue from what another replica has learned."""
        known = set()
        for state in event.classes:
            label = state[0]
            of_class = self._classes.get(label)
            if of_class is not None:
                known.add(label)
                of_class.restore(state)
        for endpoint_id, label, prefill, decode in event.endpoints:
            pod = self._by_id.get(endpoint_id)
            if pod is not None and label in known and label == _label_of(pod.endpoint):
                pod.pace.prefill_slowness.restore(prefill, now)
                pod.pace.decode_slowness.restore(decode, now)
        lengths.restore(event.responses)
        if event.ttft_share is not None:
            lengths.ttft_share.restore(event.ttft_share)
