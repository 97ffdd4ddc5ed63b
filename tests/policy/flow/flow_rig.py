"""Flow control over a fleet of pods whose caches have a known size, for tests."""

from math import inf

from msgspec.structs import replace

from epp.config.file import POLICIES, load
from epp.model.decision import Decision
from epp.model.request import RequestId, Usage
from epp.model.request_events import Aborted, Failure, Finished, FirstToken, Generated
from epp.policy.flow.flow_control import FlowControl, Outcome
from epp.policy.flow.held import HeldRequest
from epp.policy.scheduler import Scheduler
from tests.model.rig import Rig
from tests.strategies import request

CAPACITY = 100_000
"""Tokens of a pod's cache."""
LONG = 20_000
"""Tokens whose prefill takes more than the 0.3 seconds that an endpoint may owe."""


class FlowRig(Rig):
    """A rig whose pods report `CAPACITY`; requests are ids of tokens that share nothing."""

    def __init__(self, pods=2, capacity=CAPACITY, policy="least-ttft", **settings):
        super().__init__(pods)
        self.capacity = capacity
        self.outcomes: list[tuple[str, str, float]] = []
        self.quoted: list[str] = []
        loaded = load(POLICIES.get(policy, policy))
        self.flow = FlowControl(
            Scheduler(self.fleet, loaded.scheduling, lambda _: 0, quoted=[("rig", self._quoted)]),
            self.fleet,
            replace(loaded.flow, **settings),
            lambda asked, outcome, waited: self.outcomes.append((asked.id, outcome.value, waited)),
        )
        self.held = {}
        self.sent = {}
        self.refused = {}
        self.first_word = 0
        for number in range(pods):
            self.say(f"pod-{number}")

    def _quoted(self, quote):
        self.quoted.append(quote.request_id)

    def say(self, name, **load):
        """Have a pod report."""
        blocks = self.capacity // 16 + 1
        given = {"block_size": 16, "num_blocks": blocks, "at": self.now, "engine": "vllm"}
        self.report(name, **{**given, **load})

    def words(self, tokens):
        """Return a prompt of that many tokens that no other one shares."""
        self.first_word += 1_000_000
        return list(range(self.first_word, self.first_word + tokens))

    def fill(self, tokens=LONG):
        """Give every pod a long prompt."""
        return [
            self.come(f"first {number}", tokens) for number in range(len(self.fleet.pods.values()))
        ]

    def come(self, identity, tokens=1000, **more):
        """Have a request come; return the endpoint's name, or None if it waits."""
        asked = request(identity, self.words(tokens), **more)
        outcome = self.flow.route(asked, self.now)
        if isinstance(outcome, HeldRequest):
            self.held[identity] = outcome
            return None
        self.sent[identity] = outcome.endpoint.name
        return outcome.endpoint.name

    def release(self):
        """Return the names of those that go, in order; what raises comes after they went."""
        released: list[tuple[HeldRequest, Outcome]] = []
        try:
            self.flow.release(self.now, released)
        finally:
            went = self.taken(released)
        return went

    def taken(self, released):
        """Take in what no longer waits; return the names of those that go."""
        went = []
        for held, outcome in released:
            name = held.request.id
            del self.held[name]
            if isinstance(outcome, Decision):
                self.sent[name] = outcome.endpoint.name
                went.append(name)
            else:
                self.refused[name] = outcome
        return went

    def begin(self, identity):
        self.apply(FirstToken(RequestId(identity)))

    def go_on(self, identity, tokens):
        self.apply(Generated(RequestId(identity), tokens))

    def end(self, identity, prompt=1000, generated=100):
        self.apply(Finished(RequestId(identity), Usage(prompt, generated, 0)))

    def learn(self, tokens):
        """Have twenty responses of that length, at 6 ms a token, so that more are expected."""
        for number in range(20):
            self.come(f"before {number}", 10, max_tokens=tokens)
            self.begin(f"before {number}")
            self.wait(0.006 * tokens)
            self.end(f"before {number}", 10, tokens)

    def abort(self, identity):
        self.apply(Aborted(RequestId(identity)))

    def refuse(self, identity, failure=Failure.BUSY, *, served=True):
        """Have an endpoint answer with an error, or none answer."""
        self.apply(Aborted(RequestId(identity), refused=True, failure=failure, served=served))

    def wait(self, seconds):
        self.now += seconds

    def until(self):
        return self.flow.due if self.flow.due < inf else None
