"""Replicas over the streams of a real Redis: who has the secret is heard, all else is counted."""

import asyncio
import contextlib
import re
import signal
import ssl
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import redis
from structlog.testing import capture_logs

from epp.adapters.replicas import redis_link, sealing, streams
from epp.adapters.replicas.redis_server import RedisServer, redis_server
from epp.adapters.replicas.sealing import SEALED_BYTES, Seal
from epp.adapters.replicas.streams import RedisStreams, prefix_of
from epp.adapters.replicas.transport import THIS_IS_YOU
from epp.protocol.replicas.messages import LONGEST, Dropped, Rejected
from tests.redis_process import HERE, redis_process

SECRET = b"the secret of all of them"
OTHER = b"the secret of somebody else"
POOL = "default/pool"
DOCS = Path(__file__).parents[2] / "docs" / "replicas.md"
ALL = prefix_of(POOL) + b"all"
DEADLINE = 30


@pytest.fixture
def server(tmp_path):
    with redis_process(tmp_path) as made:
        yield made


class Station:
    """A replica that keeps what it hears, and answers `?...` with `!...`."""

    def __init__(self, address, secret=SECRET, pool=POOL, password=None):
        self.heard = []
        self.replies = []
        self.dropped = Counter[Dropped]()
        self.streams = RedisStreams(
            redis_server(address, password), secret, pool, self.receive, self.drop
        )

    def receive(self, message, reply):
        self.heard.append(message)
        self.replies.append(reply)
        if message.startswith(b"?"):
            reply(b"!" + message[1:])
        else:
            reply(THIS_IS_YOU)

    def drop(self, reason):
        self.dropped[reason] += 1

    async def tell(self, message):
        """Send as soon as the server takes it."""
        await until(lambda: self.streams.send(message))

    @property
    def works(self):
        return all(self.streams._works.values())


