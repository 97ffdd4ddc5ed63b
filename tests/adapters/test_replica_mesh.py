"""Replicas over real ZMQ sockets: who has the secret takes part, who does not is counted."""

import asyncio
import contextlib
import os
import socket as sockets
from pathlib import Path

import pytest
import zmq

from epp.adapters.replicas import sockets as replica_sockets
from epp.adapters.replicas.mesh import ReplicaMesh
from epp.adapters.replicas.settings import (
    PeerAddress,
    ReplicaSettings,
    derive_keys,
    mark_of,
    peer_address,
)
from epp.adapters.replicas.sockets import SocketReader, connection, tcp_endpoint
from epp.errors import ConfigError
from epp.protocol.replicas.messages import LONGEST, THIS_IS_YOU
from tests.loopbacks import loopbacks
from tests.tasks import running, until

SECRET = b"the secret of all of them"
KEYS = derive_keys(SECRET)
DEADLINE = 30
HERE = "127.0.0.1"


class Station:
    """A replica that keeps what it hears, and answers `?...` with `!...`."""

    def __init__(self, *peers, keys=KEYS, port=0):
        self.heard = []
        self.strangers = 0
        self.changed = asyncio.Event()
        addresses = [PeerAddress(HERE, port) for port in peers]
        settings = ReplicaSettings(peers=addresses, port=port, reconnect=(0.01, 0.05), look_up=0.05)
        self.mesh = ReplicaMesh(settings, keys, HERE, self.receive, self.stranger)

    def receive(self, message, reply):
        self.heard.append(message)
        self.changed.set()
        if message == b"it is me":
            reply(THIS_IS_YOU)
        elif message.startswith(b"?"):
            reply(b"!" + message[1:])

    def stranger(self):
        self.strangers += 1
        self.changed.set()

    async def until(self, condition):
        async with asyncio.timeout(DEADLINE):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def tell(self, message):
        """Send as soon as there is somebody."""
        await until(lambda: self.mesh.send(message))


@contextlib.asynccontextmanager
async def station(*peers, **more):
    made = Station(*peers, **more)
    made.mesh.open()
    try:
        async with running(made.mesh.run()):
            yield made
    finally:
        made.mesh.close()


async def test_what_one_sends_all_others_hear():
    async with (
        station() as one,
        station() as other,
        station(one_port(one), one_port(other)) as third,
    ):
        await until(lambda: third.mesh.send(b"hello") >= 2)
        await one.until(lambda: b"hello" in one.heard)
        await other.until(lambda: b"hello" in other.heard)
        assert third.heard == []


def one_port(made):
    return made.mesh.port


async def test_answers_come_back_and_are_answered():
    async with station() as one, station(one_port(one)) as other:
        await other.tell(b"?how")
        await other.until(lambda: other.heard == [b"!how"])
        assert one.heard == [b"?how"]


async def test_a_replica_that_finds_itself_among_the_others_leaves_itself_out():
    async with station() as one:
        one.mesh._settings.peers.append(PeerAddress(HERE, one_port(one)))
        await one.tell(b"it is me")
        await until(lambda: not one.mesh.known)
        await one.mesh.look_up()
        assert one.mesh.known == 0
        assert one.strangers == 0


async def test_nothing_is_kept_for_who_is_not_there():
    async with station(1) as one:
        await until(lambda: one.mesh.known)
        for _ in range(3):
            assert one.mesh.send(b"hello") == 0
        assert one.mesh.unsent == 3


async def test_one_that_comes_back_is_found_again(port):
    async with station(port=port) as first:
        second = Station(port)
        second.mesh.open()
        await second.mesh.look_up()
        await second.tell(b"one")
        await first.until(lambda: first.heard == [b"one"])
    third = Station(port=port)
    third.mesh.open()
    try:
        async with asyncio.timeout(DEADLINE):
            while b"two" not in third.heard:
                second.mesh.send(b"two")
                await asyncio.sleep(0.01)
    finally:
        second.mesh.close()
        third.mesh.close()


def tcp_connections(port):
    """The connected sockets of this process with a port at either end."""
    for each in Path("/proc/self/fd").iterdir():
        try:
            made = sockets.socket(fileno=os.dup(int(each.name)))
        except OSError:
            continue
        with made, contextlib.suppress(OSError):
            if made.family in {sockets.AF_INET, sockets.AF_INET6}:
                ports = made.getsockname()[1], made.getpeername()[1]
                if port in ports:
                    yield made


async def test_a_network_that_was_cut_is_not_waited_for_longer_than_it_was():
    """What is on its way is sent again more and more rarely, by default for a quarter of an hour.

    tcp(7), TCP_USER_TIMEOUT. The same goes for attempts to connect, which take two minutes.
    """
    async with station() as one, station(one_port(one)) as other:
        await other.tell(b"?how")
        await other.until(lambda: other.heard)
        limits = [
            made.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_USER_TIMEOUT)
            for made in tcp_connections(one_port(one))
        ]
        assert len(limits) == 2
        assert all(10_000 <= each <= 30_000 for each in limits)
        (reader,) = other.mesh._connections.values()
        assert 1000 <= reader.socket.getsockopt(zmq.CONNECT_TIMEOUT) <= 2000
        assert 1000 <= reader.socket.getsockopt(zmq.HANDSHAKE_IVL) <= 10_000
        intervals = [zmq.RECONNECT_IVL, zmq.RECONNECT_IVL_MAX]
        assert [reader.socket.getsockopt(each) for each in intervals] == [10, 50]


