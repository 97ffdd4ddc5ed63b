"""Which responses are observed to their end: those that teach something, and a few more."""

from zlib import crc32

import pytest

from epp.model.endpoint import Target
from epp.model.events import EndpointRemoved
from epp.model.request import Prompt, RequestId, Usage
from epp.model.request_events import Finished, FirstToken, Served, Unobserved
from tests.model.rig import Rig
from tests.strategies import text

SHORT = "hello"


def ids(chosen):
    """Names that are in the sample of one in 32, or not even in one of one in two."""
    least, most = (0, (1 << 32) // 32) if chosen else (1 << 31, 3 << 30)
    return (name for name in map(str, range(100_000)) if least <= crc32(name.encode()) < most)


class Watched(Rig):
    """Endpoints whose responses begin and end; `begin` says whether the end is needed."""

    names = ids(chosen=False)

    def begin(self, name, *texts, pod="pod-0", **more):
        self.send(pod, name, *texts, **more)
        self.now += 0.02
        self.apply(FirstToken(RequestId(name)))
        return self.fleet.needs_end(RequestId(name), self.now)

    def end(self, name, tokens=100, prompt=0, cached=None):
        self.now += 0.01 * (tokens - 1)
        self.apply(Finished(RequestId(name), Usage(prompt, tokens, cached)))

    def hurry(self):
        """Have so many begin elsewhere that traffic is not light."""
        for _ in range(50):
            self.begin(next(self.names), SHORT, pod="pod-1")


@pytest.fixture
def rig():
    """Pods of which everything is known; pod-0 answers once in 0.02 seconds."""
    made = Watched()
    made.names = ids(chosen=False)
    for pod in ("pod-1", "pod-0"):
        for _ in range(200):
            name = next(made.names)
            made.begin(name, SHORT, pod=pod)
            made.end(name, tokens=8)
    for _ in range(200):
        made.begin(next(made.names), SHORT)
    return made


def test_where_nothing_is_uncertain_none_is_needed(rig):
    assert not any(rig.begin(next(rig.names), SHORT) for _ in range(100))


def test_one_in_some_is_needed_all_the_same(rig):
    assert rig.begin(next(ids(chosen=True)), SHORT)


def test_after_a_pause_a_busy_endpoint_is_watched_no_more(rig):
    rig.now += 60
    assert not any(rig.begin(next(rig.names), SHORT) for _ in range(20))


def test_where_responses_are_rare_all_are_needed(rig):
    needed = []
    for _ in range(90):
        rig.now += 60
        needed.append(rig.begin(next(rig.names), SHORT))
    # A pause counts for ten times the mean before it, and moves that by a twentieth: by 1.45 times
    # from 0.02 seconds, which makes more than 0.1 with the fifth.
    assert needed == [False] * 4 + [True] * 86


def test_of_a_busy_fleet_all_of_a_rare_endpoint_are_needed(rig):
    needed = []
    for _ in range(50):
        for _ in range(140):  # ten seconds
            rig.now += 0.052
            rig.begin(next(rig.names), SHORT, pod="pod-1")
        needed.append(rig.begin(next(rig.names), SHORT))
    assert not any(needed[:8])
    assert all(needed[45:])


def test_the_first_of_an_endpoint_are_needed(rig):
    rig.add("pod-2", "10.0.0.3")
    needed = []
    for _ in range(30):
        name = next(rig.names)
        needed.append(rig.begin(name, SHORT, pod="pod-2"))
        rig.end(name, tokens=8)
    assert all(needed[:8])
    assert not any(needed[15:])


def test_those_after_a_restart_are_needed(rig):
    rig.report("pod-0", started_at=1.0)
    assert not rig.begin(next(rig.names), SHORT)
    rig.report("pod-0", started_at=2.0)
    assert rig.begin(next(rig.names), SHORT)


def test_a_cache_that_does_not_hold_what_is_predicted_is_watched_until_it_does(rig):
    prompt = list(range(1_000))
    name = next(rig.names)
    rig.begin(name, prompt)
    rig.end(name, tokens=8, prompt=1_000, cached=0)
    trusts = []
    for share in [0.6] * 6 + [1.0] * 20:
        trusts.append(rig.pod("pod-0").feedback.trust)
        name = next(rig.names)
        assert rig.begin(name, prompt) == (trusts[-1] < 0.9)
        rig.end(name, tokens=8, prompt=1_000, cached=int(rig.in_flight(name).cached * share))
    assert min(trusts) < 0.9 < trusts[-1]


def test_responses_that_become_longer_are_watched_for_a_while(rig):
    sample = ids(chosen=True)
    for _ in range(8):
        name = next(sample)
        rig.begin(name, SHORT)
        rig.end(name, tokens=400)
        rig.hurry()
    needed = 0
    while rig.begin(name := next(rig.names), SHORT):
        rig.end(name, tokens=400)
        rig.hurry()
        needed += 1
    assert 8 <= needed <= 16
    quote = rig.quote("q", SHORT)
    expected = rig.fleet.output_lengths.length(quote.response_kind)
    assert expected == pytest.approx(400, rel=0.1)


def test_a_conversation_whose_length_is_a_guess_is_watched_and_then_known(rig):
    said = text(9_000, "turn").encode()
    turns = [
        {"prompts": (Prompt(said[:end], marks=tuple(range(12_000, end + 1, 12_000))),)}
        for end in (12_000, 24_000, 36_000)
    ]
    assert not rig.begin(next(rig.names), **turns[0])  # nothing of it is cached
    asked = next(rig.names)
    assert rig.begin(asked, **turns[1])  # 3,000 tokens are, by a guess
    rig.end(asked, tokens=8, prompt=6_000, cached=2_992)
    assert not rig.begin(next(rig.names), **turns[2])


def test_token_ids_are_no_guess(rig):
    prompt = list(range(8_000))
    assert not rig.begin(next(rig.names), prompt)
    assert not rig.begin(next(rig.names), prompt)


def test_what_the_fleet_does_not_know_teaches_nothing(rig):
    gone = next(rig.names)
    rig.begin(gone, SHORT)
    rig.apply(Unobserved(RequestId(gone)))
    rig.apply(Served(RequestId(gone), Target("nowhere")))
    assert not rig.fleet.needs_end(RequestId("nobody's"), rig.now)
    left = next(rig.names)
    rig.send("pod-0", left)  # of no prompt
    assert not rig.fleet.needs_end(RequestId(left), rig.now)
    rig.apply(EndpointRemoved(rig.pod("pod-0").endpoint.id))
    assert not rig.fleet.needs_end(RequestId(left), rig.now)
