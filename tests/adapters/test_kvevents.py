"""Subscriptions to real ZMQ publishers: late, broken, silent, restarted, garbled."""

import asyncio
import contextlib
from collections import Counter

import msgspec
import pytest
from structlog.testing import capture_logs

from epp.adapters.kvevents import publishers
from epp.adapters.kvevents.kv_event_listener import KvEventListener
from epp.adapters.kvevents.publishers import (
    PORT_LABEL,
    REPLAY_PORT_LABEL,
    PublisherAddresses,
    SubscriptionSettings,
)
from epp.label_selector import parse_label_selector
from epp.model.kv_changes import CacheChanged, CacheFeedLost, CacheFeedUp
from tests.adapters.zmq_publisher import ZmqPublisher
from tests.held_port import held_port
from tests.kvpublisher import believe, frames, payload, removed, stored
from tests.strategies import endpoint
from tests.tasks import Changed, running, until

DEADLINE = 10
FAST = SubscriptionSettings(replay_timeout=5, reconnect=(0.01, 0.05))
HASTY = msgspec.structs.replace(FAST, replay_timeout=0.5)
IMPATIENT = msgspec.structs.replace(FAST, patience=1.0)


class Told(Changed):
    """A recorder of events of caches; waits for the blocks that they add up to.

    `after` is called after each change of a cache.
    """

    def __init__(self):
        super().__init__()
        self.after = lambda: None
        self.caches = {}
        self.events = []

    def __call__(self, event):
        self.events.append(event)
        if isinstance(event, CacheChanged):
            believe(self.caches.setdefault(event.endpoint_id, Counter()), event.changes)
            self.after()
        elif isinstance(event, CacheFeedLost):
            self.caches.pop(event.endpoint_id, None)
        super().__call__()

    def held(self, name="pod-0"):
        return +self.caches.get(f"default/{name}", Counter())

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    async def holds(self, *names, pod="pod-0"):
        await self.until(lambda: self.held(pod) == Counter(names))


@contextlib.asynccontextmanager
async def listening(settings=FAST, ready=None):
    told = Told()
    listener = KvEventListener(told, settings, ready)
    async with running(listener.run()) as task:
        yield listener, told
    assert task.cancelled()


def at(publisher, name="pod-0", **more):
    """The endpoint that a publisher belongs to."""
    labels = {PORT_LABEL: str(publisher.port), REPLAY_PORT_LABEL: str(publisher.again)}
    return endpoint(name, "127.0.0.1", labels=labels | more)


@pytest.fixture
def peer():
    """A publisher that may come and go."""
    with held_port() as port, held_port() as again:
        made = ZmqPublisher()
        made.port, made.again = port, again
        yield made


@contextlib.asynccontextmanager
async def followed(**more):
    """A publisher with one listener, whose subscription has arrived."""
    async with ZmqPublisher(**more).open() as publisher, listening() as (listener, told):
        listener.watch(at(publisher))
        await publisher.heard()
        await told.until(lambda: told.of(CacheFeedUp))
        yield publisher, told


@contextlib.asynccontextmanager
async def published_before(pages):
    """An engine that has published a block, before its pages came; and what is told of it."""
    async with (
        ZmqPublisher().open() as publisher,
        listening(ready=lambda _: pages.wait()) as (listener, told),
    ):
        listener.watch(at(publisher))
        await publisher.heard()
        await publisher.store(1)
        yield told


async def test_a_subscription_begins_once_the_pages_of_its_endpoint_have_been_read():
    pages = asyncio.Event()
    async with published_before(pages) as told:
        assert not told.events
        pages.set()
        await told.holds(1)


async def test_an_engine_that_publishes_is_not_waited_for_though_its_pages_never_come(monkeypatch):
    # It has TLS, say, of which the picker was not told: its own port closes each connection.
    monkeypatch.setattr(publishers, "PAGE_SECONDS", 0.01)
    async with published_before(asyncio.Event()) as told:
        await told.holds(1)


