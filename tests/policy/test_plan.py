"""What is laid out for decisions never shows an old world: each is as if laid out anew.

Two fleets hear the same. Over one of them a scheduler decides that is made once, and again where
the configuration is read again; over the other one that is made for each decision, after all that
the fleet has laid out was thrown away.
"""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from epp.config.file import POLICIES, load
from epp.errors import RequestError
from epp.model.endpoint import ROLE_LABEL, EndpointId, Load
from epp.model.events import (
    EndpointRemoved,
    EndpointUpserted,
    LoadReported,
    ModelsListed,
    ScrapeFailed,
    ScrapeFailure,
)
from epp.model.request import RequestId
from epp.model.request_events import Aborted, Failure, Finished, FirstToken
from epp.policy.scheduler import Scheduler
from epp.values import fields_of, replaced
from tests.model.rig import Rig
from tests.policy.routing import routed
from tests.strategies import endpoint, request, text

PLUG_INS = """
plugins:
- {type: label-selector-filter, parameters: {matchLabels: {track: canary}}}
- {type: queue-scorer}
- {type: prefix-cache-scorer}
- {type: max-score-picker}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: label-selector-filter}
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: max-score-picker}
"""
ROLES = """
plugins:
- {type: decode-filter}
- {type: running-requests-size-scorer}
- {type: max-score-picker}
"""
CONFIGURATIONS = (POLICIES["least-ttft"], PLUG_INS, ROLES)

names = st.sampled_from([f"pod-{number}" for number in range(5)])
labels = st.sampled_from([{}, {"track": "canary"}, {ROLE_LABEL: "prefill"}, {ROLE_LABEL: "decode"}])
loads = st.builds(
    Load,
    waiting=st.sampled_from((0.0, 3.0)),
    running=st.sampled_from((0.0, 2.0)),
    kv_usage=st.sampled_from((0.0, 0.5)),
    block_size=st.sampled_from((None, 16, 64)),
    num_blocks=st.sampled_from((None, 40, 10_000)),
    caching=st.booleans(),
    counted=st.just(True),
)
texts = st.sampled_from([text(100), text(400), text(100) + " and more"])


def below(_):
    return 0


class Plans(RuleBasedStateMachine):
    """`live` is laid out as it comes, `fresh` anew for each decision."""

    @initialize(number=st.sampled_from(range(3)))
    def begin(self, number):
        self.live, self.fresh = Rig(0), Rig(0)
        self.sent = 0
        self.read_again(number)

    @rule(number=st.sampled_from(range(3)))
    def read_again(self, number):
        self.scheduling = load(CONFIGURATIONS[number]).scheduling
        self.scheduler = Scheduler(self.live.fleet, self.scheduling, below)

    def hear(self, event):
        for rig in (self.live, self.fresh):
            rig.apply(event)

    @rule(seconds=st.sampled_from((0.1, 5.0, 40.0)))
    def wait(self, seconds):
        for rig in (self.live, self.fresh):
            rig.now += seconds

    @rule(name=names, labels=labels, address=st.sampled_from(("10.0.0.1", "10.0.0.2")))
    def come(self, name, labels, address):
        self.hear(EndpointUpserted(endpoint(name, address, labels=labels)))

    @rule(name=names)
    def go(self, name):
        self.hear(EndpointRemoved(EndpointId(f"default/{name}")))

    @rule(name=names, load=loads)
    def report(self, name, load):
        self.hear(LoadReported(EndpointId(f"default/{name}"), replaced_at(load, self.live.now)))

    @rule(name=names, limit=st.sampled_from((50, 5000)))
    def list_models(self, name, limit):
        models = ModelsListed(EndpointId(f"default/{name}"), frozenset(("m", "x")), {"m": limit})
        self.hear(models)

    @rule(name=names, reason=st.sampled_from(ScrapeFailure))
    def fail(self, name, reason):
        self.hear(ScrapeFailed(EndpointId(f"default/{name}"), reason))

    @rule(
        number=st.integers(0, 20),
        kind=st.sampled_from(
            (
                FirstToken,
                Finished,
                lambda each: Aborted(each, refused=True, failure=Failure.GATEWAY),
            )
        ),
    )
    def end(self, number, kind):
        self.hear(kind(RequestId(f"r{number}")))

    @rule(words=texts, limit=st.sampled_from((None, 100)))
    def decide(self, words, limit):
        asked = request(f"r{self.sent}", words, max_tokens=limit)
        self.sent += 1
        self.fresh.fleet.pods.refresh()
        anew = Scheduler(self.fresh.fleet, self.scheduling, below)
        assert decided(self.scheduler, self.live, asked) == decided(anew, self.fresh, asked)


def replaced_at(load, now):
    """Return a load that was read at that time."""
    return Load(**{name: getattr(load, name) for name in load.__struct_fields__} | {"at": now})


def decided(scheduler, rig, asked):
    """Return what a scheduler decides and commits to; an error by its text."""
    try:
        decision = routed(scheduler, asked, rig.now)
    except RequestError as error:
        return type(error), str(error)
    seen = [
        (replaced(each, current=None, chains=()), each.waiting, each.running, each.kv_usage)
        for each in (*decision.considered, *decision.candidates)
    ]
    other = {"candidates", "considered", "predicted_for"}
    said = {name: value for name, value in fields_of(decision).items() if name not in other}
    return said, seen


TestPlans = Plans.TestCase
TestPlans.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
