"""Engines that publish their KV events to one address of the picker's, on real ZMQ sockets."""

import asyncio
import contextlib
import socket
from collections import Counter

import msgspec
import pytest
import zmq
import zmq.asyncio
from structlog.testing import capture_logs

from epp.adapters.kvevents import central as central_kvevents
from epp.adapters.kvevents import publishers
from epp.adapters.kvevents.kv_event_listener import KvEventListener
from epp.adapters.kvevents.publishers import PORT_LABEL
from epp.label_selector import parse_label_selector
from epp.model.kv_changes import CacheChanged, CacheFeedUp
from tests.adapters.test_kvevents import FAST, Told, at, listening
from tests.adapters.zmq_publisher import ZmqPublisher
from tests.held_port import held_port
from tests.kvpublisher import Publisher, stored
from tests.strategies import endpoint
from tests.tasks import until

DEADLINE = 10


class Engine:
    """Connects to an address and publishes there, as vLLM does where its endpoint is not an `*`."""

    def __init__(self, context, address, topic):
        self.publisher = Publisher()
        self._socket = context.socket(zmq.XPUB)
        self._socket.setsockopt(zmq.XPUB_VERBOSER, 1)
        self._socket.connect(address)
        self.topic = topic.encode()

    async def heard(self):
        async with asyncio.timeout(DEADLINE):
            while (await self._socket.recv())[:1] != b"\x01":  # somebody has left
                pass

    async def store(self, *names, rank=None):
        for name in names:
            _, number, content = self.publisher.publish(stored([name]))
            if rank is not None:
                content = msgspec.msgpack.encode([*msgspec.msgpack.decode(content)[:2], rank])
            await self._socket.send_multipart([self.topic, number, content])


@contextlib.asynccontextmanager
async def about(engine, target):
    """Have an engine's socket publish for another one, behind what it has published."""
    own = engine.topic, engine.publisher
    engine.topic, engine.publisher = f"kv@{target}@m".encode(), Publisher()
    yield
    engine.topic, engine.publisher = own


@contextlib.asynccontextmanager
async def central(*topics, ready=None, **more):
    """Engines that publish to a listener with a central address, which hears all of them."""
    context = zmq.asyncio.Context()
    with held_port() as port:
        address = f"tcp://127.0.0.1:{port}"
        settings = msgspec.structs.replace(FAST, **{"central": address, "each": False, **more})
        async with listening(settings, ready) as (listener, told):
            engines = [Engine(context, address, topic) for topic in topics]
            try:
                for engine in engines:
                    await engine.heard()
                yield listener, told, engines
            finally:
                context.destroy(linger=0)


async def test_the_topic_names_the_engine():
    topics = (
        *("kv@10.0.0.1:8000@m", "kv@10.0.0.2@m", "kv@pod-c@m"),
        *("kv@[fd00::4]:8000@m", "kv@fd00::5:8000@m"),
    )
    async with central(*topics) as (listener, told, engines):
        listener.watch(endpoint("a-rank-0", "10.0.0.1", pod="a"))
        listener.watch(endpoint("b-rank-0", "10.0.0.2", pod="b"))
        listener.watch(endpoint("c-rank-0", "10.0.0.3", pod="pod-c"))
        listener.watch(endpoint("d-rank-0", "fd00::4", pod="d"))
        listener.watch(endpoint("e-rank-0", "fd00::5", pod="e"))
        for number, engine in enumerate(engines):
            await engine.store(number, number + 100)
        for number, pod in enumerate("abcde"):
            await told.holds(number, number + 100, pod=f"{pod}-rank-0")
        counts = listener.counts()
        assert {each.batches for each in counts.values()} == {2}
        assert len(counts) == 5


async def test_of_ranks_that_share_a_port_the_batch_names_its_own():
    async with central("kv@10.0.0.1:8000@m", "kv@10.0.0.1:8000@m") as (listener, told, engines):
        for rank in range(2):
            listener.watch(endpoint(f"r{rank}", "10.0.0.1", rank=rank))
        for rank, engine in enumerate(engines):
            await engine.store(rank, rank=rank)
        for rank in range(2):
            await told.holds(rank, pod=f"r{rank}")


