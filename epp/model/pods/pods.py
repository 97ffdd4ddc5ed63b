"""The endpoints there are, by id and by target."""

from collections import Counter
from collections.abc import Collection
from typing import Final

from epp.model.caches.choice import DEFAULT_MODEL, CacheSpec
from epp.model.endpoint import Endpoint, EndpointId, Target
from epp.model.kernels import PrefixIndex
from epp.model.learning.prefill import PrefillModel
from epp.model.pods.eligible import EligiblePods
from epp.model.pods.pod import Pod
from epp.model.prompts.block_hasher import TOKEN_BLOCK, BlockHasher

CLASS_LABEL: Final = "warmpick.io/endpoint-class"
"""Endpoints with the same value of this label are taken to be equally fast."""


class Pods:
    """All pods. `capacity`, in tokens, is that of a cache whose endpoint has not said.

    `blocks` counts the engines by the size of their blocks, in tokens.
    """

    def __init__(self, index: PrefixIndex, hasher: BlockHasher, capacity: int) -> None:
        self._index = index
        self._hasher = hasher
        self._unknown = CacheSpec(model=DEFAULT_MODEL, capacity=capacity, block=TOKEN_BLOCK)
        self._by_id: dict[EndpointId, Pod] = {}
        self._by_target: dict[Target, Pod] | None = None
        self._prefill: dict[str, PrefillModel] = {}
        self._eligible: EligiblePods | None = None
        self.blocks: Counter[int] = Counter()

    def __getitem__(self, endpoint_id: EndpointId) -> Pod:
        return self._by_id[endpoint_id]

    def get(self, endpoint_id: EndpointId) -> Pod | None:
        """Return an endpoint's pod; None for an unknown one."""
        return self._by_id.get(endpoint_id)

    def at(self, target: Target) -> Pod | None:
        """Return a pod that listens at a target; one of several where they share it."""
        if self._by_target is None:
            self._by_target = {each.endpoint.target: each for each in self._by_id.values()}
        return self._by_target.get(target)

    def values(self) -> Collection[Pod]:
        """All pods, in the order in which they came."""
        return self._by_id.values()

    def upsert(self, endpoint: Endpoint) -> bool:
        """Take in an endpoint; return whether it is another engine than was known by its name."""
        pod = self._by_id.get(endpoint.id)
        prefill = self._prefill.setdefault(endpoint.labels.get(CLASS_LABEL, ""), PrefillModel())
        self._eligible = None
        if pod is not None and pod.endpoint.engine == endpoint.engine:
            pod.rename(endpoint, prefill)
            return False
        self.remove(endpoint.id)
        pod = Pod(endpoint, self._index, prefill, self._hasher, self._unknown)
        self._by_id[endpoint.id] = pod
        self._by_target = None
        self.blocks[pod.engine_block] += 1
        return True

    def remove(self, endpoint_id: EndpointId) -> None:
        """Let an endpoint go, if there is one."""
        pod = self._by_id.pop(endpoint_id, None)
        if pod is not None:
            self._eligible = self._by_target = None
            self._lose(pod.engine_block)
            pod.leave()

    def resized(self, before: int, after: int) -> None:
        """Take in that an engine has blocks of another size."""
        self._lose(before)
        self.blocks[after] += 1

    def _lose(self, block: int) -> None:
        self.blocks[block] -= 1
        if not self.blocks[block]:
            del self.blocks[block]

    def fullest(self) -> Pod:
        """Return the pod of whose cache most is remembered."""
        return max(self._by_id.values(), key=lambda pod: len(pod.scheduler.cache))

    def changed(self) -> None:
        """Take in that a pod answers or does not, has another slot, or another speed."""
        self._eligible = None

    def eligible(self, subset: tuple[str, ...] | None) -> EligiblePods:
        """Return who may be picked within a subset: those who answer, or where none does, all."""
        if subset is not None:
            allowed = set(subset)
            within = [
                pod
                for pod in self._by_id.values()
                if allowed & {pod.endpoint.target, pod.endpoint.address}
            ]
            return self._answering(within)
        if self._eligible is None:
            self._eligible = self._answering(list(self._by_id.values()))
        return self._eligible

    @staticmethod
    def _answering(pods: list[Pod]) -> EligiblePods:
        return EligiblePods.of([pod for pod in pods if pod.reachable] or pods)
