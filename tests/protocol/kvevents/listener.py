"""A feed of one publisher's stream, and what its notices add up to."""

from collections import Counter

from epp.model.kv_changes import BlocksCleared, Cleared
from epp.protocol.kvevents.feed import Feed, FeedSettings
from epp.protocol.kvevents.notices import CacheChanges, ReplayRequest, StreamUp
from tests.kvpublisher import believe, stored

PLAIN = FeedSettings()
REPLAYING = FeedSettings(replay=True)
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

    def changes(self, kind):
        return [
            change
            for notice in self.of(CacheChanges)
            for change in notice.changes
            if isinstance(change, kind)
        ]

    @property
    def complete(self):
        return self.of(StreamUp)[-1].complete


def batches(publisher, *numbers):
    return [publisher.publish(stored([number])) for number in numbers]
