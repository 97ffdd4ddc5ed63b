"""Who has the secret is heard once: what strangers write, or write again, is counted."""

import pytest

from epp.adapters.replicas import sealing, streams
from epp.adapters.replicas.sealing import SEALED_BYTES, Seal
from epp.adapters.replicas.streams import prefix_of
from epp.protocol.replicas.messages import LONGEST, Dropped, Rejected
from tests.adapters.replicas.stations import ALL, OTHER, POOL, SECRET, meet, station, write
from tests.tasks import until

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
