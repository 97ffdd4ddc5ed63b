"""Leader election against an API server over HTTP: one leader while it answers, and never none."""

import asyncio
import contextlib
import time
from itertools import groupby

import pytest
from structlog.testing import capture_logs

from epp.adapters.kube import election
from epp.adapters.kube.election import LeaseElection
from epp.protocol.kube.election import LeaderElectionConfig
from epp.protocol.kube.resources import leases
from tests.adapters.kube.rig import connected
from tests.kubeapi import faults
from tests.kubeapi.answers import Answer
from tests.tasks import Changed, running

NAME = "epp-default-pool.llm-d.ai"
QUICK = {"lease_duration": 5, "renew_deadline": 0.1, "retry_period": 0.05, "notice_period": 0.1}
"""No leader is lost to a machine that stalls, and a lease ends before a test gives up on it."""


class Candidate(Changed):
    """A candidate that records its turns, and how many of its peers lead at each."""

    def __init__(self, connection, identity, peers, **config):
        super().__init__()
        self.turns = []
        self.leaders = []
        self._peers = peers
        peers.append(self)
        self.election = LeaseElection(
            connection,
            (leases("default"), NAME),
            LeaderElectionConfig(identity=identity, **{**QUICK, **config}),
            self._turn,
        )

    def _turn(self):
        if self.turns[-1:] != [self.leading]:
            self.turns.append(self.leading)
        self.leaders.append(sum(peer.leading for peer in self._peers))
        self()

    @property
    def leading(self):
        return self.election.leading


@contextlib.asynccontextmanager
async def candidates(connection, *identities, **config):
    made: list[Candidate] = []
    for identity in identities:
        Candidate(connection, identity, made, **config)
    async with contextlib.AsyncExitStack() as stack:
        for each in made:
            await stack.enter_async_context(running(each.election.run()))
        yield made


def lease(api):
    return api.get("Lease", NAME)["spec"]


def taken_by_another(api, **more):
    spec = {"holderIdentity": "other", "leaseTransitions": 4}
    return api.put(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": NAME, "namespace": "default", "labels": {"keep": "me"}},
            "spec": {**spec, "renewTime": "2026-01-01T00:00:00.000000Z", **more},
        }
    )


async def renewed(api):
    before = len(api.requests)
    await api.asked(lambda ask: ask.verb == "update", after=before)


async def test_a_lease_that_is_not_there_is_made_and_renewed(api, connection):
    async with candidates(connection, "a") as (a,):
        await a.until(lambda: a.leading)
        first = lease(api)
        assert (first["holderIdentity"], first["leaseTransitions"]) == ("a", 0)
        assert first["acquireTime"] <= first["renewTime"]
        await renewed(api)
        await renewed(api)
        assert lease(api)["renewTime"] > first["renewTime"]
        assert lease(api)["acquireTime"] == first["acquireTime"]
    assert a.turns == [True]


async def test_an_api_server_that_takes_longer_than_a_pause_has_a_leader(api, connection):
    """`retry_period` is the pause between attempts, and says nothing of how long they take."""
    api.drip(50, QUICK["retry_period"])  # every answer takes several
    async with candidates(connection, "a", renew_deadline=60) as (a,):
        await a.until(lambda: a.leading)
        await renewed(api)
    assert a.turns == [True]


async def test_a_request_that_hangs_leaves_time_for_another(api, connection):
    api.fail(faults.hanging(), resource="leases")
    async with candidates(connection, "a") as (a,):
        await a.until(lambda: a.leading)


async def test_of_two_candidates_the_second_leads_after_a_release(api, connection):
    async with candidates(connection, "a", "b") as (a, b):
        leader, follower = (a, b) if await first_of(a, b) is a else (b, a)
        await renewed(api)
        assert not follower.leading
        await leader.election.release()
        assert not leader.leading
        await follower.until(lambda: follower.leading)
        assert lease(api)["leaseTransitions"] == 1
    assert (leader.turns, follower.turns) == ([True, False], [True])