@contextlib.contextmanager
def stranger(port, **options):
    """Connect without the secret, and try to say something."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        for option, value in {"LINGER": 0, **options}.items():
            socket.setsockopt(getattr(zmq, option), value)
        socket.connect(f"tcp://{HERE}:{port}")
        socket.send(b"?let me in")
        yield


@contextlib.contextmanager
def peer(port):
    """Connect with the secret, as no replica does."""
    settings = ReplicaSettings(peers=[], reconnect=(10.0, 10.0))
    with (
        zmq.Context() as context,
        connection(context, KEYS, settings, tcp_endpoint(HERE, port)) as socket,
    ):
        socket.setsockopt(zmq.LINGER, 0)
        yield socket


async def send(socket, *frames):
    async with asyncio.timeout(DEADLINE):
        while True:
            with contextlib.suppress(zmq.Again):
                return socket.send_multipart(frames, zmq.NOBLOCK)
            await asyncio.sleep(0.005)


OTHER = derive_keys(b"the secret of somebody else")
OTHER_KEYS = {
    "CURVE_SERVERKEY": OTHER.public,
    "CURVE_PUBLICKEY": OTHER.public,
    "CURVE_SECRETKEY": OTHER.secret,
}
STRANGERS = {
    "no keys": {},
    "other keys": OTHER_KEYS,
    "the public key alone": {
        "CURVE_SERVERKEY": KEYS.public,
        "CURVE_PUBLICKEY": OTHER.public,
        "CURVE_SECRETKEY": OTHER.secret,
    },
}


@pytest.mark.parametrize("who", STRANGERS)
async def test_strangers_are_counted_and_not_heard(who):
    async with station() as one:
        with stranger(one_port(one), **STRANGERS[who]):
            await one.until(lambda: one.strangers)
        assert one.heard == []


async def test_one_that_is_listed_no_more_stays_as_long_as_it_hears_and_counts_no_stranger():
    listed = [HERE, "127.0.0.2"]
    async with station() as one:
        other = Station(one_port(one))
        other.mesh._names._lookup = lambda _name: listed
        other.mesh.open()
        await other.mesh.look_up()
        await other.tell(b"hello")
        listed[0] = "127.0.0.3"
        for _ in range(3):
            await other.mesh.look_up()
        assert other.mesh.known == 2 + 1
        await other.tell(b"again")
        await one.until(lambda: b"again" in one.heard)
        one.mesh.close()
        await until(lambda: not other.mesh.send(b"nobody hears this"))
        await other.mesh.look_up()
        assert other.mesh.known == 2
        other.mesh.close()
        assert one.strangers == 0


async def test_who_does_not_speak_zeromq_is_counted_and_not_heard():
    async with station() as one:
        _, writer = await asyncio.open_connection(HERE, one_port(one))
        writer.write(b"GET / HTTP/1.1\r\nhost: picker\r\n\r\n" * 20)
        await one.until(lambda: one.strangers)
        writer.close()
        assert one.heard == []


async def test_a_replica_that_connects_while_a_stranger_is_refused_is_not_counted_as_one():
    begun, may_pass = asyncio.Event(), asyncio.Event()

    async def hold(reader, writer):
        there, into = await asyncio.open_connection(HERE, one_port(one))
        begun.set()
        await may_pass.wait()
        async with asyncio.TaskGroup() as ways:
            ways.create_task(bring(reader, into))
            ways.create_task(bring(there, writer))

    async def bring(reader, writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async with (
        station() as one,
        await asyncio.start_server(hold, HERE, 0) as held,
        station(held.sockets[0].getsockname()[1]) as other,
    ):
        await begun.wait()
        with stranger(one_port(one), **OTHER_KEYS, RECONNECT_IVL=-1):
            await one.until(lambda: one.strangers)
        may_pass.set()
        await other.tell(b"hello")
        await one.until(lambda: one.heard)
        assert one.strangers == 1


async def test_a_message_that_is_too_long_costs_its_connection_and_nobody_else():
    async with station() as one:
        with peer(one_port(one)) as socket:
            await send(socket, b"x" * (10 << 20))
            async with station(one_port(one)) as other:
                await other.tell(b"?how")
                await other.until(lambda: other.heard == [b"!how"])
                await other.tell(b"y" * (LONGEST - 1))
                await one.until(lambda: len(one.heard) > 1)
        assert [len(each) for each in one.heard] == [4, LONGEST - 1]


async def test_a_message_of_several_frames_is_passed_on_as_none():
    async with station() as one:
        with peer(one_port(one)) as socket:
            await send(socket, b"a", b"b")
            await one.until(lambda: one.heard == [b""])


async def test_a_port_that_is_taken_is_said():
    async with station() as one:
        other = Station(port=one_port(one))
        with pytest.raises(ConfigError, match="--replicas-port: cannot listen for replicas"):
            other.mesh.open()


def test_keys_and_marks_come_from_the_secret():
    assert derive_keys(SECRET) == KEYS
    assert derive_keys(SECRET + b".") != KEYS
    assert zmq.curve_public(KEYS.secret) == KEYS.public
    assert mark_of(SECRET, "a") == mark_of(SECRET, "a")
    assert len({mark_of(SECRET, "a"), mark_of(SECRET, "b"), mark_of(SECRET + b".", "a")}) == 3
    with pytest.raises(ConfigError, match="at least 16 bytes"):
        derive_keys(b"short")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("pickers", "pickers", 9004),
        ("pickers.default.svc:9100", "pickers.default.svc", 9100),
        ("10.0.0.1:9100", "10.0.0.1", 9100),
        ("fd00::1", "fd00::1", 9004),
        ("[fd00::1]", "fd00::1", 9004),
        ("[fd00::1]:9100", "fd00::1", 9100),
    ],
)
def test_addresses_are_read(text, host, port):
    assert peer_address(text) == PeerAddress(host, port)
    assert peer_address(str(peer_address(text))) == PeerAddress(host, port)


@pytest.mark.parametrize("text", ["", ":9100", "pickers:", "pickers:port", "pickers:0", "a:70000"])
def test_what_is_not_an_address_is_said(text):
    with pytest.raises(ValueError, match="is not a host and a port"):
        peer_address(text)


@pytest.mark.parametrize("address", ["", "::"])
async def test_all_addresses_are_of_both_families(address):
    mesh = ReplicaMesh(
        ReplicaSettings(peers=[], port=0), KEYS, address, lambda *_: None, lambda: None
    )
    mesh.open()
    try:
        for host in loopbacks():
            _, writer = await asyncio.open_connection(host.strip("[]"), mesh.port)
            writer.close()
    finally:
        mesh.close()


@pytest.mark.parametrize(("bind", "used"), [("", "127.0.0.1"), ("::", "127.0.0.1"), ("::1", "::1")])
async def test_a_replica_whose_name_has_addresses_of_both_families_is_told_once(
    bind, used, monkeypatch
):
    if "[::1]" not in loopbacks():
        pytest.skip("NOT TESTED: replicas of both families: this machine has no IPv6")
    found = [(0, 0, 0, "", (ip, 0)) for ip in ("::1", HERE)]
    monkeypatch.setattr(sockets, "getaddrinfo", lambda *_, **__: found)
    settings = ReplicaSettings(peers=[PeerAddress("both", 1)], port=0)
    mesh = ReplicaMesh(settings, KEYS, bind, lambda *_: None, lambda: None)
    mesh.open()
    try:
        await mesh.look_up()
        assert list(mesh._connections) == [tcp_endpoint(used, 1)]
    finally:
        mesh.close()


@contextlib.contextmanager
def pair():
    """Give two sockets that are connected: what one sends the other has at once."""
    with (
        zmq.Context() as context,
        context.socket(zmq.PAIR) as one,
        context.socket(zmq.PAIR) as other,
    ):
        one.bind("inproc://pair")
        other.connect("inproc://pair")
        yield one, other


async def test_what_is_answered_is_read_in_turns_however_much_comes(monkeypatch):
    monkeypatch.setattr(replica_sockets, "_TURN_SECONDS", -1.0)  # over with each message
    with pair() as (one, other):
        heard = []

        def answer(frames):
            heard.append(frames)
            reader.send([b"answer"])

        for number in range(100):
            other.send(b"%d" % number)
        reader = SocketReader(one, answer)
        in_turns = []
        for _ in range(20):
            before = len(heard)
            await asyncio.sleep(0)
            in_turns.append(len(heard) - before)
        reader.close()
    assert max(in_turns) == 1
    assert sum(in_turns) >= 18


async def test_what_comes_just_before_another_message_is_sent_is_read():
    """zmq_send(3) may take the signal that the message has come, which is given once."""
    with pair() as (one, other):
        heard: list[list[bytes]] = []
        reader = SocketReader(one, heard.append)
        await asyncio.sleep(0)
        for number in range(20):
            other.send(b"%d" % number)
            assert reader.send([b"another"])
            await until(lambda number=number: len(heard) == number + 1)
        reader.close()


async def test_a_closed_socket_sends_nothing():
    with pair() as (one, _):
        reader = SocketReader(one, lambda _: None)
        for _ in range(2):
            reader.close()
            assert not reader.send([b"late"])


async def test_a_message_that_cannot_be_handled_holds_up_none():
    with pair() as (one, other):
        heard, errors = [], []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: errors.append(context["exception"])
        )

        def handle(frames):
            heard.extend(frames)
            if frames == [b"bad"]:
                raise ValueError(frames)

        for message in (b"bad", b"bad", b"bad", b"good"):
            other.send(message)
        reader = SocketReader(one, handle)
        await until(lambda: len(heard) >= 4)
        reader.close()
    assert heard == [b"bad", b"bad", b"bad", b"good"]
    assert [type(each) for each in errors] == [ValueError] * 3
