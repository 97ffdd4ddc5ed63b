"""One publisher's stream with replay: what was missed is asked for, and waits for."""

from collections import Counter

import pytest

from epp.model.kv_changes import BlocksStored
from epp.protocol.kvevents import published_messages
from epp.protocol.kvevents.feed import FeedSettings
from epp.protocol.kvevents.notices import (
    Anomaly,
    CacheChanges,
    ReplayRequest,
    StreamLost,
    StreamUp,
)
from tests.kvpublisher import END, TOPIC, Publisher, frames, payload, stored
from tests.protocol.kvevents.listener import GAP, REPLAYING, Listener, batches

MAX_ATTEMPTS = 3


def test_a_late_subscriber_requests_a_replay():
    publisher = Publisher()
    batches(publisher, 1, 2)
    heard = Listener(REPLAYING).connect()
    assert heard.said == [ReplayRequest(0)]
    heard.receive(*batches(publisher, 3, 4))
    assert heard.held == Counter()
    assert heard.replay(publisher).receive(*batches(publisher, 5)).held == publisher.cache
    assert heard.complete
    assert {each.model for each in heard.changes(BlocksStored)} == {"base"}


def test_without_a_replay_an_idle_publisher_is_followed_all_the_same():
    heard = Listener(REPLAYING).connect()
    heard.hear(heard.feed.replay_failed())
    assert heard.of(StreamUp) == [StreamUp(complete=False)]


def test_a_replay_that_starts_late_is_used_but_incomplete():
    publisher = Publisher()
    batches(publisher, 1, 2, 3)
    heard = Listener(REPLAYING).connect().replay(publisher, kept=2)
    assert heard.held == Counter([2, 3])
    assert not heard.complete


def test_an_engine_that_published_nothing_is_complete():
    publisher = Publisher()
    heard = Listener(REPLAYING).connect().replay(publisher)
    assert heard.complete
    assert heard.receive(*batches(publisher, 1)).held == publisher.cache


def test_with_replay_a_gap_is_closed():
    publisher = Publisher()
    first, _, _, fourth, fifth = batches(publisher, 1, 2, 3, 4, 5)
    heard = Listener(REPLAYING).connect().replay(Publisher())
    heard.receive(first, fourth, fifth)
    assert heard.said[-1] == ReplayRequest(0)
    assert heard.replay(publisher).held == publisher.cache
    assert heard.complete
    assert GAP not in heard.said
    assert (heard.feed.counts.gaps, heard.feed.counts.replays) == (1, 2)


@pytest.mark.parametrize("failure", ["silence", "forgotten"])
def test_a_gap_that_cannot_be_closed_invalidates_everything(failure):
    publisher = Publisher()
    heard = Listener(REPLAYING).connect().replay(publisher)
    first, *_, last = batches(publisher, *range(8))
    heard.receive(first, last)
    if failure == "silence":
        heard.hear(heard.feed.replay_failed())
        for _ in range(MAX_ATTEMPTS):
            heard.hear(heard.feed.replay_failed())
    else:
        heard.replay(publisher, kept=1)
    assert heard.held == Counter([7])
    assert not heard.complete


def test_a_batch_that_overtook_another_waits_for_it():
    publisher = Publisher()
    heard = Listener(REPLAYING).connect().replay(publisher)
    first, second, third = batches(publisher, 1, 2, 3)
    heard.receive(first, third, second)
    assert heard.held == Counter([1])
    assert heard.replay(publisher).held == publisher.cache


def test_a_restart_that_is_seen_late_is_made_up_for_by_replay():
    publisher = Publisher()
    heard = Listener(REPLAYING).connect().replay(publisher).receive(*batches(publisher, 1, 2, 3))
    publisher.restart()
    _, second = batches(publisher, 7, 8)
    assert heard.receive(second).replay(publisher).held == publisher.cache
    assert heard.complete


@pytest.mark.parametrize("published", range(6))
def test_an_unseen_restart_is_found_by_the_last_batch_seen(published):
    publisher = Publisher()
    heard = Listener(REPLAYING).connect().replay(publisher).receive(*batches(publisher, 1, 2, 3))
    publisher.restart()
    heard.feed.disconnected()
    batches(publisher, *range(7, 7 + published))
    heard.connect()
    assert heard.asked() == 2
    heard.replay(publisher).receive(*batches(publisher, 100))
    assert heard.held == publisher.cache
    assert heard.feed.counts.restarts == 1