async def test_of_a_pods_ports_the_batch_names_its_own_by_their_order():
    async with central("kv@10.0.0.1@m") as (listener, told, (engine,)):
        for index in range(2):
            listener.watch(endpoint(f"r{index}", "10.0.0.1", port=8000 + index, port_index=index))
        await engine.store(5, rank=1)
        await told.holds(5, pod="r1")
        assert not told.held("r0")
        listener.unwatch(endpoint("r0").id)
        await engine.store(6, rank=1)
        await told.holds(5, 6, pod="r1")


@pytest.mark.parametrize("own", [None, 1])
async def test_one_of_a_servers_ranks_is_followed(own):
    with capture_logs() as logs:
        async with central("kv@10.0.0.1:8000@m", "kv@10.0.0.1:8000@m") as (listener, told, engines):
            listener.watch(endpoint("a", "10.0.0.1", rank=own))
            zero, one = engines
            await one.store(1, rank=1)
            await told.holds(1, pod="a")
            await zero.store(2, 3, rank=0)
            async with asyncio.timeout(DEADLINE):
                while not (said := [each for each in logs if each["event"] == "kv_events.rank"]):
                    await asyncio.sleep(0)
            await one.store(4, rank=1)
            await told.holds(1, 4, pod="a")
            (counts,) = listener.counts().values()
    assert len(said) == 1
    assert (counts.batches, counts.gaps, counts.restarts) == (2, 0, 0)


async def test_strangers_are_logged_once_and_change_nothing():
    with capture_logs() as logs:
        async with central("kv@10.9.9.9:1@m", "kv@10.0.0.1:8000@m") as (listener, told, engines):
            listener.watch(endpoint("a", "10.0.0.1"))
            stranger, known = engines
            await stranger.store(1, 2, 3)
            await known.store(4)
            await told.holds(4, pod="a")
            await until(lambda: strange(logs))
            await stranger.store(5)
            await known.store(6)
            await told.holds(4, 6, pod="a")
    assert set(told.caches) == {"default/a"}
    assert strange(logs) == ["10.9.9.9:1"]


def strange(logs):
    return [entry["publisher"] for entry in logs if entry["event"] == "kv_events.stranger"]


class Pages:
    """Says when the pages of endpoints have been read."""

    def __init__(self, *read):
        self.read = {f"default/{name}": asyncio.Event() for name in "abc"}
        for name in read:
            self.come(name)

    def come(self, name):
        self.read[f"default/{name}"].set()

    async def answered(self, endpoint_id):
        await self.read[endpoint_id].wait()


async def test_what_comes_before_the_pages_of_an_endpoint_is_kept_for_it():
    pages = Pages("b")
    async with central("kv@10.0.0.1:8000@m", ready=pages.answered) as (listener, told, (engine,)):
        listener.watch(endpoint("a", "10.0.0.1"))
        listener.watch(endpoint("b", "10.0.0.2"))
        await engine.store(1, 2)
        async with about(engine, "10.0.0.2:8000"):
            await engine.store(3)
            await told.holds(3, pod="b")
        assert {each.endpoint_id for each in told.events} == {"default/b"}
        assert set(listener.counts()) == {"default/a", "default/b"}
        await engine.store(4)
        pages.come("a")
        await told.holds(1, 2, 4, pod="a")
        await engine.store(5)
        await told.holds(1, 2, 4, 5, pod="a")


@pytest.mark.parametrize(
    ("limit", "most", "kept"), [("_MAX_EARLY", 3, (7, 8, 9)), ("_MAX_EARLY_BYTES", 1, (9,))]
)
async def test_of_too_many_that_come_early_the_latest_are_kept(monkeypatch, limit, most, kept):
    monkeypatch.setattr(central_kvevents, limit, most)
    pages = Pages("b")
    async with central("kv@10.0.0.1:8000@m", ready=pages.answered) as (listener, told, (engine,)):
        listener.watch(endpoint("a", "10.0.0.1"))
        listener.watch(endpoint("b", "10.0.0.2"))
        await engine.store(*range(10))
        async with about(engine, "10.0.0.2:8000"):
            await engine.store(10)
            await told.holds(10, pod="b")
        pages.come("a")
        await told.holds(*kept, pod="a")


