"""One publisher's stream as it is heard: models, gaps, clears, restarts and odd messages."""

from collections import Counter

import msgspec
import pytest

from epp.model.kv_changes import BlocksCleared, BlocksStored
from epp.protocol.kvevents.feed import FeedSettings
from epp.protocol.kvevents.notices import Anomaly, CacheChanges, StreamLost, StreamUp
from tests.kvpublisher import CLEARED, TOPIC, Publisher, frames, payload, removed, stored
from tests.protocol.kvevents.listener import GAP, PLAIN, REPLAYING, Listener, batches


def test_from_batch_0_on_the_stream_is_complete():
    publisher, heard = Publisher(), Listener().connect()
    heard.receive(publisher.publish(stored([1, 2])), publisher.publish(removed(1)))
    assert heard.held == publisher.cache == Counter([2])
    assert heard.of(StreamUp) == [StreamUp(False), StreamUp(True)]


def test_events_of_the_base_model_are_given_the_topics_name_or_the_settings():
    heard = Listener(FeedSettings(model="other", topic_prefix="")).connect()
    heard.receive(frames(0, payload(stored([1]))), frames(1, payload(stored([2])), topic=b""))
    heard.receive(frames(2, payload(stored([3], lora_name="adapter"))))
    models = [change.model for change in heard.changes(BlocksStored)]
    assert models == ["base", "other", "adapter"]


def test_a_model_with_an_at_sign_or_without_a_name():
    heard = Listener().connect().receive(frames(0, payload(stored([1])), topic=b"kv@p@a/b@c"))
    assert heard.of(CacheChanges)[-1].changes[0].model == "a/b@c"
    heard.receive(frames(1, payload(stored([2])), topic=b"kv@p"))
    assert [odd.kind for odd in heard.of(Anomaly)] == ["model"]


def test_a_late_subscriber_without_replay_is_incomplete():
    publisher = Publisher()
    batches(publisher, 1, 2)
    heard = Listener().connect().receive(*batches(publisher, 3, 4))
    assert heard.held == Counter([3, 4])
    assert not heard.complete
    assert heard.changes(BlocksCleared) == []


def test_without_replay_a_gap_invalidates_everything():
    publisher = Publisher()
    first, second, third, fourth = batches(publisher, 1, 2, 3, 4)
    heard = Listener().connect().receive(first, third, fourth, second)
    assert heard.held == Counter([3, 4])
    assert not heard.complete
    assert GAP in heard.said


def test_the_engines_clear_makes_the_stream_complete():
    publisher = Publisher()
    batches(publisher, 1)
    heard = Listener().connect().receive(*batches(publisher, 2))
    assert not heard.complete
    heard.receive(publisher.publish(CLEARED), *batches(publisher, 3))
    assert heard.complete
    assert heard.held == publisher.cache == Counter([3])


def test_clears_that_follow_each_other_are_few():
    publisher = Publisher()
    heard = Listener().connect().receive(*batches(publisher, 1))
    heard.receive(publisher.publish(stored([2]), *[CLEARED] * 1_000, stored([3]), CLEARED, CLEARED))
    assert 2 <= len(heard.changes(BlocksCleared)) < 20
    assert heard.held == Counter()


def test_duplicates_count_once():
    publisher = Publisher()
    first, second = batches(publisher, 1, 2)
    heard = Listener().connect().receive(first, first, second, first, second)
    assert heard.held == publisher.cache
    assert heard.feed.counts.duplicates == 3
    assert heard.receive(frames(0, b"\xc1")).held == publisher.cache


@pytest.mark.parametrize("settings", [PLAIN, REPLAYING])
def test_a_sequence_that_starts_again_is_another_engine(settings):
    publisher = Publisher()
    heard = Listener(settings).connect().replay(publisher).receive(*batches(publisher, 1, 2, 3))
    publisher.restart()
    heard.receive(*batches(publisher, 7))
    assert heard.held == Counter([7])
    assert heard.feed.counts.restarts == 1
    assert heard.complete


def test_after_a_break_an_engine_may_have_another_clock():
    heard = Listener().connect().receive(*batches(Publisher(), 1, 2))
    heard.feed.disconnected()
    heard.connect().receive(frames(0, msgspec.msgpack.encode([-1.0, [stored([7])], 0])))
    assert heard.held == Counter([7])


ODD_FRAMES = {
    "none": [],
    "one": [TOPIC],
    "two": [TOPIC, bytes(8)],
    "four": [TOPIC, bytes(8), payload(), b""],
    "short number": [TOPIC, bytes(7), payload()],
    "wrong topic": [b"other@pod@m", bytes(8), payload()],
    "no topic": [b"", bytes(8), payload()],
    "topic of bytes": [b"\xff\xfe", bytes(8), payload()],
}


@pytest.mark.parametrize("odd", ODD_FRAMES.values(), ids=ODD_FRAMES)
def test_malformed_frames_are_skipped(odd):
    publisher = Publisher()
    heard = Listener().connect().receive(*batches(publisher, 1))
    heard.receive(odd, *batches(publisher, 2))
    assert heard.held == publisher.cache
    assert len(heard.of(Anomaly)) == 1


def test_an_unreadable_batch_invalidates_everything():
    publisher = Publisher()
    heard = Listener().connect().receive(*batches(publisher, 1))
    heard.receive(frames(1, payload(stored([2]))[:-3]), frames(2, payload(stored([3]))))
    assert heard.held == Counter([3])
    assert not heard.complete
    assert heard.of(StreamLost) == []


def test_a_stream_that_cannot_be_read_is_lost_once_and_comes_back():
    heard = Listener().connect().receive(*(frames(number, b"\xc1") for number in range(9)))
    assert len(heard.of(StreamLost)) == 1
    heard.receive(frames(9, payload(stored([3]))))
    assert heard.held == Counter([3])
    assert isinstance(heard.said[-2], StreamUp)


def test_batches_of_another_rank_are_skipped():
    heard = Listener(FeedSettings(rank=1)).connect()
    heard.receive(frames(0, payload(stored([1]), rank=0)), frames(1, payload(stored([2]), rank=1)))
    heard.receive(frames(2, payload(stored([3]), rank=None)))
    assert heard.held == Counter([2, 3])
    assert [odd.kind for odd in heard.of(Anomaly)] == ["rank"]
