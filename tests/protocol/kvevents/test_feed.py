"""One publisher's stream: tables for what may happen, then all loss and disorder at once."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.model.kv_changes import BlocksCleared, BlocksStored, Cleared
from epp.protocol.kvevents.feed import Feed, FeedSettings
from epp.protocol.kvevents.notices import Anomaly, CacheChanges, ReplayRequest, StreamLost, StreamUp
from tests.kvpublisher import (
    CLEARED,
    END,
    TOPIC,
    Publisher,
    believe,
    frames,
    payload,
    removed,
    stored,
)

PLAIN = FeedSettings()
REPLAYING = FeedSettings(replay=True)
RESTART = CacheChanges((BlocksCleared(Cleared.RESTART),))
MAX_ATTEMPTS = 3
GAP = CacheChanges((BlocksCleared(Cleared.GAP),))


class Listener:
    """A feed, the blocks that its notices add up to, and its other notices."""

    def __init__(self, settings=PLAIN):
        self.feed = Feed(settings)
        self.cache: Counter[int] = Counter()
        self.said = []

    def hear(self, notices):
        for notice in notices:
            if isinstance(notice, CacheChanges):
                believe(self.cache, notice.changes)
            self.said.append(notice)
        return self.hear(self.feed.catch_up()) if self.feed.behind else self

    def receive(self, *messages):
        for message in messages:
            self.hear(self.feed.receive(message))
        return self

    def connect(self):
        return self.hear(self.feed.connected())

    def replay(self, publisher, kept=10_000):
        """Answer the last request, and those that follow from the answer."""
        while (start := self.asked()) is not None:
            self.said.append("answered")
            for message in publisher.replay(start, kept):
                self.hear(self.feed.replayed(message))
        return self

    def asked(self):
        """Where the request starts that nobody answered yet."""
        for notice in reversed(self.said):
            if notice == "answered":
                return None
            if isinstance(notice, ReplayRequest):
                return notice.start
        return None

    @property
    def held(self):
        return +self.cache

    def of(self, kind):
        return [notice for notice in self.said if isinstance(notice, kind)]

    @property
    def complete(self):
        return self.of(StreamUp)[-1].complete


def batches(publisher, *numbers):
    return [publisher.publish(stored([number])) for number in numbers]


def test_from_batch_0_on_the_stream_is_complete():
    publisher, heard = Publisher(), Listener().connect()
    heard.receive(publisher.publish(stored([1, 2])), publisher.publish(removed(1)))
    assert heard.held == publisher.cache == Counter([2])
    assert heard.of(StreamUp) == [StreamUp(False), StreamUp(True)]


def test_events_of_the_base_model_are_given_the_topics_name_or_the_settings():
    heard = Listener(FeedSettings(model="other", topic_prefix="")).connect()
    heard.receive(frames(0, payload(stored([1]))), frames(1, payload(stored([2])), topic=b""))
    heard.receive(frames(2, payload(stored([3], lora_name="adapter"))))
    changes = [change for changed in heard.of(CacheChanges) for change in changed.changes]
    models = [change.model for change in changes if isinstance(change, BlocksStored)]
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


def test_a_late_subscriber_requests_a_replay():
    publisher = Publisher()
    batches(publisher, 1, 2)
    heard = Listener(REPLAYING).connect()
    assert heard.said == [ReplayRequest(0)]
    heard.receive(*batches(publisher, 3, 4))
    assert heard.held == Counter()
    assert heard.replay(publisher).receive(*batches(publisher, 5)).held == publisher.cache
    assert heard.complete


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


def test_without_replay_a_gap_invalidates_everything():
    publisher = Publisher()
    first, _, third, fourth = batches(publisher, 1, 2, 3, 4)
    heard = Listener().connect().receive(first, third, fourth)
    assert heard.held == Counter([3, 4])
    assert not heard.complete
    assert GAP in heard.said


def test_with_replay_a_gap_is_closed():
    publisher = Publisher()
    first, _, _, fourth, fifth = batches(publisher, 1, 2, 3, 4, 5)
    heard = Listener(REPLAYING).connect().replay(Publisher())
    heard.receive(first, fourth, fifth)
    assert heard.said[-1] == ReplayRequest(0)
    assert heard.replay(publisher).held == publisher.cache
    assert heard.complete
    assert GAP not in heard.said


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
    cleared = [
        change
        for notice in heard.said
        if isinstance(notice, CacheChanges)
        for change in notice.changes
        if isinstance(change, BlocksCleared)
    ]
    assert 2 <= len(cleared) < 20
    assert heard.held == Counter()


def test_duplicates_count_once():
    publisher = Publisher()
    first, second = batches(publisher, 1, 2)
    heard = Listener().connect().receive(first, first, second, first, second)
    assert heard.held == publisher.cache
    assert heard.feed.counts.duplicates == 3


def test_a_batch_that_overtook_another_waits_for_it():
    publisher = Publisher()
    heard = Listener(REPLAYING).connect().replay(publisher)
    first, second, third = batches(publisher, 1, 2, 3)
    heard.receive(first, third, second)
    assert heard.held == Counter([1])
    assert heard.replay(publisher).held == publisher.cache


@pytest.mark.parametrize("settings", [PLAIN, REPLAYING])
def test_a_sequence_that_starts_again_is_another_engine(settings):
    publisher = Publisher()
    heard = Listener(settings).connect().replay(publisher).receive(*batches(publisher, 1, 2, 3))
    publisher.restart()
    heard.receive(*batches(publisher, 7))
    assert heard.held == Counter([7])
    assert heard.feed.counts.restarts == 1
    assert heard.complete


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


@pytest.mark.parametrize("limit", [{"most_waiting": 3}, {"most_waiting_bytes": 400}])
def test_the_backlog_is_bounded(limit):
    publisher = Publisher()
    heard = Listener(FeedSettings(replay=True, **limit)).connect()
    heard.receive(*batches(publisher, *range(50)))
    assert heard.feed.queued <= 4
    assert "backlog" in {odd.kind for odd in heard.of(Anomaly)}
    assert heard.replay(publisher).held <= publisher.cache
    assert not heard.complete


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
    waiting, last = batches(publisher, *range(20)), batches(publisher, 20)
    for message in waiting:
        heard.hear(heard.feed.receive(message))
    notices = []
    for message in publisher.replay(21):  # nothing but its end
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
    stores = [each for told in heard.of(CacheChanges) for each in told.changes]
    models = [each.model for each in stores if isinstance(each, BlocksStored)]
    assert models == ["other", "other", "base", "base", "base"]


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


FATES = st.sampled_from(["heard"] * 4 + ["lost", "lost", "twice", "late", "after the next"])
REPLAYS = st.sampled_from(["whole"] * 4 + ["holed", "cut off", "silence", "broken off"])
STEPS = st.one_of(
    st.tuples(st.just("publish"), FATES, st.integers(0, 5), st.integers(0, 3)),
    st.tuples(st.just("publish"), FATES, st.integers(0, 5), st.integers(0, 3)),
    st.tuples(st.just("answer"), REPLAYS),
    st.tuples(st.just("break_off"), st.booleans()),
)


class Channel:
    """Carries a publisher's messages to a listener, as the steps say."""

    def __init__(self, replays):
        self.publisher = Publisher()
        self.heard = Listener(FeedSettings(replay=replays)).connect()
        self.late = []
        self.damaged = False

    def publish(self, fate, block, kind):
        events = [removed(block)] if self.publisher.cache[block] and kind else [stored([block])]
        if (kind, block) == (3, 0):
            events = [CLEARED, stored([block])]
        message = self.publisher.publish(*events)
        if fate in {"late", "after the next"}:
            self.late.append(message)
        elif fate != "lost":
            self.heard.receive(*[message] * (1 + (fate == "twice")))
            if fate == "heard":
                self.heard.receive(*self.late)
                self.late = []

    def answer(self, how):
        start = self.heard.asked()
        if start is None:
            return
        self.heard.said.append("answered")
        answer = self.publisher.replay(start, 2 if how == "cut off" else 10_000)
        self.damaged |= how not in {"whole", "holed"}
        if how == "holed" and len(answer) > 4:  # a queue was full
            answer = [*answer[:2], *answer[-2:]]
        fails = how in {"silence", "broken off"}
        if fails:
            answer = answer[: len(answer) // 2] if how == "broken off" else []
        for message in answer:
            self.heard.hear(self.heard.feed.replayed(message))
        if fails:
            self.heard.hear(self.heard.feed.replay_failed())

    def break_off(self, restarts):
        """What was on its way is lost with the connection."""
        self.late = []
        self.heard.feed.disconnected()
        if restarts:
            self.publisher.restart()
        self.heard.said.append("answered")
        self.heard.connect()

    def settle(self):
        """Receive one more batch; respond to all replay requests."""
        self.publish("heard", 99, 0)
        while self.heard.asked() is not None:
            self.answer("whole")


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_with_replay_the_content_is_the_engines_or_less(steps):
    channel = Channel(replays=True)
    for name, *details in steps:
        getattr(channel, name)(*details)
    channel.settle()
    heard, cache = channel.heard, channel.publisher.cache
    assert heard.held <= cache
    if heard.complete or not channel.damaged:
        assert heard.held == cache


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(FATES, st.integers(0, 5), st.integers(0, 3)), max_size=30))
def test_without_replay_the_content_is_never_more_than_the_engines(steps):
    channel = Channel(replays=False)
    for step in steps:
        channel.publish(*step)
    channel.settle()
    assert channel.heard.held <= channel.publisher.cache
    if channel.heard.complete:
        assert channel.heard.held == channel.publisher.cache
