"""Which engine has which response: the latest ones, for a day, and never more than so many."""

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.model.endpoint import Target
from epp.model.learning import stored_responses
from epp.model.learning.stored_responses import KEPT_SECONDS, MOST, StoredResponses
from epp.model.prompts.block_hasher import BlockHasher
from tests.strategies import SECRET

HERE = "uid-1", Target("10.0.0.1:8000"), None
THERE = "uid-2", Target("10.0.0.2:8000"), 1

HASHER = BlockHasher(SECRET)


def test_the_engine_that_answered_last_with_an_id_has_it():
    stored = StoredResponses(HASHER.response_key)
    assert stored.engine_of("resp_1", 0.0) is None
    stored.store("resp_1", HERE, 0.0)
    stored.store("resp_2", THERE, 1.0)
    assert (stored.engine_of("resp_1", 2.0), stored.engine_of("resp_2", 2.0)) == (HERE, THERE)
    stored.store("resp_1", THERE, 3.0)
    assert (stored.engine_of("resp_1", 3.0), len(stored.state())) == (THERE, 2)


def test_no_id_is_nobodys():
    stored = StoredResponses(HASHER.response_key)
    stored.store("", HERE, 0.0)
    assert stored.engine_of("", 0.0) is None


def test_a_response_is_forgotten_after_a_day():
    stored = StoredResponses(HASHER.response_key)
    stored.store("old", HERE, 100.0)
    assert stored.engine_of("old", 100.0 + KEPT_SECONDS - 1) == HERE
    assert stored.engine_of("old", 100.0 + KEPT_SECONDS) is None
    stored.store("new", HERE, 100.0 + KEPT_SECONDS)
    assert len(stored.state()) == 1


def test_the_oldest_goes_for_a_new_one():
    stored = StoredResponses(HASHER.response_key)
    for number in range(MOST + 1):
        stored.store(str(number), HERE, 0.0)
    assert len(stored.state()) == MOST
    assert (stored.engine_of("0", 0.0), stored.engine_of("1", 0.0)) == (None, HERE)


def test_a_replica_that_starts_takes_over_what_another_knows_and_what_it_heard_counts_more():
    before, fresh = (StoredResponses(BlockHasher(SECRET).response_key) for _ in range(2))
    for name in ("a", "b"):
        before.store(name, HERE, 0.0)
    for name in ("b", "c"):
        fresh.store(name, THERE, KEPT_SECONDS)
    fresh.take_over(before.state(), KEPT_SECONDS + 1)
    engines = [fresh.engine_of(name, KEPT_SECONDS + 1) for name in "abc"]
    assert engines == [HERE, THERE, THERE]


def test_a_replica_takes_over_no_more_than_it_keeps(monkeypatch):
    before, fresh = (StoredResponses(HASHER.response_key) for _ in range(2))
    for name in "abcd":
        before.store(name, HERE, 0.0)
    fresh.store("e", THERE, 0.0)
    monkeypatch.setattr(stored_responses, "MOST", 3)
    fresh.take_over(before.state(), 0.0)
    engines = [fresh.engine_of(name, 0.0) for name in "abcde"]
    assert engines == [None, None, HERE, HERE, THERE]


@given(st.text(st.characters(), min_size=1))
def test_any_text_is_an_id(text):
    stored = StoredResponses(HASHER.response_key)
    stored.store(text, THERE, 5.0)
    assert stored.engine_of(text, 5.0) == THERE


class Storing(RuleBasedStateMachine):
    """Beside a list of all that was ever stored, with a table of five."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(stored_responses, "MOST", 5)
        self.stored = StoredResponses(HASHER.response_key)
        self.told = []

    def teardown(self):
        self.patch.undo()

    @rule(name=st.sampled_from("abcdefgh"), engine=st.sampled_from([HERE, THERE]))
    def store(self, name, engine):
        self.stored.store(name, engine, self.now)
        self.told = [each for each in self.told if each[0] != name] + [(name, engine, self.now)]

    @rule(seconds=st.sampled_from([0.0, 1.0, KEPT_SECONDS / 2, KEPT_SECONDS]))
    def wait(self, seconds):
        self.now += seconds

    @invariant()
    def the_latest_five_of_a_day_are_known(self):
        kept = {name: engine for name, engine, at in self.told[-5:] if self.now - at < KEPT_SECONDS}
        known = {name: self.stored.engine_of(name, self.now) for name in "abcdefgh"}
        assert known == {name: kept.get(name) for name in "abcdefgh"}
        assert len(self.stored.state()) <= 5


TestStoring = Storing.TestCase
