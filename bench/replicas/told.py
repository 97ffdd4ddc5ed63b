"""Simulated pickers that tell each other what they see as real replicas do, in virtual time.

The facts, their encoding and how they are taken in are the product's (`epp.protocol.replicas`);
what is simulated is the network: each message arrives after a lag.
"""

from collections.abc import Sequence
from functools import partial

from epp.model.events import Event
from epp.model.request import RequestId
from epp.model.request_events import Admitted
from epp.policy.plugins import Unseen
from epp.protocol.replicas.fact_reader import FactReader
from epp.protocol.replicas.fact_writer import SHARED_EVENTS, FactWriter
from epp.replay.simulation.clock import Clock
from epp.replay.simulation.picker import SimulatedPicker
from epp.replay.simulation.run import Simulation

_BATCH_SECONDS = 0.001
_HEARTBEAT_SECONDS = 1.0
_MARK = b"in bench"


class ToldPicker:
    """One picker's side of the exchange."""

    def __init__(self, number: int, picker: SimulatedPicker, clock: Clock, lag: float) -> None:
        self.others: list[ToldPicker] = []
        self.fleet = picker.fleet
        self._clock, self._lag = clock, lag
        told_of = self.fleet.pods.endpoint, self._admission
        self.writer = FactWriter(_MARK, number, *told_of, self._tell_soon)
        self.reader = FactReader(self.writer)
        self.fleet.subscribe(SHARED_EVENTS, self.writer.note)
        picker.decide_apart(lambda now: Unseen(*self.reader.unseen(now)))
        clock.routinely_at(0.0, self._heartbeat)  # replicas know each other before they are ready

    def _admission(self, request: RequestId) -> Admitted | None:
        found = self.fleet.in_flight.get(request)
        return None if found is None else Admitted(found.quote, found.pod.endpoint.id)

    def _tell_soon(self) -> None:
        self._clock.at(self._clock.now + _BATCH_SECONDS, self._tell)

    def _tell(self) -> None:
        for message in self.writer.messages():
            self._send(self.others, message)

    def _send(self, others: list["ToldPicker"], message: bytes) -> None:
        for other in others:
            self._clock.at(self._clock.now + self._lag, partial(other.hear, self, message))

    def hear(self, sender: "ToldPicker", message: bytes) -> None:
        heard = self.reader.read(message, self._clock.now)
        self._apply(heard.events)
        if heard.answers:
            self._tell()
            self._send([sender], self.writer.to_one(heard.answers, self._clock.now))

    def _apply(self, events: Sequence[Event]) -> None:
        self.writer.applying = True
        try:
            for event in events:
                self.fleet.apply(event, self._clock.now)
        finally:
            self.writer.applying = False

    def _heartbeat(self) -> None:
        now = self._clock.now
        self._tell()
        self._send(self.others, self.writer.to_all([self.writer.heartbeat(now)], now))
        self._apply(list(self.reader.lapse(now)))
        self._clock.routinely_at(now + _HEARTBEAT_SECONDS, self._heartbeat)


def exchange(simulation: Simulation, lag: float) -> None:
    """Have the pickers of a run tell each other what they see, which arrives after `lag`."""
    told = [
        ToldPicker(number + 1, picker, simulation.clock, lag)
        for number, picker in enumerate(simulation.pickers)
    ]
    for each in told:
        each.others = [other for other in told if other is not each]
