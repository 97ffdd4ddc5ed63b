"""A pick that avoids endpoints: it goes to one of these only if none of the others is there."""

import pytest

from epp.errors import EndpointsFull, ShuttingDown
from epp.model.endpoint import Endpoint
from epp.model.events import EndpointRemoved, EndpointUpserted, LoadReported
from tests.inprocess.test_pick import CHAT, LONG, SMALL, Moments, made, served
from tests.inprocess.twins import ENDPOINTS, Request, settled

ONE_EACH = """
plugins:
- {type: least-ttft-picker}
- {type: concurrency-detector, parameters: {maxConcurrency: 1}}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: concurrency-detector}, {pluginRef: least-ttft-picker}]}
"""


def avoid(twin, left):
    """Have what is picked from now on avoid all endpoints but those that are left."""
    twin.avoided = frozenset(each.target for each in ENDPOINTS if each not in left)


async def one_waits(left):
    """A picker without room: three picks that run, and one for the endpoints that are left."""
    twin = await made(Moments(), SMALL)
    running = [twin.begin(each)[0] for each in LONG[:3]]
    await settled()
    avoid(twin, left)
    pick, entering = twin.begin(LONG[3])
    await settled()
    assert not entering.done()
    return twin, running, pick, entering


async def test_one_that_waits_for_endpoints_that_go_is_sent_to_one_that_it_avoids():
    twin, running, pick, entering = await one_waits(ENDPOINTS[:1])
    twin.core.fleet.apply(EndpointRemoved(ENDPOINTS[0].id), twin.clock())
    room = next(each for each in running if each.endpoint != ENDPOINTS[0])
    room.finished()
    await entering
    assert pick.endpoint == room.endpoint


async def test_one_that_waits_for_others_that_go_one_by_one_is_sent_to_one_that_it_avoids():
    twin, running, pick, entering = await one_waits(ENDPOINTS[:1])
    late = Endpoint("default", "d", "10.0.0.9", 8000)
    load = twin.core.fleet.pods[ENDPOINTS[0].id].load
    for event in EndpointUpserted(late), LoadReported(late.id, load):
        twin.core.fleet.apply(event, twin.clock())
    avoid(twin, ())
    filling = await twin.begin(LONG[4])[1]
    assert filling.endpoint == late
    room = next(each for each in running if each.endpoint != ENDPOINTS[0])
    room.finished()
    for each in ENDPOINTS[0], late:
        assert not entering.done()
        twin.core.fleet.apply(EndpointRemoved(each.id), twin.clock())
        await settled()
    await entering
    assert pick.endpoint == room.endpoint


@pytest.mark.parametrize("gone", [False, True])
async def test_one_that_waits_when_the_picker_closes_is_refused(gone):
    twin, _running, _, entering = await one_waits(ENDPOINTS[1:])
    for each in ENDPOINTS[1:] if gone else ():
        twin.core.fleet.apply(EndpointRemoved(each.id), twin.clock())
    await twin.core.director.stop()
    for each in list(twin.context.picks):
        each.shut()
    with pytest.raises(ShuttingDown):
        await entering
    assert served(twin)


async def test_where_the_others_are_full_it_is_refused():
    twin = await made(Moments(), config=ONE_EACH)
    avoid(twin, ENDPOINTS[1:])
    full = [await twin.begin(Request.of(topic, 60))[1] for topic in (1, 2)]
    assert {each.endpoint for each in full} == set(ENDPOINTS[1:])
    with pytest.raises(EndpointsFull):
        await twin.begin(CHAT)[1]
