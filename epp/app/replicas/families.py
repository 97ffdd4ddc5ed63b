"""The metric families of the exchange with other replicas."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from epp.adapters.telemetry.histogram import Histogram
from epp.adapters.telemetry.series import FamilyText, counter, expose, gauge, histogram
from epp.protocol.replicas.fact_writer import FactWriter
from epp.protocol.replicas.messages import Dropped

if TYPE_CHECKING:  # it imports this module
    from epp.app.replicas.exchange import Replicas

KNOWN: Final = gauge(
    "warmpick_replicas_known",
    "Other replicas of this picker, by their addresses; over Redis, that were heard lately.",
)
REACHED: Final = gauge(
    "warmpick_replicas_reached",
    "Other replicas of this picker that could be sent to within a second or so.",
)
HEARD: Final = gauge(
    "warmpick_replicas_heard", "Other replicas of this picker that were heard within ten seconds."
)
SENT: Final = counter(
    "warmpick_replica_facts_sent_total", "Facts that were sent to the other replicas."
)
UNSENT: Final = counter(
    "warmpick_replica_messages_unsent_total",
    "Messages that a replica, or the server in between, was not there for or had no room for.",
)
APPLIED: Final = counter(
    "warmpick_replica_facts_applied_total", "Facts of other replicas that were applied."
)
DROPPED: Final = counter(
    "warmpick_replica_dropped_total", "What others sent that was not used, by reason.", "reason"
)
MISSING: Final = gauge(
    "warmpick_replica_messages_missing",
    "Messages of the replicas that are known that did not arrive.",
)
LAG: Final = histogram(
    "warmpick_replica_lag_seconds",
    "Time from when a fact was noted at another replica to when it was applied here.",
)
COMPARED: Final = counter(
    "warmpick_replica_caches_compared_total",
    "Caches that were compared with what the replica that owns the endpoint believes.",
    "result",
)
COPIED: Final = counter(
    "warmpick_replica_blocks_copied_total",
    "Blocks that were added or dropped because another replica believed otherwise.",
)
_COMPARED: Final = (("same", False), ("different", True))
LAGS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 10.0)
"""Bounds of the lag's histogram, in seconds."""


def families(replicas: "Replicas", writer: FactWriter, lags: Histogram) -> Iterator[FamilyText]:
    """Yield the families of one replica, which `writer` writes for."""
    reader, copies = replicas.reader, replicas.copies
    yield from expose(KNOWN, [((), replicas.known)])
    yield from expose(REACHED, [((), replicas.reached)])
    yield from expose(HEARD, [((), reader.present)])
    yield from expose(SENT, [((), writer.written)])
    yield from expose(UNSENT, [((), replicas.unsent)])
    yield from expose(APPLIED, [((), reader.applied)])
    yield from expose(DROPPED, [((why.value,), reader.dropped[why]) for why in Dropped])
    yield from expose(MISSING, [((), sum(each.missing for each in reader.peers.values()))])
    yield from expose(LAG, [((), lags)])
    compared = [((name,), copies.compared[differs]) for name, differs in _COMPARED]
    yield from expose(COMPARED, compared)
    yield from expose(COPIED, [((), copies.copied)])
