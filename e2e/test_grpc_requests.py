"""vLLM's engine over gRPC: prompts stay where they are cached, and usage is counted."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import grpc
import pytest_asyncio

from e2e.corridor import WATCHED, Plan, corridor
from epp._pb import engine_api_pb2 as pb

SERVICE = "vllm.grpc.engine.VllmEngine"
CONFIG = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins: [{type: least-ttft-picker}, {type: vllmgrpc-parser}, {type: passthrough-parser}]
requestHandler: {parsers: [{pluginRef: vllmgrpc-parser}, {pluginRef: passthrough-parser}]}
"""
CACHED = "llm_d_epp_request_cached_tokens_sum"


class Engine(grpc.GenericRpcHandler):
    """Answers as vLLM's engine does, and remembers the first token ids that it was given."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def service(
        self, details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Return the handler of a method."""
        if details.method == f"/{SERVICE}/Generate":
            return grpc.unary_stream_rpc_method_handler(self._generate)
        if details.method == f"/{SERVICE}/HealthCheck":
            return grpc.unary_unary_rpc_method_handler(self._check)
        return None

    async def _check(self, asked: bytes, _: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return asked

    async def _generate(
        self, asked: bytes, _: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        request = pb.GenerateRequest.FromString(asked)
        self.asked.append(request.tokenized.input_ids[0])
        count = len(request.tokenized.input_ids)
        for done in range(1, 4):
            part = pb.StreamChunk(prompt_tokens=count, completion_tokens=done)
            yield pb.GenerateResponse(chunk=part).SerializeToString()
        end = pb.Complete(prompt_tokens=count, completion_tokens=3, cached_tokens=64)
        yield pb.GenerateResponse(complete=end).SerializeToString()


@contextlib.asynccontextmanager
async def running(engine: Engine) -> AsyncIterator[str]:
    server = grpc.aio.server(handlers=[engine])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["FULL_DUPLEX_STREAMED", "STREAMED"]
)
async def gateway(request, tmp_path_factory):
    engines = [Engine() for _ in range(3)]
    async with contextlib.AsyncExitStack() as stack:
        targets = [await stack.enter_async_context(running(each)) for each in engines]
        plan = Plan(
            others=tuple(targets),
            h2c=True,
            response_body_mode=request.param,
            picker_flags=(f"--config-text={CONFIG}", *WATCHED),
        )
        made = await stack.enter_async_context(corridor(plan, tmp_path_factory.mktemp("grpc")))
        address = re.sub("^http://", "", made.url)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        yield made, engines, channel


async def generate(channel, first, count=4000):
    ids = pb.Tokenized(input_ids=[first, *range(1, count)])
    request = pb.GenerateRequest(request_id="r", tokenized=ids, stream=True)
    call = channel.unary_stream(f"/{SERVICE}/Generate")(request.SerializeToString())
    return [pb.GenerateResponse.FromString(each) async for each in call]


async def test_prompts_stay_where_they_are_cached(gateway):
    _, engines, channel = gateway
    for _ in range(3):
        answers = await asyncio.gather(*[generate(channel, first) for first in range(1, 7)])
        assert [len(each) for each in answers] == [4] * 6
    homes = [{*each.asked} for each in engines]
    assert sum(map(len, homes)) == 6
    assert sum(len(each.asked) for each in engines) == 18
    assert sum(1 for each in homes if each) > 1


async def test_usage_is_counted(gateway):
    way, _, channel = gateway
    before = await way.metric(CACHED)
    (*_, last) = await generate(channel, 77)
    assert last.complete.cached_tokens == 64
    await way.metric_becomes(before + 64, CACHED)


async def test_other_methods_pass_through(gateway):
    _, _, channel = gateway
    assert await channel.unary_unary(f"/{SERVICE}/HealthCheck")(b"\x0a\x01x") == b"\x0a\x01x"
