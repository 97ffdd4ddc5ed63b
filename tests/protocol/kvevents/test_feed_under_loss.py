"""One publisher's stream under all loss and disorder at once: never more than the engine holds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.protocol.kvevents.feed import FeedSettings
from tests.kvpublisher import CLEARED, Publisher, removed, stored
from tests.protocol.kvevents.listener import Listener

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
