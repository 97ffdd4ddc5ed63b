"""Fleets that tell each other what they see, message by message."""

from collections import deque

from epp.model.endpoint import EndpointId
from epp.model.request_events import Admitted
from epp.protocol.replicas.fact_reader import FactReader
from epp.protocol.replicas.fact_writer import SHARED_EVENTS, FactWriter
from epp.protocol.replicas.messages import read_facts, read_message
from tests.model.rig import Rig
from tests.strategies import text

POOL = b"the pool"
POD = EndpointId("default/pod-0")
PROMPTS = [text(400, seed=seed) + text(200, seed=more) for seed in "ab" for more in "cd"]


class Replica(Rig):
    """A rig whose events are told. `told` has its messages to all."""

    def __init__(self, number, pods=2, pool=POOL):
        super().__init__(pods)
        self.number = number
        self.pool = pool
        self.forget_chains()
        self.told: deque[bytes] = deque()

    def forget_chains(self):
        endpoint_of = self.fleet.pods.endpoint
        self.writer = FactWriter(self.pool, self.number, endpoint_of, self.admission_of)
        self.reader = FactReader(self.writer)
        self.fleet.unsubscribe("writer")
        self.fleet.subscribe(SHARED_EVENTS, self.writer.note, "writer")

    def admission_of(self, request):
        found = self.fleet.in_flight.get(request)
        return None if found is None else Admitted(found.quote, found.pod.endpoint.id)

    def tell(self):
        """Write what was noted; return all messages that nobody took yet."""
        self.told += self.writer.messages()
        messages = list(self.told)
        self.told.clear()
        return messages

    def heartbeat(self):
        return self.writer.to_all([self.writer.heartbeat(self.now)], self.now)

    def hear(self, message):
        """Take in a message; return the answer, None without one."""
        heard = self.reader.read(message, self.now)
        self.writer.applying = True
        try:
            for event in heard.events:
                self.apply(event)
        finally:
            self.writer.applying = False
        return self.writer.to_one(heard.answers, self.now) if heard.answers else None

    def lapse(self):
        self.writer.applying = True
        try:
            for event in list(self.reader.lapse(self.now)):
                self.apply(event)
        finally:
            self.writer.applying = False

    @property
    def dropped(self):
        return {reason.name: times for reason, times in self.reader.dropped.items()}

    def admit(self, identity, *texts, pod="pod-0", **more):
        self.send(pod, identity, *texts, **more)


def exchange(one, other, message):
    """Send a message from one to the other, and all answers that it leads to."""
    there, back = other, one
    while message is not None:
        message = there.hear(message)
        there, back = back, there


def settle(one, other):
    """Have each hear all that the other tells."""
    for here, there in ((one, other), (other, one)):
        for message in here.tell():
            exchange(here, there, message)


def in_flight(replica):
    return {
        name: each.pod.endpoint.id
        for name, each in replica.fleet.in_flight.items()
        if not each.unobserved
    }


def held(replica):
    """What each endpoint's cache is believed to hold."""
    return {
        pod.endpoint.id: set(pod.scheduler.cache.hashes()) for pod in replica.fleet.pods.values()
    }


def facts_of(message):
    return read_facts(read_message(message))[0]