@pytest.mark.parametrize("waiting", [[], [3]])
def test_what_came_before_a_break_or_just_after_it_is_not_taken_for_the_next_batch(waiting):
    publisher = Publisher()
    heard = Listener(REPLAYING).connect().replay(publisher).receive(*batches(publisher, 1))
    batches(publisher, 2)
    heard.receive(*batches(publisher, *waiting))
    publisher.restart()
    heard.feed.disconnected()
    _, second = batches(publisher, 7, 8)
    heard.receive(second)
    assert heard.connect().replay(publisher).held == publisher.cache
    assert heard.complete


@pytest.mark.parametrize("failure", ["silence", "forgotten"])
def test_a_replay_without_the_last_batch_seen_may_hide_a_restart(failure):
    publisher = Publisher()
    heard = Listener(REPLAYING).connect().replay(publisher).receive(*batches(publisher, 1))
    publisher.restart()
    heard.feed.disconnected()
    batches(publisher, 7)
    heard.connect()
    if failure == "silence":
        heard.hear(heard.feed.replay_failed())
    last = batches(publisher, 8)
    heard.receive(*last).replay(publisher, kept=1)
    assert heard.held == Counter([8])
    assert not heard.complete


def test_a_replay_that_broke_off_goes_on_with_the_last_batch_of_it():
    publisher = Publisher()
    batches(publisher, *range(5))
    heard = Listener(REPLAYING).connect()
    for message in publisher.replay(0)[:2]:
        heard.hear(heard.feed.replayed(message))
    heard.hear(heard.feed.replay_failed())
    assert heard.receive(*batches(publisher, 5)).asked() == 1
    assert heard.replay(publisher).held == publisher.cache
    assert heard.complete


def test_an_engine_that_is_slow_to_replay_is_asked_again_at_the_next_gap():
    publisher = Publisher()
    heard = Listener(REPLAYING).connect().replay(publisher).receive(*batches(publisher, 1, 2))
    publisher.restart()
    heard.feed.disconnected()
    batches(publisher, 7, 8)
    heard.connect()
    heard.hear(heard.feed.replayed(publisher.replay(1)[0]))
    for _ in range(2):
        heard.hear(heard.feed.replay_failed())
    assert heard.receive(*batches(publisher, 9)).asked() == 0
    assert heard.replay(publisher).held == publisher.cache
    assert heard.complete


def test_a_short_break_loses_nothing():
    publisher = Publisher()
    heard = Listener(REPLAYING).connect().replay(publisher).receive(*batches(publisher, 1, 2))
    before = len(heard.said)
    heard.feed.disconnected()
    batches(publisher, 3)
    heard.connect().replay(publisher)
    assert heard.held == publisher.cache
    assert heard.feed.counts.disconnects == 1
    assert [type(notice) for notice in heard.said[before:] if notice != "answered"] == [
        ReplayRequest,
        CacheChanges,
    ]


def test_a_lost_publisher_starts_from_nothing():
    publisher = Publisher()
    heard = Listener(REPLAYING).connect().replay(publisher).receive(*batches(publisher, 1, 2))
    heard.hear(heard.feed.lost("it is gone"))
    assert heard.said[-1] == StreamLost("it is gone")
    publisher.restart()
    batches(publisher, 5)
    heard.connect()
    assert heard.asked() == 0
    assert heard.replay(publisher).held == publisher.cache


@pytest.mark.parametrize(("limit", "most"), [("_MOST_WAITING", 3), ("_MOST_WAITING_BYTES", 400)])
def test_the_backlog_is_bounded(monkeypatch, limit, most):
    monkeypatch.setattr(published_messages, limit, most)
    publisher = Publisher()
    heard = Listener(REPLAYING).connect()
    heard.receive(*batches(publisher, *range(50)))
    assert len(heard.feed._backlog) <= 4
    assert "backlog" in {odd.kind for odd in heard.of(Anomaly)}
    assert heard.replay(publisher).held <= publisher.cache
    assert not heard.complete
    _, last = batches(publisher, 50, 51)
    assert heard.receive(last).replay(publisher).held >= Counter([50, 51])