async def test_all_that_come_early_together_take_bounded_memory(monkeypatch):
    monkeypatch.setattr(central_kvevents, "_MAX_EARLY_BYTES_IN_ALL", 1)
    pages = Pages("c")
    async with central("kv@10.0.0.1:8000@m", ready=pages.answered) as (listener, told, (engine,)):
        for number, name in enumerate("abc", 1):
            listener.watch(endpoint(name, f"10.0.0.{number}"))
        await engine.store(1, 2, 3)
        async with about(engine, "10.0.0.2:8000"):
            await engine.store(4, 5)
        async with about(engine, "10.0.0.3:8000"):
            await engine.store(6)
            await told.holds(6, pod="c")
        for name, latest in (("a", 3), ("b", 5)):
            pages.come(name)
            await told.holds(latest, pod=name)


@pytest.mark.parametrize("gone", [False, True])
async def test_what_is_no_longer_kept_leaves_room_for_others(monkeypatch, gone):
    monkeypatch.setattr(central_kvevents, "_MAX_EARLY_BYTES_IN_ALL", 4_000)
    pages = Pages("c")
    async with central("kv@10.0.0.1:8000@m", ready=pages.answered) as (listener, told, (engine,)):
        for number, name in enumerate("abc", 1):
            listener.watch(endpoint(name, f"10.0.0.{number}"))
        await engine.store(*range(20))
        async with about(engine, "10.0.0.3:8000"):
            await engine.store(20)
            await told.holds(20, pod="c")
            if gone:
                listener.unwatch(endpoint("a").id)
            pages.come("a")
            await told.until(lambda: gone or 19 in told.held("a"))
            async with about(engine, "10.0.0.2:8000"):
                await engine.store(21, 22, 23)
            await engine.store(24)
            await told.holds(20, 24, pod="c")
        pages.come("b")
        await told.holds(21, 22, 23, pod="b")


async def test_an_engine_that_publishes_is_not_waited_for_though_its_pages_never_come(monkeypatch):
    monkeypatch.setattr(publishers, "PAGE_SECONDS", 0.01)
    pages = Pages()
    async with central("kv@10.0.0.1:8000@m", ready=pages.answered) as (listener, told, (engine,)):
        listener.watch(endpoint("a", "10.0.0.1"))
        await engine.store(1, 2)
        await told.holds(1, 2, pod="a")


async def test_an_endpoint_whose_pages_have_not_come_is_heard_after_a_fault_too(port):
    pages, told = Pages("b"), Told()
    address = f"tcp://127.0.0.1:{port}"
    settings = msgspec.structs.replace(FAST, central=address, each=False)
    listener = KvEventListener(told, settings, pages.answered)
    context = zmq.asyncio.Context()
    engine = Engine(context, address, "kv@10.0.0.1:8000@m")
    for number, name in enumerate("ab", 1):
        listener.watch(endpoint(name, f"10.0.0.{number}"))

    @contextlib.asynccontextmanager
    async def run():
        task = asyncio.create_task(listener.run())
        await engine.heard()
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def store(early, other):
        await engine.store(early)
        async with about(engine, "10.0.0.2:8000"):
            await engine.store(other)
            await told.until(lambda: other in told.held("b"))

    try:
        async with run():
            await store(1, 2)
        async with run():
            await store(3, 4)
            pages.come("a")
            await told.holds(3, pod="a")
    finally:
        context.destroy(linger=0)


async def test_of_an_endpoint_that_goes_nothing_follows():
    async with central("kv@10.0.0.1:8000@m") as (listener, told, (engine,)):
        watched = endpoint("a", "10.0.0.1")
        told.after = lambda: listener.unwatch(watched.id)
        listener.watch(watched)
        await engine.store(1)  # told in two parts: that the engine has started, then the block
        await told.until(lambda: told.of(CacheChanged))
        told.after = lambda: None
        listener.watch(watched)
        await engine.store(2)
        await told.holds(2, pod="a")