async def test_a_leader_serves_until_the_next_one_leads_and_is_noticed(api, connection):
    """A kubelet and a gateway see a new leader later than it leads."""
    async with candidates(connection, "a") as made:
        (a,) = made
        await a.until(lambda: a.leading)
        await a.election.release()
        assert (a.leading, a.election.serving) == (False, True)
        handing_over = asyncio.create_task(a.election.handed_over())
        taken_by_another(api, leaseDurationSeconds=60)
        held = len(api.requests)
        await api.asked(lambda ask: ask.verb == "get" and ask.resource == "leases", after=held)
        assert (a.election.serving, handing_over.done()) == (True, False)
        await a.until(lambda: not a.election.serving)
        await handing_over
    assert a.turns == [True, False]


@pytest.mark.parametrize("code", [409, 500])
async def test_a_release_that_fails_is_tried_again(code, api, connection):
    """Else the next one would lead only when the lease has expired."""
    async with candidates(connection, "a") as (a,):
        await a.until(lambda: a.leading)
        await renewed(api)
        if code == 409:  # it has changed since it was read
            api.patch("Lease", NAME, {"metadata": {"labels": {"mine": "1"}}})
        else:
            api.fail(faults.internal(), verb="update", resource="leases", times=2)
        with capture_logs() as logs:
            await a.election.release()
        assert lease(api)["holderIdentity"] == ""
    assert "lease.not_released" not in [each["event"] for each in logs]


async def test_a_lease_that_is_gone_is_not_made_again_to_be_released(api, connection):
    async with candidates(connection, "a") as (a,):
        await a.until(lambda: a.leading)
        await renewed(api)
        api.delete("Lease", NAME)
        with capture_logs() as logs:
            await a.election.release()
            await asyncio.wait_for(a.election.handed_over(), 5)
    assert "lease.not_released" not in [each["event"] for each in logs]
    assert [ask.verb for ask in api.requests].count("create") == 1


@pytest.mark.parametrize("fault", [None, faults.internal(), faults.dropped()])
async def test_a_leader_does_not_wait_for_long_if_nobody_stands_by(fault, api, connection):
    async with candidates(connection, "a") as (a,):
        await a.until(lambda: a.leading)
        await a.election.release()
        if fault is not None:
            api.fail(fault, times=None)
        with capture_logs() as logs:
            await asyncio.wait_for(a.election.handed_over(), 5)
        assert not a.election.serving
        assert "lease.not_acquired" in [each["event"] for each in logs]
        api.mend()


async def test_a_leader_serves_on_though_the_api_server_fails_once(api, connection):
    async with candidates(connection, "a", retry_period=0.5) as (a,):
        await a.until(lambda: a.leading)
        await a.election.release()
        before = len(api.requests)
        api.fail(faults.internal(), verb="get", resource="leases")
        handing_over = asyncio.create_task(a.election.handed_over())
        await api.asked(lambda ask: ask.resource == "leases", after=before + 1)
        assert (a.election.serving, handing_over.done()) == (True, False)
        taken_by_another(api, leaseDurationSeconds=60)
        with capture_logs() as logs:
            await handing_over
    assert [each["event"] for each in logs] == ["lease.leader"]


async def test_who_does_not_lead_stops_at_once_though_it_may_not_read_leases(api, tmp_path):
    token = api.token("epp", [], namespace="default")
    async with (
        connected(api, tmp_path, token=token) as connection,
        candidates(connection, "a") as (a,),
    ):
        await api.asked(lambda ask: ask.resource == "leases")
        before = len(api.requests)
        with capture_logs() as logs:
            await a.election.release()
        assert len(api.requests) - before <= 2  # one may have been under way
        assert "lease.not_released" in [each["event"] for each in logs]