@pytest.mark.parametrize("replays", [True, False])
async def test_events_are_applied_in_order(replays):
    async with followed(replays=replays) as (publisher, told):
        await publisher.store(1, 2, 3)
        await publisher.publish(removed(1), stored([4]))
        await told.holds(2, 3, 4)
        assert told.of(CacheFeedUp)[-1].complete


async def test_a_late_subscriber_gets_a_replay():
    async with ZmqPublisher().open() as publisher, listening() as (listener, told):
        await publisher.store(*range(300))
        listener.watch(at(publisher))
        await told.holds(*range(300))
        assert publisher.asked == [0]
        assert told.of(CacheFeedUp)[-1].complete


async def test_a_replay_longer_than_any_queue_arrives_whole():
    async with ZmqPublisher().open() as publisher, listening() as (listener, told):
        await publisher.store(*range(6000))
        listener.watch(at(publisher))
        await told.holds(*range(6000))


async def test_a_late_subscriber_without_replay_gets_later_events():
    async with ZmqPublisher(replays=False).open() as publisher:
        await publisher.store(1, 2)
        async with listening() as (listener, told):
            listener.watch(at(publisher))
            await publisher.heard()
            await publisher.store(3)
            await told.holds(3)
            assert not told.of(CacheFeedUp)[-1].complete


async def test_a_missing_batch_is_requested_again():
    async with followed() as (publisher, told):
        await publisher.store(1)
        publisher.publisher.publish(stored([2]))  # sent to nobody
        await publisher.store(3)
        await told.holds(1, 2, 3)
        assert publisher.asked == [0, 0]


async def test_an_unreachable_replay_port_is_logged_once():
    with held_port() as closed, capture_logs() as logs:
        async with (
            ZmqPublisher(replays=False).open() as publisher,
            listening(HASTY) as (listener, told),
        ):
            publisher.again = closed
            listener.watch(at(publisher))
            await publisher.heard()
            await publisher.store(1)
            await told.holds(1)
            for number in (2, 3):
                publisher.publisher.publish(stored([100]))
                await publisher.store(number)
                await told.holds(number)
    assert [log["event"] for log in logs].count("kv_events.no_replay") == 1


async def test_a_publisher_that_dies_and_comes_back_empty(peer):
    with capture_logs() as logs:
        async with listening(IMPATIENT) as (listener, told):
            async with peer.open():
                listener.watch(at(peer))
                await peer.heard()
                await peer.store(1, 2)
                await told.holds(1, 2)
            await told.until(lambda: told.of(CacheFeedLost))
            peer.publisher.restart()
            async with peer.open():
                await peer.heard()
                await peer.store(7)
                await told.holds(7)
                await told.until(lambda: told.of(CacheFeedUp)[-1].complete)
                counts = listener.counts()["default/pod-0"]
    assert counts.disconnects == 1
    assert counts.unreachable >= 1
    said = [log["event"] for log in logs]
    assert (said.count("kv_events.lost"), said.count("kv_events.back")) == (1, 1)
    assert peer.asked == [0, 0]


async def test_a_restart_too_short_to_be_missed_is_found_out(peer):
    async with listening() as (listener, told):
        async with peer.open():
            listener.watch(at(peer))
            await peer.heard()
            await peer.store(1, 2)
            await told.holds(1, 2)
        peer.publisher.restart()
        peer.publisher.publish(stored([5]))
        peer.publisher.publish(stored([6]))
        async with peer.open():
            await told.holds(5, 6)
            await peer.heard()
            await peer.store(7)
            await told.holds(5, 6, 7)
    assert told.of(CacheFeedLost) == []
    assert peer.asked[:2] == [0, 1]


async def test_an_unreachable_publisher_is_logged_once_and_its_return_too(peer):
    with capture_logs() as logs:
        async with listening(IMPATIENT) as (listener, told):
            listener.watch(at(peer))
            await told.until(lambda: told.of(CacheFeedLost))
            counts = listener.counts()["default/pod-0"]
            assert (counts.unreachable, counts.disconnects) == (1, 0)
            async with peer.open():
                await told.until(lambda: told.of(CacheFeedUp))
                await peer.heard()
                await peer.store(1)
                await told.holds(1)
    said = [log["event"] for log in logs]
    assert (said.count("kv_events.lost"), said.count("kv_events.back")) == (1, 1)


