"""Who may be picked, in columns."""

import msgspec

from epp.model.endpoint import Endpoint
from epp.model.kernels import Ledger
from epp.model.learning.prefill import Speed
from epp.model.pods.pod import Pod
from epp.model.prefix_index import Slot


class EligiblePods(msgspec.Struct, frozen=True, gc=False):
    """Some pods in aligned columns; good until one of them is another pod, slot or speed."""

    pods: list[Pod]
    endpoints: list[Endpoint]
    ledgers: list[Ledger]
    places: list[tuple[Slot, Speed]]

    @classmethod
    def of(cls, pods: list[Pod]) -> "EligiblePods":
        """List pods."""
        return cls(
            pods,
            [pod.endpoint for pod in pods],
            [pod.ledger for pod in pods],
            [(pod.slot, pod.speed) for pod in pods],
        )