async def until(condition):
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(*args, **more):
    made = Station(*args, **more)
    made.streams.open()
    task = asyncio.create_task(made.streams.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.streams.stop()
        made.streams.close()


@contextlib.asynccontextmanager
async def station(*args, **more):
    async with running(*args, **more) as made:
        await until(lambda: made.works)
        yield made


async def meet(*stations):
    """Let each know of the others that they run."""
    for each in stations:
        await each.tell(streams._RUNS)
    names = {each.streams._seal.sender for each in stations}
    for each in (made.streams for made in stations):
        others = names - {each._seal.sender}
        await until(lambda each=each, others=others: others <= each._running_since.keys())


def write(server, seal, to, message):
    server.do("XADD", to, "*", "m", seal.seal(to, message))


async def test_what_one_sends_all_others_hear_and_it_does_not(server):
    async with (
        station(server.address) as one,
        station(server.address) as other,
        station(server.address) as third,
    ):
        await meet(one, other, third)
        await third.tell(b"hello")
        for each in (one, other):
            await until(lambda each=each: each.heard == [b"hello"])
        await one.tell(b"good morning")
        await until(lambda: third.heard == [b"good morning"])
        assert not one.dropped + other.dropped + third.dropped
        assert third.streams.known == 2


async def test_answers_reach_who_asked_alone(server):
    async with (
        station(server.address) as one,
        station(server.address) as other,
        station(server.address) as third,
    ):
        await meet(one, other, third)
        await other.tell(b"?how")
        await until(lambda: other.heard == [b"!how", b"!how"])
        assert one.heard == third.heard == [b"?how"]


async def test_a_replica_that_stops_takes_its_stream_away_and_the_rest_expires(server, monkeypatch):
    monkeypatch.setattr(streams, "_UPKEEP_SECONDS", 0.0)
    async with station(server.address) as one, station(server.address) as other:
        await meet(one, other)
        await one.tell(b"?how")
        await until(lambda: one.heard == [b"!how"])
        await one.tell(b"and on")
        await until(lambda: server.do("TTL", ALL) > 0)
        keys = server.do("KEYS", "*")
        assert {ALL, one.streams._own, other.streams._own} == set(keys)
        assert all(0 < server.do("TTL", key) <= 600 for key in keys)
    assert server.do("KEYS", "*") == [ALL]


async def test_streams_are_bounded(server, monkeypatch):
    monkeypatch.setattr(streams, "MAX_BROADCASTS", 100)
    async with station(server.address) as one:
        for _ in range(1000):
            await one.tell(b"x" * 100)
        await until(lambda: server.do("XLEN", ALL) >= 100 and not one.streams._queue)
        await one.tell(b"x" * 100)
        await until(lambda: server.do("XLEN", ALL) < 300)


async def test_what_was_answered_is_taken_away(server, monkeypatch):
    monkeypatch.setattr(streams, "_UPKEEP_SECONDS", 0.0)
    async with station(server.address) as one, station(server.address) as other:
        await meet(one, other)
        for _ in range(300):
            await one.tell(b"?how")
        await until(lambda: len(one.heard) == 300)

        def taken():
            one.streams.send(b"and on")
            return server.do("XLEN", one.streams._own) < 200

        await until(taken)


async def test_facts_find_room_beside_long_answers(server):
    """A snapshot is tens of megabytes, and the server may be slow to take it."""
    async with station(server.address) as one, station(server.address) as other:
        await meet(one, other)
        await other.tell(b"?how")
        await until(lambda: one.heard)
        server.signal(signal.SIGSTOP)
        answer = one.replies[0]
        taken = sum(answer(b"x" * 400_000) for _ in range(100))
        assert 0 < taken < 10
        assert answer(b"a short one")
        assert one.streams.send(b"a fact")
        assert one.streams.unsent == 0
        server.signal(signal.SIGCONT)
        await until(lambda: b"a fact" in other.heard)
        assert len(other.heard) == taken + 3
        await until(lambda: answer(b"x" * 400_000))


async def test_an_answer_that_is_tried_again_and_again_is_not_as_many_messages(server):
    async with station(server.address) as one, station(server.address) as other:
        await meet(one, other)
        await other.tell(b"?how")
        await until(lambda: one.heard)
        server.kill()
        await until(lambda: one.streams.send(b"lost") == 0)
        unsent = one.streams.unsent
        assert not any(one.replies[0](b"an answer") for _ in range(10))
        assert one.streams.unsent == unsent


@contextlib.asynccontextmanager
async def narrow(server, most):
    """A way to the server whose connections bring so many bytes and no more."""
    done = list[asyncio.Task[object]]()

    async def bring(there, writer):
        left = most
        while left > 0 and (data := await there.read(min(left, 1 << 16))):
            left -= len(data)
            writer.write(data)

    async def connected(reader, writer):
        task = asyncio.current_task()
        assert task is not None
        done.append(task)
        there, into = await asyncio.open_connection(HERE, server.port)
        bringing = asyncio.create_task(bring(there, writer))
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                into.write(data)
        bringing.cancel()
        await asyncio.gather(bringing, return_exceptions=True)
        for each in (into, writer):
            each.transport.abort()
            await asyncio.gather(each.wait_closed(), return_exceptions=True)

    async with await asyncio.start_server(connected, HERE, 0) as listening:
        try:
            yield f"redis://{HERE}:{listening.sockets[0].getsockname()[1]}"
        finally:
            await asyncio.gather(*done)


async def test_more_than_comes_in_time_is_read_a_little_at_a_time(server, monkeypatch):
    monkeypatch.setattr(redis_link, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(streams, "_BLOCK_SECONDS", 0.1)
    seal = Seal(SECRET)
    messages = [b"%d " % number + b"x" * 10_000 for number in range(120)]
    async with narrow(server, most=400_000) as address, station(address) as one:
        write(server, seal, one.streams._own, streams._RUNS)
        await until(lambda: seal.sender in one.streams._running_since)
        with redis.Redis(HERE, server.port) as client, client.pipeline() as at_once:
            for message in messages:
                at_once.xadd(ALL, {"m": seal.seal(ALL, message)})
            at_once.execute()
        await until(lambda: len(one.heard) == len(messages))
        assert one.heard == messages
        assert not one.dropped


async def test_who_starts_reads_what_comes_from_then_on(server):
    async with station(server.address) as one:
        await one.tell(b"before")
        await until(lambda: server.do("XLEN", ALL) == 1)
        async with station(server.address) as other:
            await meet(one, other)
            await one.tell(b"after")
            await until(lambda: other.heard == [b"after"])


SEALED = Seal(SECRET).seal(ALL, b"a message")
ENTRIES: dict[str, tuple[list[str | bytes], Dropped]] = {
    "nothing of ours": (["k", "v"], Dropped.STRANGER),
    "two fields": (["m", SEALED, "n", SEALED], Dropped.STRANGER),
    "empty": (["m", ""], Dropped.STRANGER),
    "garbage": (["m", b"\xff" * 100], Dropped.STRANGER),
    "truncated": (["m", SEALED[:-1]], Dropped.STRANGER),
    "its head alone": (["m", SEALED[:16]], Dropped.STRANGER),
    "changed": (["m", SEALED[:-1] + bytes([SEALED[-1] ^ 1])], Dropped.STRANGER),
    "another number": (["m", SEALED[:15] + b"\x09" + SEALED[16:]], Dropped.STRANGER),
    "another secret": (["m", Seal(OTHER).seal(ALL, b"a message")], Dropped.STRANGER),
    "of another stream": (["m", Seal(SECRET).seal(b"another", b"a message")], Dropped.STRANGER),
    "10 MB": (["m", b"x" * (10 << 20)], Dropped.TOO_LONG),
}


@pytest.mark.parametrize("what", ENTRIES)
async def test_what_a_stranger_writes_is_counted_and_not_heard(server, what):
    fields, reason = ENTRIES[what]
    async with station(server.address) as one, station(server.address) as other:
        await meet(one, other)
        server.do("XADD", ALL, "*", *fields)
        server.do("XADD", one.streams._own, "*", *fields)
        await until(lambda: one.dropped == {reason: 2} and other.dropped == {reason: 1})
        await other.tell(b"?how")
        await until(lambda: other.heard == [b"!how"])
        assert one.heard == [b"?how"]


async def test_what_is_written_again_is_counted_and_not_heard_again(server):
    async with station(server.address) as one, station(server.address) as other:
        await meet(one, other)
        await other.tell(b"hello")
        await until(lambda: one.heard == [b"hello"])
        ((_, entry),) = server.do("XREVRANGE", ALL, "+", "-", "COUNT", "1")
        server.do("XADD", ALL, "*", "m", entry[b"m"])
        await until(lambda: one.dropped == {Dropped.REPEATED: 1})
        assert one.heard == [b"hello"]


async def test_old_messages_that_are_written_again_for_one_that_just_started_are_not_heard(server):
    async with station(server.address) as one:
        async with station(server.address) as other:
            await meet(one, other)
            await other.tell(b"old")
            await until(lambda: one.heard == [b"old"])
        old = [entry[b"m"] for _, entry in server.do("XRANGE", ALL, "-", "+")]
        async with station(server.address) as fresh:
            for sealed in old:
                server.do("XADD", ALL, "*", "m", sealed)
            await meet(one, fresh)
            for sealed in old:
                server.do("XADD", ALL, "*", "m", sealed)
            await one.tell(b"new")
            await until(lambda: fresh.heard == [b"new"])
            assert fresh.streams.known == 1


async def test_what_is_written_again_is_not_heard_again_beside_old_messages_of_many(
    server, monkeypatch
):
    monkeypatch.setattr(sealing, "_MAX_SENDERS", 2)
    async with station(server.address) as one, station(server.address) as other:
        await meet(one, other)
        await other.tell(b"?how")
        await until(lambda: other.heard == [b"!how"])
        own = other.streams._own
        ((_, entry),) = server.do("XREVRANGE", own, "+", "-", "COUNT", "1")
        gone = [Seal(SECRET) for _ in range(3)]
        for each in gone:
            write(server, each, ALL, b"old")
        await until(lambda: {each.sender for each in gone} <= other.streams._asked.keys())
        server.do("XADD", own, "*", "m", entry[b"m"])
        await until(lambda: other.dropped == {Dropped.REPEATED: 1})
        assert other.heard == [b"!how"]


async def test_one_that_is_asked_again_whether_it_runs_says_so_again(server):
    seal = Seal(SECRET)
    own = prefix_of(POOL) + b"to:" + seal.sender.hex().encode()
    async with station(server.address) as one:
        write(server, seal, one.streams._own, streams._ASKS_WHETHER_IT_RUNS)
        write(server, seal, one.streams._own, streams._ASKS_WHETHER_IT_RUNS)
        await until(lambda: server.do("XLEN", own) == 2)
        said = [entry[b"m"] for _, entry in server.do("XRANGE", own, "-", "+")]
    assert [Seal(SECRET).open(own, each)[2] for each in said] == [streams._RUNS, streams._RUNS]
    assert not one.heard


@pytest.mark.parametrize("kind", [("SET", "x"), ("LPUSH", "x")])
async def test_a_key_of_another_kind_is_said_and_outlived(server, kind):
    command, value = kind
    with capture_logs() as logs:
        async with station(server.address) as one, station(server.address) as other:
            await meet(one, other)
            server.do("DEL", ALL)
            server.do(command, ALL, value)
            one.streams.send(b"hello")
            await until(lambda: one.streams.send(b"hello") == 0)
            server.do("DEL", ALL)
            await until(lambda: one.works and other.works)
            await other.tell(b"again")
            await until(lambda: b"again" in one.heard)
    assert any("WRONGTYPE" in each.get("problem", "") for each in logs)


async def test_pools_of_other_namespaces_are_apart(server):
    async with (
        station(server.address) as one,
        station(server.address, pool="elsewhere/pool") as other,
    ):
        await one.tell(b"hello")
        await other.tell(b"hello")
        await until(lambda: len(server.do("KEYS", "*:all")) == 2)
        assert not one.heard + other.heard
        assert not one.dropped + other.dropped


async def test_a_server_that_starts_again_empty_is_read_from_the_start(server):
    async with station(server.address) as one, station(server.address) as other:
        await meet(one, other)
        await one.tell(b"hello")
        await until(lambda: other.heard == [b"hello"])
        server.kill()
        await until(lambda: one.streams.send(b"lost") == 0)
        assert one.streams.unsent
        assert one.streams.known == 1
        # What is written before the other one is back is read then: ids are those of the clock.
        server.start()
        server.do("XADD", ALL, "0-1", "m", Seal(OTHER).seal(ALL, b"early"))
        await until(lambda: one.dropped[Dropped.STRANGER] and other.dropped[Dropped.STRANGER])
        await one.tell(b"again")
        await until(lambda: other.heard[-1] == b"again")


async def test_acl_users_and_passwords_that_change(server, tmp_path):
    (right,) = re.findall(r"^(ACL SETUSER .*)$", DOCS.read_text(), re.MULTILINE)
    server.do(*right.replace("PASSWORD", "right").replace("default/llm", POOL).split())
    password = tmp_path / "password"
    password.write_text("wrong\n")
    address = server.address.replace("//", "//pickers@")
    with capture_logs() as logs:
        async with running(address, password=password) as one:
            await until(
                lambda: any("AuthenticationError" in each.get("problem", "") for each in logs)
            )
            assert one.streams.send(b"hello") == 0
            password.write_text("right\n")
            await until(lambda: one.works)
            async with station(address, password=password) as other:
                await meet(one, other)
                await one.tell(b"hello")
                await until(lambda: other.heard == [b"hello"])
    assert "right" not in str(logs)
    async with running(address.replace("//pickers@", "//"), pool="other/pool") as third:
        await third.tell(b"hello")  # nobody but this user was given a password


async def test_a_user_without_rights_is_said(server):
    server.do("ACL", "SETUSER", "pickers", "ON", "nopass", "~other:*", "+@all")
    with capture_logs() as logs:
        async with running(server.address.replace("//", "//pickers@")) as one:
            await until(
                lambda: any("NoPermissionError" in each.get("problem", "") for each in logs)
            )
            assert one.streams.send(b"hello") == 0
            assert one.streams.known == 1


def certificate(folder):
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=redis"
    subprocess.run(
        [
            *("openssl", *words.split(), "-addext", f"subjectAltName=IP:{HERE}"),
            *("-keyout", "key.pem", "-out", "cert.pem"),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder / "cert.pem", folder / "key.pem"


async def test_tls_with_a_certificate_of_ones_own(tmp_path):
    cert, key = certificate(tmp_path)
    files = ("--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert)
    with redis_process(tmp_path, "--tls-auth-clients", "no", *map(str, files)) as server:
        server.kill()
        plain, server.port = server.port, server.port
        server.start("--tls-port", str(plain), "--port", "0")
        server.do("PING", ssl=True, ssl_ca_certs=str(cert))
        address = f"rediss://{HERE}:{plain}"
        with capture_logs() as logs:
            async with running(address):  # whom the system trusts has not signed it
                await until(lambda: any("VERIFY" in each.get("problem", "") for each in logs))
        trusting = f"{address}?ssl_ca_certs={cert}"
        async with station(trusting) as one, station(trusting) as other:
            await meet(one, other)
            await one.tell(b"hello")
            await until(lambda: other.heard == [b"hello"])


def test_sealed_messages_are_opened_by_who_has_the_secret_once_and_in_order():
    one, other = Seal(SECRET), Seal(SECRET)
    first, second = one.seal(b"s", b"first"), one.seal(b"s", b"second")
    assert len(first) == len(b"first") + SEALED_BYTES
    assert b"first" not in first
    assert one.is_own(first)
    assert not other.is_own(first)
    assert other.open(b"s", first) == (one.sender, 1, b"first")
    assert other.open(b"s", second) == (one.sender, 2, b"second")
    for again in (first, second):
        with pytest.raises(Rejected) as rejected:
            other.open(b"s", again)
        assert rejected.value.reason is Dropped.REPEATED
    longest = one.seal(b"s", b"x" * LONGEST)
    assert len(other.open(b"s", longest)[2]) == LONGEST
    with pytest.raises(Rejected) as rejected:
        other.open(b"s", one.seal(b"s", b"x" * (LONGEST + 1)))
    assert rejected.value.reason is Dropped.TOO_LONG


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redis://redis", RedisServer(host="redis")),
        ("redis://10.0.0.1:7000/3", RedisServer(host="10.0.0.1", port=7000, database=3)),
        ("REDISS://redis/", RedisServer(host="redis", tls=True)),
        ("redis://pick%40ers@[::1]:1", RedisServer(host="::1", port=1, username="pick@ers")),
        (
            "rediss://redis?ssl_ca_certs=/ca.pem&ssl_certfile=/c.pem&ssl_keyfile=/k.pem",
            RedisServer(
                host="redis",
                tls=True,
                ssl_ca_certs="/ca.pem",
                ssl_certfile="/c.pem",
                ssl_keyfile="/k.pem",
            ),
        ),
    ],
)
def test_addresses_of_servers_are_read(text, expected):
    assert redis_server(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("redis://", "is not redis://"),
        ("redis://redis:0", "is not redis://"),
        ("redis://redis:port", "is not redis://"),
        ("redis://redis/x", "is not redis://"),
        ("redis://redis/0/1", "is not redis://"),
        ("redis://redis#x", "is not redis://"),
        ("redis://:secret@redis", "--replicas-password-file"),
        ("redis://redis?ssl_ca_certs=/ca.pem", "requires rediss://"),
        ("rediss://redis?ssl_cert_reqs=none", "`ssl_cert_reqs` is not an option"),
    ],
)
def test_what_is_not_the_address_of_a_server_is_said(text, message):
    with pytest.raises(ValueError, match=message):
        redis_server(text)


@pytest.mark.parametrize("error", [redis.RedisError("x"), ssl.SSLError("x"), TimeoutError()])
def test_what_fails_is_said_once_for_each_kind(error):
    station = Station("redis://redis")
    with capture_logs() as logs:
        for _ in range(3):
            station.streams._fails("read", error)
    assert len(logs) == 1
    assert type(error).__name__ in logs[0]["problem"]