async def test_a_server_of_another_protocol_is_no_publisher():
    async def greet(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, listening(IMPATIENT) as (listener, told):
        listener.watch(endpoint(labels={PORT_LABEL: str(port)}, address="127.0.0.1"))
        await told.until(lambda: told.of(CacheFeedLost))
        assert told.of(CacheFeedUp) == []


GARBAGE = {
    "too few frames": [b"kv@pod@m"],
    "too many": [b"kv@pod@m", bytes(8), payload(), b"", b""],
    "a short number": [b"kv@pod@m", b"\x01", payload()],
    "another topic": [b"load@pod", bytes(8), payload(stored([9]))],
    "no topic": [b"", bytes(8), payload(stored([9]))],
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_is_logged_once_and_skipped(garbage):
    with capture_logs() as logs:
        async with followed() as (publisher, told):
            await publisher.store(1)
            for _ in range(3):
                await publisher.send(garbage)
            await publisher.store(2)
            await told.holds(1, 2)
    assert [log["event"] for log in logs if log["log_level"] == "warning"] in (
        ["kv_events.frames"],
        ["kv_events.topic"],
    )


async def test_an_unreadable_payload_invalidates_the_cache():
    with capture_logs() as logs:
        async with followed() as (publisher, told):
            await publisher.store(1)
            await publisher.send(frames(1, payload(stored([2]))[:-2]))
            await publisher.send(frames(2, payload(stored([3]))))
            await told.holds(3)
    assert [log["event"] for log in logs] == ["kv_events.unreadable"]


async def test_a_publisher_may_take_the_place_of_another_server(peer):
    peer.again = 0  # nothing is replayed

    async def hang_up(_, writer):
        writer.write(b"SSH-2.0-x\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(hang_up, "127.0.0.1", peer.port)
    # A socket that is given up must not reach the publisher before the one that replaces it.
    once = msgspec.structs.replace(IMPATIENT, reconnect=(60, 60))
    async with listening(once) as (listener, told):
        async with server:
            listener.watch(at(peer))
            await told.until(lambda: told.of(CacheFeedLost))
        async with peer.open():
            await told.until(lambda: told.of(CacheFeedUp))
            await peer.heard()
            await peer.store(1)
            await told.holds(1)


async def test_a_message_over_the_limit_is_not_received():
    settings = msgspec.structs.replace(IMPATIENT, max_bytes=20_000)
    async with ZmqPublisher(replays=False).open() as publisher, listening(settings) as made:
        listener, told = made
        listener.watch(at(publisher))
        await publisher.heard()
        await publisher.store(1)
        await told.holds(1)
        await publisher.publish(stored(range(2000)))
        await told.until(lambda: told.of(CacheFeedLost))
        await publisher.heard()
        await publisher.store(3)
        await told.holds(3)


async def test_endpoints_are_subscribed_to_separately():
    async with contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(ZmqPublisher().open()) for _ in range(3)]
        listener, told = await stack.enter_async_context(listening())
        for number, peer in enumerate(peers):
            listener.watch(at(peer, f"pod-{number}"))
        for number, peer in enumerate(peers):
            await peer.heard()
            await peer.store(number)
        for number in range(3):
            await told.holds(number, pod=f"pod-{number}")
        listener.unwatch("default/pod-1")
        assert set(listener.counts()) == {"default/pod-0", "default/pod-2"}
        await until(lambda: not peers[1]._listeners)
        await peers[1].store(100)
        await peers[2].store(200)
        await told.holds(2, 200, pod="pod-2")
        assert told.held("pod-1") == Counter([1])


async def test_nothing_is_told_of_an_endpoint_that_is_no_longer_watched():
    async with ZmqPublisher().open() as publisher, listening() as (listener, told):
        listener.watch(at(publisher))
        await publisher.heard()
        await told.until(lambda: told.of(CacheFeedUp))
        told.events.clear()
        told.after = lambda: listener.unwatch("default/pod-0")
        await publisher.store(*range(100))
        await told.until(lambda: told.of(CacheChanged))
        ending = [task for task in asyncio.all_tasks() if "of default/pod-0" in task.get_name()]
        await asyncio.gather(*ending, return_exceptions=True)
        assert len(told.events) == 1


UNWATCHED = {
    "it publishes nothing": ({}, {PORT_LABEL: "0"}),
    "it is not selected": ({"selector": parse_label_selector("events=on")}, {"events": "off"}),
}


@pytest.mark.parametrize(("more", "labels"), UNWATCHED.values(), ids=UNWATCHED)
async def test_the_cache_of_an_endpoint_that_is_not_followed_any_more_is_unknown(more, labels):
    settings = msgspec.structs.replace(FAST, **more)
    async with ZmqPublisher().open() as publisher, listening(settings) as (listener, told):
        listener.watch(at(publisher, events="on"))
        await publisher.heard()
        await publisher.store(1)
        await told.holds(1)
        for _ in range(2):
            listener.watch(at(publisher, **{"events": "on"} | labels))
        assert (len(told.of(CacheFeedLost)), listener.counts()) == (1, {})
        listener.watch(at(publisher, events="on"))
        await told.holds(1)


async def test_another_engine_under_an_endpoints_id_is_subscribed_to_again():
    async with (
        ZmqPublisher().open() as first,
        ZmqPublisher().open() as second,
        listening() as (listener, told),
    ):
        listener.watch(at(first))
        await first.heard()
        await first.store(1)
        await told.holds(1)
        listener.watch(at(second))
        await second.heard()
        await second.store(2)
        await told.holds(2)
        listener.watch(at(second))
        await second.store(3)
        await told.holds(2, 3)
        assert second.asked == [0]


WHERE = {
    "settings": ({}, {}, ("tcp://10.0.0.1:5557", "")),
    "replay of the settings": ({"replay_port": 6000}, {}, (..., "tcp://10.0.0.1:6000")),
    "rank": ({"replay_port": 6000}, {"rank": 2}, ("tcp://10.0.0.1:5559", "tcp://10.0.0.1:6002")),
    "port of the pool": (
        {"replay_port": 6000},
        {"port": 8003, "port_index": 3},
        ("tcp://10.0.0.1:5560", "tcp://10.0.0.1:6003"),
    ),
    "rank on a port": ({}, {"rank": 0, "port_index": 3}, ("tcp://10.0.0.1:5557", ...)),
}


@pytest.mark.parametrize(("given", "of", "expected"), WHERE.values(), ids=WHERE)
def test_publisher_addresses_by_labels_ranks_and_settings(given, of, expected):
    sources = PublisherAddresses.of(endpoint(**of), SubscriptionSettings(**given))
    assert sources is not None
    for found, wanted in zip((sources.events, sources.replay), expected, strict=True):
        assert wanted in {..., found}


def test_labels_go_before_settings_and_zero_means_nowhere():
    settings = SubscriptionSettings(replay_port=6000)
    labels = {PORT_LABEL: "7000", REPLAY_PORT_LABEL: "0"}
    assert PublisherAddresses.of(endpoint(labels=labels), settings) == PublisherAddresses(
        "tcp://10.0.0.1:7000", ""
    )
    assert PublisherAddresses.of(endpoint(labels={PORT_LABEL: "0"}), settings) is None
    for odd in ("", "x", "-1", "70000", "9" * 5000, "5557.0"):
        found = PublisherAddresses.of(
            endpoint(labels={PORT_LABEL: odd}, address="fd00::1"), settings
        )
        assert found == PublisherAddresses("tcp://[fd00::1]:5557", "tcp://[fd00::1]:6000")
