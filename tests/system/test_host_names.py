import asyncio
import random
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.system.host_names import (
    KEPT_SECONDS,
    MAX_ADDRESSES,
    HostNames,
    answering,
    of_one_family,
)
from tests.loopbacks import loopbacks

MANY = [f"10.0.{number // 256}.{number % 256}" for number in range(3_000)]
LOST = OSError(-2, "Name or service not known")


class World:
    """A name server, and which servers answer."""

    def __init__(self):
        self.now = 0.0
        self.listed: list[str] | Exception = []
        self.silent = set()
        self.asked = []
        self.names = HostNames(lambda: self.now, self.lookup, self.answers)

    def lookup(self, name):
        if isinstance(self.listed, Exception):
            raise self.listed
        return self.listed

    def answers(self, addresses, port):
        self.asked.append((set(addresses), port))
        return set(addresses) - self.silent

    def resolve(self):
        return self.names.resolve("gpu", 8000)


def test_a_name_that_shows_eight_of_twenty_four_keeps_them_all():
    world, draw = World(), random.Random(1)  # noqa: S311 (no secret)
    seen = set()
    for _ in range(200):
        world.listed = draw.sample(MANY[:24], 8)
        seen |= set(world.listed)
        found, problem = world.resolve()
        assert (set(found), problem) == (seen, "")
        world.now += 5
    assert seen == set(MANY[:24])


def test_one_that_is_no_longer_listed_goes_when_it_is_silent_and_after_a_while():
    world = World()
    world.listed = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]
    world.resolve()
    world.listed, world.silent = ["10.0.0.1", "10.0.0.2"], {"10.0.0.3"}
    assert world.resolve().addresses == ("10.0.0.1", "10.0.0.2", "10.0.0.4")
    assert world.asked == [({"10.0.0.3", "10.0.0.4"}, 8000)]
    world.silent = set()
    world.now = KEPT_SECONDS
    assert world.resolve().addresses == ("10.0.0.1", "10.0.0.2")


@pytest.mark.parametrize(
    ("before", "after"),
    [(["10.0.0.1"], ["10.0.0.9"]), (["fd00::1", "10.0.0.1"], ["fd00::9", "10.0.0.9"])],
)
def test_a_name_of_one_host_has_moved_where_it_lists_another(before, after):
    world = World()
    world.listed = before
    world.resolve()
    world.listed = after
    assert world.resolve() == (tuple(after), "")
    assert world.asked == []


@pytest.mark.parametrize("error", [LOST, UnicodeError("label too long")])
def test_what_was_known_stays_while_no_name_server_answers(error):
    world = World()
    world.listed = error
    assert world.resolve() == ((), f"gpu cannot be resolved: {error.args[-1]}")
    world.listed = ["10.0.0.1", "10.0.0.2"]
    world.resolve()
    world.listed = error
    world.now = 10 * KEPT_SECONDS
    assert world.resolve().addresses == ("10.0.0.1", "10.0.0.2")


def test_of_thousands_the_same_ones_are_used_and_it_is_said():
    world, draw = World(), random.Random(2)  # noqa: S311 (no secret)
    world.listed = MANY
    found, problem = world.resolve()
    assert found == tuple(MANY[:MAX_ADDRESSES])
    assert problem == "gpu has more than 1024 addresses: the others are not used"
    world.listed = draw.sample(MANY, len(MANY))
    assert set(world.resolve().addresses) == set(found)


@given(st.lists(st.tuples(st.sets(st.sampled_from(MANY[:9])), st.sets(st.sampled_from(MANY[:9])))))
def test_all_that_is_listed_is_there_and_nothing_that_is_silent(turns):
    world, ever = World(), set()
    for listed, world.silent in turns:
        world.listed = sorted(listed)
        found, _ = world.resolve()
        ever |= listed
        assert listed <= set(found) <= ever
        assert set(found) - listed <= ever - world.silent
        world.now += 5


async def test_who_takes_connections_answers():
    here, silent = "127.0.0.1", "127.0.0.2"
    server = await asyncio.start_server(lambda _, writer: writer.close(), here, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        found = await asyncio.to_thread(answering, [here, silent, "::1"], port)
    assert found == {here}


def test_nobody_answers_where_nobody_can():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        assert answering(["127.0.0.1", "255.255.255.255"], held.getsockname()[1]) == set()
    assert answering([], 1) == set()


@pytest.mark.parametrize(
    ("addresses", "six", "chosen"),
    [
        ([], False, []),
        (["fe80::1"], False, ["fe80::1"]),
        (["127.0.0.1", "127.0.0.2", "fe80::1"], False, ["127.0.0.1", "127.0.0.2"]),
        (["127.0.0.1", "fe80::1"], True, ["127.0.0.1"]),
        # No socket of this machine can be connected to either of these.
        (["fe80::1", "255.255.255.255"], False, ["255.255.255.255"]),
        (["fe80::1", "255.255.255.255"], True, ["fe80::1"]),
    ],
)
def test_a_host_is_used_by_one_family_that_this_machine_has_a_route_to(addresses, six, chosen):
    assert of_one_family(addresses, six=six) == chosen


def test_where_there_is_no_route_to_ipv4_a_host_with_both_is_used_by_ipv6():
    if "[::1]" not in loopbacks():
        pytest.skip("NOT TESTED: names with addresses of both families: this machine has no IPv6")
    assert of_one_family(["255.255.255.255", "::1"]) == ["::1"]
    assert of_one_family(["::1", "127.0.0.1"]) == ["127.0.0.1"]
    assert of_one_family(["127.0.0.1", "::1"], six=True) == ["::1"]
