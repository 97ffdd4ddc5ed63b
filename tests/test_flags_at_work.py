"""What flags of llm-d-router's do, in a process that is started with them."""

import contextlib
import ssl

import aiohttp
import grpc
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from epp.adapters.tls import certificate
from tests.adapters.ext_proc_peer import Peer, body, destination, head
from tests.adapters.vllm_page import vllm_page
from tests.processes import forked_picker, said

QUEUE = "plugins: [{type: queue-scorer}, {type: max-score-picker}]"
PAGES = {"a": vllm_page(waiting=3), "b": vllm_page(waiting=0)}
SUBSET = "x-gateway-destination-endpoint-subset"


@contextlib.asynccontextmanager
async def two_pods(folder):
    """Two pods with three and no requests in their queues; give their targets."""
    async with contextlib.AsyncExitStack() as stack:
        targets = {}
        for name, page in PAGES.items():

            async def answer(_, page=page):
                return web.Response(body=page, content_type="text/plain")

            app = web.Application()
            app.router.add_get("/metrics", answer)
            server = await stack.enter_async_context(TestServer(app))
            targets[name] = f"127.0.0.1:{server.port}"
        lines = [
            f"- {{name: {name}, address: 127.0.0.1, port: {target[10:]}}}\n"
            for name, target in targets.items()
        ]
        (folder / "endpoints.yaml").write_text("endpoints:\n" + "".join(lines))
        yield targets


@contextlib.asynccontextmanager
async def started(folder, *flags):
    """A picker for the two pods; give the peer of a stream, and their targets."""
    async with two_pods(folder) as targets:
        words = ("--endpoints-file", "endpoints.yaml", "--config-text", QUEUE, "--zap-encoder=json")
        async with forked_picker((*words, "--secure-serving=false", *flags), folder) as lines:
            port = (await said(lines, "serving"))["grpc_port"]
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield Peer(channel), targets


def named(*targets):
    """A head that names the endpoints that the gateway would take."""
    message = head()
    wanted = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    wanted[SUBSET] = list(targets)
    return message


@pytest.mark.parametrize("flags", [(), ("--emit-endpoint-scores=true",)])
async def test_scores_are_told_where_they_are_wanted(flags, tmp_path):
    async with started(tmp_path, *flags) as (peer, targets):
        reply = await peer.ask(head(), body())
        assert destination(reply, "request_headers") == targets["b"].encode()
        told = dict(reply.dynamic_metadata["envoy.lb"].items())
        scores = told.get("x-gateway-destination-endpoint-scores", {})
        # queue-scorer: (max - queue) / (max - min), of queues of 3 and 0.
        wanted = {targets["a"]: 0.0, targets["b"]: 1.0} if flags else {}
        assert dict(scores) == wanted


@pytest.mark.parametrize(
    ("flags", "name"), [((), "a"), (("-disable-endpoint-subset-filter",), "b")]
)
async def test_a_subset_binds_unless_the_filter_is_off(flags, name, tmp_path):
    async with started(tmp_path, *flags) as (peer, targets):
        reply = await peer.ask(named(targets["a"]), body())
        assert destination(reply, "request_headers") == targets[name].encode()


async def test_a_message_above_the_limit_ends_its_stream(tmp_path):
    async with started(tmp_path, "--grpc-max-recv-msg-size=16Ki") as (peer, _):
        await peer.send(head(), body(b"x" * 17_000))
        assert await peer.call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_the_metrics_port_has_tls_and_profiles_where_they_are_wanted(tmp_path):
    key, chain = certificate(None)
    (tmp_path / "tls.key").write_bytes(key)
    (tmp_path / "tls.crt").write_bytes(chain)
    flags = ("--metrics-cert-dir", str(tmp_path), "--tls-min-version", "VersionTLS12")
    words = ("--endpoints-file", "endpoints.yaml", "--zap-encoder=json", *flags)
    async with (
        two_pods(tmp_path),
        forked_picker((*words, "--enable-pprof=false"), tmp_path) as lines,
    ):
        port = (await said(lines, "serving"))["metrics_port"]
        trusting = ssl.create_default_context(cafile=tmp_path / "tls.crt")
        async with aiohttp.ClientSession(f"https://127.0.0.1:{port}") as session:
            async with session.get("/metrics", ssl=trusting) as response:
                assert response.status == 200
            async with session.get("/debug/pprof/", ssl=trusting) as response:
                assert response.status == 404
