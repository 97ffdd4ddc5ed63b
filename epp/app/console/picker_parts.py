"""Parts of a picker as the console shows them: what waits, other replicas, a shadow."""

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from epp.app.console.views import BandView, PeerView, ReplicasView, ShadowView, WaitingView
from epp.app.flow.held_requests import HeldRequests
from epp.app.observing.shadow import Shadow
from epp.model.pods.pod import Pod
from epp.policy.flow.flow_control import FlowControl

if TYPE_CHECKING:  # it needs an extra, `warmpick[replicas]`
    from epp.app.replicas.exchange import Replicas

_MAX_BANDS: Final = 64
_MAX_PEERS: Final = 64
_MILLI: Final = 1e3


class PickerParts(NamedTuple):
    """The parts that this picker has. The view of a part that it does not have is None."""

    flow: FlowControl
    held: HeldRequests
    """The requests that wait in `flow`."""
    replicas: "Replicas | None" = None
    shadow: Shadow | None = None

    def room_used(self, pod: Pod, now: float) -> float | None:
        """Return how full the fullest axis of an endpoint's room is; None if it is not known."""
        if self.flow.rooms.unaccounted(pod, now):
            return None
        return max(self.flow.rooms.ratios(pod, now).values())

    def waiting_view(self) -> WaitingView:
        """Return the requests that wait."""
        flow, held = self.flow, self.held
        line = flow.line
        return WaitingView(
            holds=flow.settings.holds,
            gated=flow.gate is not None,
            requests=line.requests,
            bytes=line.bytes,
            prefill_seconds=round(line.seconds, 3),
            bands=tuple(
                BandView(priority=priority, requests=requests, bytes=size)
                for priority, requests, size in islice(line.bands(), _MAX_BANDS)
            ),
            no_room={axis.value: times for axis, times in flow.would_wait.items()},
            refused=dict(held.refused),
            waited=sum(held.waits.counts),
            waited_seconds=round(held.waits.total, 3),
            memory_share=round(flow.rooms.share.value, 4),
        )

    def replicas_view(self, now: float) -> ReplicasView | None:
        """Return the other replicas."""
        replicas = self.replicas
        if replicas is None:
            return None
        reader, compared = replicas.reader, replicas.copies.compared
        return ReplicasView(
            warm=replicas.warm,
            known=replicas.known,
            reached=replicas.reached,
            heard=reader.present,
            applied=reader.applied,
            dropped={why.value: times for why, times in reader.dropped.items()},
            unsent=replicas.unsent,
            compared_same=compared[False],
            compared_different=compared[True],
            peers=tuple(
                PeerView(
                    name=f"{number:014x}",
                    present=peer.present,
                    settled=bool(peer.settled),
                    silent_seconds=round(max(0.0, now - peer.last_message_at), 1),
                    missing=peer.missing,
                    lag_ms=None if peer.lag is None else round(_MILLI * peer.lag, 2),
                )
                for number, peer in islice(reader.peers.items(), _MAX_PEERS)
            ),
        )

    def shadow_view(self) -> ShadowView | None:
        """Return how the shadow compares with the live configuration."""
        if self.shadow is None:
            return None
        tally = self.shadow.tally
        return ShadowView(
            policy=self.shadow.name,
            agreed=tally.agreed,
            differed=tally.differed,
            refused=tally.refused,
            failed=tally.failed,
            live_ttft_seconds=round(tally.live_ttft, 6),
            shadow_ttft_seconds=round(tally.shadow_ttft, 6),
            live_cached_tokens=tally.live_cached,
            shadow_cached_tokens=tally.shadow_cached,
        )