def test_batches_that_waited_for_a_replay_are_accepted_one_at_a_time():
    publisher = Publisher()
    heard = Listener(REPLAYING).connect()
    replayed, live = batches(publisher, *range(3)), batches(publisher, *range(3, 30))
    for message in live:
        heard.hear(heard.feed.receive(message))
    sizes = []
    for message in [*replayed, *publisher.replay(30)]:
        heard.said += heard.feed.replayed(message)
    while heard.feed.behind:
        notices = heard.feed.catch_up()
        sizes.append(len([each for each in notices if isinstance(each, CacheChanges)]))
    assert sizes == [1] * len(live)
    assert heard.feed.catch_up() == []


def test_a_message_is_handled_after_those_that_waited_before_it():
    publisher = Publisher()
    heard = Listener(REPLAYING).connect()
    for start in (1_000, 2_000):
        publisher.publish(stored(range(start, start + 900)))  # of several parts
    waiting, last = batches(publisher, *range(20)), batches(publisher, 20)
    for message in waiting:
        heard.hear(heard.feed.receive(message))
    notices = []
    for message in (*publisher.replay(0)[:2], *publisher.replay(23)):  # and nothing but its end
        notices += heard.feed.replayed(message)
    assert heard.feed.behind
    notices += heard.feed.receive(*last)
    assert not heard.feed.behind
    assert heard.hear(notices).held == publisher.cache


def test_a_replay_with_dropped_batches_is_requested_again():
    publisher = Publisher()
    batches(publisher, *range(30))
    heard = Listener(REPLAYING).connect()
    while (start := heard.asked()) is not None:
        heard.said.append("answered")
        answer = publisher.replay(start)
        for message in [*answer[:8], *answer[12:]] if len(answer) > 13 else answer:
            heard.hear(heard.feed.replayed(message))
    assert heard.held == publisher.cache
    assert heard.complete
    assert len(heard.of(ReplayRequest)) == 4


class Topicless(Publisher):
    """Replays as SGLang 0.5 does, and vLLM before 0.26: (number, payload) after an empty frame."""

    def replay(self, start, kept=10_000):
        return [[first, *rest] for first, _, *rest in super().replay(start, kept)]


def test_a_replay_without_topics_is_of_the_model_that_was_named_last():
    publisher = Topicless()
    batches(publisher, 1, 2)
    heard = Listener(FeedSettings(replay=True, model="other")).connect().replay(publisher)
    assert heard.held == publisher.cache
    assert heard.complete
    heard.receive(*batches(publisher, 3))
    batches(publisher, 4)
    heard.receive(*batches(publisher, 5)).replay(publisher)
    assert heard.held == publisher.cache
    assert heard.of(Anomaly) == []
    assert heard.feed.counts.restarts == 0
    models = [each.model for each in heard.changes(BlocksStored)]
    assert models == ["other", "other", "base", "base", "base"]


@pytest.mark.parametrize("odd", [[], [TOPIC], [TOPIC, bytes(8)], [b"", bytes(7), payload()]])
def test_malformed_frames_of_a_replay_are_skipped(odd):
    publisher = Publisher()
    batches(publisher, 1, 2)
    heard = Listener(REPLAYING).connect()
    heard.hear(heard.feed.replayed(odd))
    assert heard.replay(publisher).held == publisher.cache
    assert len(heard.of(Anomaly)) == 1


@pytest.mark.parametrize("end", [[b""], [END, b""], [b"", END, b""], [b"", b"", END, b""]])
def test_an_empty_last_frame_ends_a_replay(end):
    heard = Listener(REPLAYING).connect()
    assert heard.hear(heard.feed.replayed(end)).complete


def test_an_unrequested_replay_changes_nothing():
    publisher = Publisher()
    heard = Listener(REPLAYING).connect().replay(publisher).receive(*batches(publisher, 1))
    heard.hear(heard.feed.replayed([b"", *frames(1, payload(stored([9])))]))
    heard.hear(heard.feed.replayed([b"", b"", END, b""]))
    heard.hear(heard.feed.replay_failed())
    assert heard.held == publisher.cache
