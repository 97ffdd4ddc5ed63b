import msgspec
import pytest

from epp.protocol.kube.election import (
    LeaderElectionConfig,
    LeaseAction,
    LeaseCandidate,
    LeaseSpec,
    acquired,
    released,
)

ME, OTHER = "me", "other"
CONFIG = LeaderElectionConfig(identity=ME, lease_duration=15)
STAMP = "2026-01-01T00:00:00.000000Z"


def lease(holder, *, renewed="t0", seconds=15, **more):
    spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": renewed}
    return {"metadata": {"name": "epp", "labels": {"keep": "me"}}, "spec": {**spec, **more}}


def view(document):
    return msgspec.convert(document.get("spec", {}), LeaseSpec)


@pytest.mark.parametrize(
    ("document", "step"),
    [
        (None, LeaseAction.CREATE),
        (lease(ME), LeaseAction.RENEW),
        (lease(OTHER), LeaseAction.WAIT),
        (lease(""), LeaseAction.ACQUIRE),
        (lease(None), LeaseAction.ACQUIRE),
        ({}, LeaseAction.ACQUIRE),
    ],
)
def test_actions_for_a_lease_read_first(document, step):
    seen = None if document is None else view(document)
    assert LeaseCandidate(CONFIG).read(seen, 100.0) is step


@pytest.mark.parametrize("seconds", [5, 15, None])
def test_a_lease_unchanged_for_its_duration_is_acquired(seconds):
    election, wait = LeaseCandidate(CONFIG), seconds or CONFIG.lease_duration
    assert election.read(view(lease(OTHER, seconds=seconds)), 100.0) is LeaseAction.WAIT
    assert election.read(view(lease(OTHER, seconds=seconds)), 99.9 + wait) is LeaseAction.WAIT
    changed = view(lease(OTHER, seconds=seconds, renewed="t1"))
    assert election.read(changed, 100.0 + wait) is LeaseAction.WAIT
    assert election.read(changed, 99.9 + 2 * wait) is LeaseAction.WAIT
    assert election.read(changed, 100.0 + 2 * wait) is LeaseAction.ACQUIRE


def test_writing_keeps_other_fields_and_counts_transitions():
    before = lease(OTHER, leaseTransitions=3, acquireTime="t0", strategy="x")
    taken = acquired(before, LeaseAction.ACQUIRE, CONFIG, STAMP)
    assert taken["metadata"] == before["metadata"]
    assert taken["spec"] == {
        "holderIdentity": ME,
        "leaseDurationSeconds": 15,
        "renewTime": STAMP,
        "acquireTime": STAMP,
        "leaseTransitions": 4,
        "strategy": "x",
    }
    renewed = acquired(taken, LeaseAction.RENEW, CONFIG, "later")
    assert renewed["spec"] == {**taken["spec"], "renewTime": "later"}
    assert acquired({}, LeaseAction.CREATE, CONFIG, STAMP)["spec"]["leaseTransitions"] == 0


def test_a_released_lease_is_acquired_at_once():
    document = released(lease(ME, leaseTransitions=1), STAMP)
    assert document["spec"]["leaseTransitions"] == 1
    assert (
        LeaseCandidate(LeaderElectionConfig(identity=OTHER)).read(view(document), 0.0)
        is LeaseAction.ACQUIRE
    )
