"""What Envoy took in of where requests go, when its admin interface fails."""

import contextlib

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from epp.up.envoy_admin import EnvoyAdmin
from epp.up.proxy import ADMIN_SOCKET, PICKS


class Envoy:
    """An admin interface; each answer is taken in or not, and known to the asker or not."""

    def __init__(self):
        self.share = "100"
        self.asked = 0
        self.takes_in = self.answers = True

    async def modify(self, request):
        self.asked += 1
        if self.takes_in:
            self.share = request.query[PICKS]
        return web.Response(status=200 if self.takes_in and self.answers else 503)


@contextlib.asynccontextmanager
async def running(folder):
    envoy = Envoy()
    app = web.Application()
    app.router.add_post("/runtime_modify", envoy.modify)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(folder / ADMIN_SOCKET)).start()
    admin = EnvoyAdmin(folder)
    try:
        yield envoy, admin
    finally:
        await admin.close()
        await runner.cleanup()


@pytest.mark.parametrize("picking", [True, False])
@pytest.mark.parametrize("fault", ["takes_in", "answers"])
async def test_a_switch_that_fails_is_tried_until_it_took(tmp_path, picking, fault):
    async with running(tmp_path) as (envoy, admin):
        await admin.set_picking(lambda: not picking)
        assert (admin.picking, envoy.share) == (not picking, str(100 * (not picking)))
        setattr(envoy, fault, False)
        for _ in range(2):
            await admin.set_picking(lambda: picking)
            assert admin.picking is None
        setattr(envoy, fault, True)
        await admin.set_picking(lambda: picking)
        assert (admin.picking, envoy.share) == (picking, str(100 * picking))
        asked = envoy.asked
        await admin.set_picking(lambda: picking)
        assert envoy.asked == asked


async def test_what_nobody_heard_of_is_undone_too(tmp_path):
    async with running(tmp_path) as (envoy, admin):
        await admin.set_picking(lambda: True)
        envoy.answers = False
        await admin.set_picking(lambda: False)
        assert envoy.share == "0"
        envoy.answers = True
        await admin.set_picking(lambda: True)
        assert (admin.picking, envoy.share) == (True, "100")


async def test_an_envoy_that_was_started_again_asks_the_picker(tmp_path):
    async with running(tmp_path) as (envoy, admin):
        await admin.set_picking(lambda: False)
        envoy.share = "100"
        admin.started()
        assert admin.picking
        await admin.set_picking(lambda: False)
        assert (admin.picking, envoy.share) == (False, "0")


async def test_without_envoy_nothing_is_known(tmp_path):
    admin = EnvoyAdmin(tmp_path)
    await admin.set_picking(lambda: True)
    assert admin.picking is None
    await admin.close()


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans())))
async def test_in_the_end_envoy_does_what_is_wanted(tmp_path_factory, turns):
    async with running(tmp_path_factory.mktemp("admin")) as (envoy, admin):
        for wanted, envoy.takes_in, envoy.answers in turns:
            await admin.set_picking(lambda wanted=wanted: wanted)
            assert admin.picking in {None, envoy.share == "100"}
        envoy.takes_in = envoy.answers = True
        last = turns[-1][0] if turns else True
        await admin.set_picking(lambda: last)
        assert (admin.picking, envoy.share) == (last, str(100 * last))