async def test_who_does_not_lead_has_nothing_to_hand_over(api, connection):
    taken_by_another(api, leaseDurationSeconds=60)
    async with candidates(connection, "a") as (a,):
        await api.asked(lambda ask: ask.resource == "leases")
        await a.election.release()
        assert not a.election.serving
        before = len(api.requests)
        await a.election.handed_over()
        assert len(api.requests) == before


async def first_of(*made):
    """Wait for the first that leads."""
    waits = [asyncio.create_task(each.until(lambda each=each: each.leading)) for each in made]
    done, others = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for other in others:
        other.cancel()
    return made[waits.index(done.pop())]


async def test_a_holder_that_is_gone_is_followed_after_its_duration(api, connection):
    taken_by_another(api, leaseDurationSeconds=1)
    began = time.monotonic()
    async with candidates(connection, "a") as (a,):
        await a.until(lambda: a.leading)
    assert time.monotonic() - began >= 1
    assert lease(api)["leaseTransitions"] == 5
    assert api.get("Lease", NAME)["metadata"]["labels"] == {"keep": "me"}
    reads = [ask for ask in api.requests if (ask.verb, ask.resource) == ("get", "leases")]
    assert len(reads) >= 2


async def test_a_lease_that_another_takes_while_we_lead_is_given_up(api, connection):
    async with candidates(connection, "a") as (a,):
        await a.until(lambda: a.leading)
        taken_by_another(api, leaseDurationSeconds=60)
        await a.until(lambda: not a.leading)
        assert lease(api)["holderIdentity"] == "other"


async def test_a_lease_that_is_edited_is_still_ours(api, connection):
    async with candidates(connection, "a") as (a,):
        await a.until(lambda: a.leading)
        for label in "xyz":
            api.patch("Lease", NAME, {"metadata": {"labels": {label: "1"}}})
            await renewed(api)
        await renewed(api)
        assert set(api.get("Lease", NAME)["metadata"]["labels"]) == {"x", "y", "z"}
    assert a.turns == [True]


async def attempts(api, times):
    """Wait until so many more requests for leases came."""
    numbers = iter(range(times))

    def counted(ask):
        return ask.resource == "leases" and next(numbers, times) >= times - 1

    await api.asked(counted, after=len(api.requests))


@pytest.mark.parametrize(
    "fault",
    [
        *(faults.dropped(), faults.internal(), faults.unavailable()),
        *(
            faults.answering(Answer(code=200, body=body))
            for body in (b"[" * 100_000, b'{"\xff":1}')
        ),
    ],
)
async def test_a_leader_goes_on_while_the_api_server_is_away(fault, api, connection):
    # client-go's leader would step down, so that gateways that check health lose their picker.
    async with candidates(connection, "a", lease_duration=1) as (a,):
        await a.until(lambda: a.leading)
        held = lease(api)["renewTime"]
        api.fail(fault, times=None)
        began = time.monotonic()
        with capture_logs() as logs:
            while time.monotonic() - began < 1.2:  # longer than the lease lasts
                await attempts(api, 5)
        assert a.leading
        api.mend()
        await renewed(api)
        await renewed(api)
        assert lease(api)["renewTime"] > held
        assert lease(api)["leaseTransitions"] == 0
    assert a.turns == [True]
    said = [(each["event"], each["leading"]) for each in logs if each["event"].startswith("lease.")]
    # A problem is said once, until there is another: an answer may also come too late.
    assert said == [each for each, _ in groupby(said)]
    assert {leading for _, leading in said} == {True}


async def test_a_leader_without_rights_goes_on(api, tmp_path):
    rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    token = api.token("epp", [rule])
    async with (
        connected(api, tmp_path, token=token) as connection,
        candidates(connection, "a", lease_duration=1) as (a,),
    ):
        await a.until(lambda: a.leading)
        api.access.rules["epp"].clear()
        await attempts(api, 30)
        assert a.leading
    assert a.turns == [True]


