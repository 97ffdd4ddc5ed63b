"""What responses took: of what was seen, and of nothing else."""

import pytest

from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved
from epp.model.request import RequestId, Usage
from epp.model.request_events import Aborted, Finished, FirstToken, Unobserved
from epp.policy.peers.memory.responses import Responses
from tests.model.rig import Rig
from tests.policy.started import Context

R1 = RequestId("r1")
POD = EndpointId("default/pod-0")


class Log:
    def __init__(self):
        self.rig = Rig(2)
        self.seen = []
        self.responses = Responses(Context(fleet=self.rig.fleet), self.note, self.note)

    def note(self, *seen):
        *facts, now = seen
        assert now == self.rig.now
        self.seen.append(tuple(facts))

    def after(self, seconds, event):
        self.rig.now += seconds
        self.rig.apply(event)


@pytest.mark.parametrize(
    ("usage", "generated", "tokens"),
    [(Usage(completion_tokens=5), 0, 5), (Usage(completion_tokens=5), 9, 5), (None, 5, 5)],
)
def test_the_first_token_and_the_time_of_each_other(usage, generated, tokens):
    log = Log()
    log.rig.send("pod-0", "r1")
    log.after(0.5, FirstToken(R1))
    log.after(2, Finished(R1, usage, generated))
    assert log.seen == [(POD, 0.5), (POD, tokens, 0.5)]
    assert len(log.responses) == 0


def test_answers_that_are_generated_side_by_side_count_as_one():
    """Two answers to each of two prompts, of 6 tokens each, with the first one after 1 s."""
    log = Log()
    log.rig.send("pod-0", "r1", "one", "two", n=2)
    log.after(1, FirstToken(R1))
    log.after(5, Finished(R1, Usage(completion_tokens=24)))
    assert log.seen == [(POD, 1), (POD, 6, 1)]


@pytest.mark.parametrize(
    ("events", "seen"),
    [
        ([Finished(R1, None, 5)], [(POD, 5, None)]),  # no first token was seen
        (
            [FirstToken(R1), Finished(R1, None, 1)],
            [(POD, 1), (POD, 1, None)],
        ),
        ([FirstToken(R1), Finished(R1)], [(POD, 1)]),  # nor how many there were
        ([FirstToken(R1), Aborted(R1, 7)], [(POD, 1)]),
        ([FirstToken(R1), FirstToken(R1)], [(POD, 1)]),
        ([Aborted(R1)], []),
        ([Unobserved(R1)], []),
    ],
)
def test_less_is_told_where_less_was_seen(events, seen):
    log = Log()
    log.rig.send("pod-0", "r1")
    for event in events:
        log.after(1, event)
    assert log.seen == seen


@pytest.mark.parametrize(
    ("events", "seen"),
    [
        ([Unobserved(R1)], []),
        ([FirstToken(R1), Unobserved(R1, begun=True)], [(POD, 1)]),
    ],
)
def test_nothing_is_told_of_guesses_and_of_what_is_unknown(events, seen):
    log = Log()
    log.rig.send("pod-0", "r1")
    for event in events:
        log.after(1, event)
    log.after(1000, FirstToken(RequestId("unknown")))  # by when all of r1 was guessed
    log.after(1, Finished(RequestId("unknown"), None, 5))
    assert R1 not in log.rig.fleet.in_flight
    assert log.seen == seen
    assert len(log.responses) == 0


@pytest.mark.parametrize(
    ("event", "seen", "left"),
    [(FirstToken(R1), [(POD, 1)], 1), (Finished(R1, None, 5), [(POD, 5, None)], 0)],
)
def test_a_request_that_is_sent_again_starts_anew(event, seen, left):
    log = Log()
    log.rig.send("pod-1", "r1")
    log.after(3, FirstToken(R1))
    log.rig.send("pod-0", "r1")
    log.after(1, event)
    assert log.seen[1:] == seen
    assert len(log.responses) == left


def test_responses_of_what_is_gone_are_forgotten_and_others_are_not():
    log = Log()
    for name, request in (("pod-0", "r1"), ("pod-1", "r2"), ("pod-0", "r3"), ("pod-1", "r4")):
        log.rig.send(name, request)
    for begun in ("r1", "r2"):
        log.after(1, FirstToken(RequestId(begun)))
    log.after(1, EndpointRemoved(EndpointId("default/pod-1")))
    assert len(log.responses) == 2
    log.after(1, Finished(R1, None, 3))
    log.after(1, FirstToken(RequestId("r3")))
    assert log.seen[2:] == [(POD, 3, 1.5), (POD, 5)]