async def test_another_engine_under_the_name_starts_afresh_and_a_removed_one_is_gone():
    async with central("kv@10.0.0.1:8000@m", "kv@10.0.0.2:8000@m") as (listener, told, engines):
        first, second = engines
        listener.watch(endpoint("a", "10.0.0.1"))
        await first.store(1, rank=0)
        await told.holds(1, pod="a")
        listener.watch(endpoint("a", "10.0.0.2"))
        assert listener.counts() == {}
        told.caches.clear()
        await first.store(2)
        await second.store(3, rank=1)
        await told.holds(3, pod="a")
        listener.unwatch(endpoint("a").id)
        assert listener.counts() == {}


async def test_a_missing_batch_invalidates_what_was_reported():
    async with central("kv@10.0.0.1:8000@m") as (listener, told, (engine,)):
        listener.watch(endpoint("a", "10.0.0.1"))
        await engine.store(1, 2)
        await told.holds(1, 2, pod="a")
        engine.publisher.publish(stored([3]))  # nobody hears it
        await engine.store(4)
        await told.holds(4, pod="a")
        assert not told.of(CacheFeedUp)[-1].complete


async def test_an_engine_that_is_heard_there_is_no_longer_subscribed_to():
    async with ZmqPublisher().open() as own:
        topic = "kv@127.0.0.1:8000@m"
        async with central(topic, each=True) as (listener, told, (engine,)):
            pod = at(own)
            listener.watch(pod)
            await own.heard()
            await own.store(1)
            await told.holds(1)
            await engine.store(2)
            await told.until(lambda: told.held()[2])
            listener.watch(pod)
            assert len(listener._subscriptions) == 0
            assert listener.counts()[pod.id].batches == 1


@pytest.mark.parametrize(
    ("more", "subscribed"),
    [
        ({}, True),
        ({"each": False}, False),
        ({"selector": parse_label_selector("app=vllm")}, True),
        ({"selector": parse_label_selector("app=other")}, False),
        ({"namespace": "default"}, True),
        ({"namespace": "elsewhere"}, False),
    ],
)
async def test_which_pods_are_subscribed_to(more, subscribed, port):
    async with listening(msgspec.structs.replace(FAST, **more)) as (listener, _):
        labels = {"app": "vllm", PORT_LABEL: str(port)}
        listener.watch(endpoint("a", "127.0.0.1", labels=labels))
        assert len(listener.counts()) == subscribed


async def test_an_address_that_cannot_be_listened_at_is_logged():
    with capture_logs() as logs:
        settings = msgspec.structs.replace(FAST, central="tcp://192.0.2.1:1")
        async with listening(settings), asyncio.timeout(DEADLINE):
            while not logs:
                await asyncio.sleep(0)
    assert logs[0]["event"] == "kv_events.cannot_listen"
    assert logs[0]["address"] == "tcp://192.0.2.1:1"


async def test_an_address_that_was_taken_is_listened_at_later(monkeypatch):
    monkeypatch.setattr(central_kvevents, "_BIND_SECONDS", 0.01)
    with capture_logs() as logs, socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        settings = msgspec.structs.replace(FAST, central=address)
        async with listening(settings):
            await until(lambda: logs)
            taken.close()
            await until(lambda: len(logs) > 1)
    assert [each["event"] for each in logs] == ["kv_events.cannot_listen", "kv_events.listening"]


async def test_garbage_changes_nothing():
    async with central("kv@10.0.0.1:8000@m") as (listener, told, (engine,)):
        listener.watch(endpoint("a", "10.0.0.1"))
        topic = b"kv@10.0.0.1:8000@m"
        for frames in ([b""], [topic], [b"\xff", b"", b""], [topic, b"1", b""], [b"kv@", b"", b""]):
            await engine._socket.send_multipart(frames)
        await engine.store(1)
        await told.holds(1, pod="a")
        assert told.caches["default/a"] == Counter([1])