async def test_a_leader_that_was_followed_meanwhile_steps_down_when_it_sees_it(api, connection):
    async with candidates(connection, "a") as (a,):
        await a.until(lambda: a.leading)
        api.fail(faults.dropped(), times=None)
        await attempts(api, 5)
        taken_by_another(api, leaseDurationSeconds=60)
        await attempts(api, 5)
        assert a.leading
        api.mend()
        await a.until(lambda: not a.leading)
        assert lease(api)["holderIdentity"] == "other"
    assert a.turns == [True, False]


async def test_a_leader_survives_a_restart_of_the_api_server(api, connection):
    async with candidates(connection, "a") as (a,):
        await a.until(lambda: a.leading)
        await api.restart()
        api.fail(faults.internal(), resource="leases", times=3)
        await renewed(api)
        await renewed(api)
    assert a.turns == [True]


async def test_a_write_whose_answer_is_lost_is_not_lost(api, connection):
    async with candidates(connection, "a") as (a,):
        await a.until(lambda: a.leading)
        api.drip(1, 0.02)
        await renewed(api)
        api.mend()
        await renewed(api)
        await a.until(lambda: a.leading)


async def test_releasing_anothers_lease_changes_nothing(api, connection):
    taken_by_another(api, leaseDurationSeconds=60)
    async with candidates(connection, "a") as (a,):
        await api.asked(lambda ask: ask.resource == "leases")
        await a.election.release()
    assert lease(api)["holderIdentity"] == "other"
    assert a.turns == []


async def test_no_attempt_follows_a_release(api, connection, tmp_path):
    async with candidates(connection, "a") as (a,):
        await a.until(lambda: a.leading)
        await a.election.release()
        spec = lease(api)
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("", 1)
        before = len(api.requests)
        rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
        token = api.token("b", [rule])
        async with connected(api, tmp_path, token=token) as other, candidates(other, "b"):
            for _ in range(4):
                await renewed(api)
        assert {ask.user for ask in api.requests[before:]} == {"b"}


async def test_an_unanswered_release_ends_in_time(api, connection, monkeypatch):
    monkeypatch.setattr(election, "_RELEASE_SECONDS", 0.5)
    async with candidates(connection, "a", retry_period=0.5) as (a,):
        await a.until(lambda: a.leading)
        await api.down()
        with capture_logs() as logs:
            await a.election.release()
        assert "lease.not_released" in [each["event"] for each in logs]
        # Another takes over when the lease has ended by itself; until then no one else serves.
        assert (a.leading, a.election.serving) == (False, True)
        await api.up()
        taken_by_another(api, leaseDurationSeconds=60)
        with capture_logs() as logs:
            await a.election.handed_over()
        assert "lease.not_acquired" not in [each["event"] for each in logs]
        assert not a.election.serving


async def test_a_missing_rule_is_named_once(api, tmp_path):
    token = api.token("epp", [], namespace="default")
    with capture_logs() as logs:
        async with (
            connected(api, tmp_path, token=token) as connection,
            candidates(connection, "a") as (a,),
        ):
            for after in range(3):
                await api.asked(lambda ask: ask.resource == "leases", after=after)
    (said,) = [each for each in logs if each["event"] == "lease.forbidden"]
    assert said["missing_rule"] == (
        '{apiGroups: ["coordination.k8s.io"], resources: [leases], verbs: [get, create, update]}'
    )
    assert a.turns == []


@pytest.mark.parametrize("seed", range(3))
async def test_there_are_never_two_leaders_while_leases_are_renewed(seed, api, connection):
    """Three candidates, one of which leads after the other, and an API server that fails."""
    async with candidates(connection, "a", "b", "c") as made:
        left = list(made)
        while left:
            leader = await first_of(*left)
            [api.drop_watches, api.compact, api.bookmark][(seed + len(left)) % 3]()
            api.fail(faults.internal(), resource="leases", times=seed)
            await leader.election.release()
            left.remove(leader)
    leaders = [number for each in made for number in each.leaders]
    assert max(leaders) == 1
    assert all(each.turns[-2:] == [True, False] for each in made)
