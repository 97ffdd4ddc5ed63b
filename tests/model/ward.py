"""A fleet whose endpoints fail and stall, and who is left out for it."""

from itertools import count

from epp.model.endpoint import EndpointId, Target
from epp.model.events import Ejected, EjectionReason, Returned, ScrapeFailure
from epp.model.request import RequestId
from epp.model.request_events import Aborted, Admitted, Failure, Finished, Served
from tests.model.rig import LONG, Rig

FAILURES, STALL = EjectionReason
REFUSED, BROKEN, LATE, NO_PAGE = ScrapeFailure


class Ward(Rig):
    """A rig that hears who is ejected and returned, by name."""

    def __init__(self, pods=3, **more):
        super().__init__(pods, **more)
        self.heard = []
        self.requests = count()
        self.fleet.subscribe((Ejected, Returned), self.hear)

    def hear(self, event, now, guessed):
        assert not guessed
        name = event.endpoint_id.partition("/")[2]
        self.heard.append((name, event.reason if isinstance(event, Ejected) else None))

    def fail(self, name, *, times=1, failure=Failure.GATEWAY, prompt=LONG, **more):
        """Have requests fail, one after the other."""
        for _ in range(times):
            identity = f"r{next(self.requests)}"
            self.send(name, identity, prompt, **more)
            self.now += 0.1
            self.apply(Aborted(RequestId(identity), refused=True, failure=failure))
        self.now += 0.1

    def succeed(self, name):
        self.now += 0.1
        self.serve(name, f"r{next(self.requests)}", LONG)

    def pass_over(self, name, prompt, *, retried=True):
        """Have a request be sent to one, and served by pod-1, at a second try or at the first."""
        identity = f"r{next(self.requests)}"
        self.now += 0.1
        self.send(name, identity, prompt)
        self.now += 0.1
        self.apply(Served(RequestId(identity), Target("10.0.0.2:8000"), retried=retried))
        self.apply(Finished(RequestId(identity)))

    @property
    def left(self):
        """Return the names of those that may be picked."""
        return "".join(name[-1] for name in self.ask(LONG))


def hang(ward, name, seconds, *, others=True):
    """Have an endpoint show the same figures for so long, while others go on."""
    for second in range(seconds):
        ward.now += 1.0
        for pod in ward.fleet.pods.values():
            running = 1.0 + (second % 2 if others and pod.endpoint.name != name else 0)
            ward.report(pod.endpoint.name, running=running, kv_usage=0.5)


def disaggregated(ward, identity, prefill=1, encode=None):
    """Have pod-0 decode a request of which others compute the stages before."""
    stages = [
        None if each is None else EndpointId(f"default/pod-{each}") for each in (prefill, encode)
    ]
    ward.apply(Admitted(ward.quote(identity, LONG), EndpointId("default/pod-0"), *stages))
