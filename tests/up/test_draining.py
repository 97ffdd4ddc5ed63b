"""When a drain ends: Envoy says what is under way, as far as it answers."""

import io

import pytest
from aiohttp import web

from epp.up.gateway import Gateway
from epp.up.options import UpOptions
from epp.up.proxy import ADMIN_SOCKET
from epp.up.servers import model_servers
from epp.up.terminal import Terminal

BUSY, IDLE, LATE = (
    "http.gateway.downstream_rq_active: 3",
    "http.gateway.downstream_rq_active: 0",
    "",
)


class Envoy:
    """An admin interface that gives each answer once, the last one for good; empty is an error."""

    def __init__(self, taken_in, pages):
        self.taken_in, self.pages = list(taken_in), list(pages)

    async def answer(self, request):
        answers = self.pages if request.path == "/stats" else self.taken_in
        text = answers.pop(0) if len(answers) > 1 else answers[0]
        return web.Response(status=200 if text else 503, text=text)


@pytest.mark.parametrize(
    "pages", [[LATE, BUSY, IDLE], [BUSY, LATE, BUSY, LATE, LATE, IDLE], [IDLE, LATE, BUSY, IDLE]]
)
@pytest.mark.parametrize("taken_in", [["OK"], ["OK", LATE, LATE, LATE, "OK"]])
async def test_what_is_under_way_ends_though_the_proxy_answers_late(tmp_path, taken_in, pages):
    envoy = Envoy(taken_in, pages)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", envoy.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / ADMIN_SOCKET)).start()
    options = UpOptions(servers=model_servers(["http://127.0.0.1:9"]), port=0, drain_timeout=60)
    gateway = Gateway(options, tmp_path, Terminal(io.StringIO()))
    try:
        await gateway.drain()
    finally:
        await gateway.stop(at_once=True)
        await runner.cleanup()
    assert (envoy.taken_in, envoy.pages) == (["OK"], [IDLE])
