"""The ring of consistent hashing: against distances, and what coming and going moves."""

from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved
from epp.policy.peers.hash_ring import HashRing
from tests.model.rig import Rig

NAMES = [EndpointId(f"default/pod-{number}") for number in range(8)]
ROUND = 1 << 64
keys = st.integers(0, ROUND - 1)
fleets = st.lists(st.sampled_from(NAMES), unique=True)


def ring(names, points_each=16, fleet=None):
    made = HashRing((fleet or Rig(0).fleet).subscribe, points_each)
    made.add(names)
    return made


def by_distance(names, key, points_each=16):
    """Order endpoints by the way to the nearest of their points."""
    points = {
        name: [xxh64_intdigest(f"{name}{number}".encode()) for number in range(points_each)]
        for name in names
    }
    return sorted(names, key=lambda name: min((point - key) % ROUND for point in points[name]))


@given(fleets, keys)
def test_a_walk_is_by_distance(names, key):
    assert list(ring(names).walk(key)) == by_distance(names, key)


@given(fleets, keys, st.sampled_from(NAMES))
def test_what_comes_or_goes_moves_no_other(names, key, changed):
    fleet = Rig(0).fleet
    made = ring(names, fleet=fleet)
    fleet.apply(EndpointRemoved(changed), 0.0)
    others = [name for name in names if name != changed]
    assert list(made.walk(key)) == by_distance(others, key)
    assert len([*made.walk(0)]) == len(others)
    made.add([changed, *others])
    assert [name for name in made.walk(key) if name != changed] == by_distance(others, key)


@settings(max_examples=10)
@given(st.integers(0, 1000))
def test_keys_spread_over_all(seed):
    """With 256 points each, four endpoints have 15 to 35 percent of the ring."""
    made = ring(NAMES[:4], 256)
    keys = (xxh64_intdigest(f"{seed} {number}".encode()) for number in range(2000))
    owners = [next(made.walk(key)) for key in keys]
    assert all(300 <= owners.count(name) <= 700 for name in NAMES[:4])


def test_the_key_at_a_point_is_its_owners():
    point = xxh64_intdigest(f"{NAMES[0]}3".encode())
    assert next(ring(NAMES).walk(point)) == NAMES[0]
    assert list(ring([]).walk(point)) == []
