"""Usage in the answers of APIs that do not say it in OpenAI's way."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp._pb import engine_api_pb2 as pb
from epp.model.request import Api, Usage
from epp.protocol.bodies.grpc_body import framed
from epp.protocol.bodies.usage import merge_usage
from epp.protocol.bodies.usage_reader import usage_reader

EVENTS, JSON, GRPC = (
    "text/event-stream",
    "application/json; charset=utf-8",
    "application/grpc+proto",
)


def sglang(prompt, completion, cached, **more):
    meta = {"id": "a", "finish_reason": {"type": "stop", "matched": "}"}, "prompt_tokens": prompt}
    meta |= {"completion_tokens": completion, "cached_tokens": cached, **more}
    return {"text": 'says "meta_info": {"prompt_tokens": 1} {', "meta_info": meta}


def sse(*events):
    return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in events)


CHUNK = pb.GenerateResponse(chunk=pb.StreamChunk(prompt_tokens=9, completion_tokens=1))
COMPLETE = pb.GenerateResponse(
    complete=pb.Complete(prompt_tokens=9, completion_tokens=4, cached_tokens=8)
)
COMPRESSED = b"\1\0\0\0\2ab"
CASES = {
    "stream of Anthropic's": (
        *(Api.MESSAGES, EVENTS),
        b"event: message_start\n"
        + sse(
            {
                "message": {
                    "usage": {
                        "input_tokens": 25,
                        "cache_read_input_tokens": 16,
                        "output_tokens": 1,
                        "service_tier": "standard",
                    }
                }
            },
            {"type": "content_block_delta", "delta": {"text": '{"usage":{"input_tokens":1}}'}},
            {"type": "message_delta", "usage": {"output_tokens": 15}},
        ),
        Usage(41, 15, 16),  # 25 + 16: cached tokens are counted apart
    ),
    "stream of vLLM's in Anthropic's form": (  # anthropic/serving.py: cached ones only at the end
        *(Api.MESSAGES, EVENTS),
        sse(
            {"message": {"usage": {"input_tokens": 1000, "output_tokens": 0}}},
            {
                "usage": {
                    "input_tokens": 616,
                    "output_tokens": 9,
                    "cache_read_input_tokens": 384,
                    "cache_creation_input_tokens": 0,
                }
            },
        ),
        Usage(1000, 9, 384),
    ),
    "cached tokens, repeated without them": (  # 4 + 100 + 20
        *(Api.MESSAGES, EVENTS),
        sse(
            {
                "message": {
                    "usage": {
                        "input_tokens": 4,
                        "cache_creation_input_tokens": 20,
                        "cache_read_input_tokens": 100,
                    }
                }
            },
            {"usage": {"input_tokens": 4, "output_tokens": 9}},
        ),
        Usage(124, 9, 100),
    ),
    "nothing cached yet": (  # 4 + 20
        *(Api.MESSAGES, JSON),
        b'{"usage":{"input_tokens":4,"cache_creation_input_tokens":20,"cache_read_input_tokens":0}}',
        Usage(24, 0, 0),
    ),
    "answer of Anthropic's": (
        *(Api.MESSAGES, JSON),
        b'{"type":"message","usage":{"input_tokens":9,"output_tokens":2}}',
        Usage(9, 2),
    ),
    "stream of SGLang's": (
        *(Api.SGLANG_GENERATE, EVENTS),
        sse(sglang(9, 1, 8), sglang(9, 2, 8)) + b"data: [DONE]\n\n",
        Usage(9, 2, 8),
    ),
    "answer of SGLang's": (
        *(Api.SGLANG_GENERATE, JSON),
        json.dumps(sglang(9, 2, 0)).encode(),
        Usage(9, 2, 0),
    ),
    "several answers of SGLang's": (
        *(Api.SGLANG_GENERATE, JSON),
        json.dumps([sglang(9, 2, 0), sglang(7, 2, 0)]).encode(),
        None,
    ),
    "several answers in a stream of SGLang's": (
        *(Api.SGLANG_GENERATE, EVENTS),
        sse(sglang(9, 1, 8) | {"index": 0}, sglang(7, 2, 0) | {"index": 1}) + b"data: [DONE]\n\n",
        None,
    ),
    "meta info without an end": (Api.SGLANG_GENERATE, JSON, b'{"meta_info": {"prompt', None),
    "stream of vLLM's": (
        *(Api.GRPC_GENERATE, GRPC),
        COMPRESSED + framed(CHUNK.SerializeToString()) + framed(COMPLETE.SerializeToString()),
        Usage(9, 4, 8),
    ),
    "a stream broken off": (
        *(Api.GRPC_GENERATE, GRPC),
        framed(CHUNK.SerializeToString()) + framed(COMPLETE.SerializeToString())[:-1],
        Usage(9, 1, 0),
    ),
    "embedding of vLLM's": (
        *(Api.GRPC_EMBED, GRPC),
        framed(pb.EmbedResponse(prompt_tokens=5).SerializeToString()),
        Usage(5),
    ),
    "no protobuf": (Api.GRPC_GENERATE, GRPC, framed(b"\xff\xff"), None),
    "Vertex AI's answer": (
        *(Api.VERTEX_CHAT, GRPC),
        framed(pb.HttpBody(data=b'{"usage":{"prompt_tokens":3}}').SerializeToString()),
        Usage(3),
    ),
    "Vertex AI's stream": (
        *(Api.VERTEX_RAW, GRPC),
        b"".join(
            framed(pb.HttpBody(data=part).SerializeToString())
            for part in (b'data: {"response":{"us', b'age":{"input_tokens":3}}}\n\n', b"\n")
        ),
        Usage(3),
    ),
    "of a passed request": (Api.OTHER, GRPC, framed(COMPLETE.SerializeToString()), None),
}


@pytest.mark.parametrize("case", CASES)
@given(size=st.integers(1, 400))
def test_usage_is_found_however_the_answer_is_cut(case, size):
    api, kind, data, usage = CASES[case]
    reader = usage_reader(api, kind, streaming=kind == EVENTS)
    if reader is None:
        assert usage is None
        return
    found = None
    for at in range(0, len(data), size):
        found = merge_usage(found, reader.feed(data[at : at + size]))
    assert merge_usage(found, reader.end()) == usage


def test_a_long_frame_is_passed_over():
    reader = usage_reader(Api.GRPC_GENERATE, GRPC, streaming=True)
    assert reader is not None
    for _ in range(80):
        reader.feed((b"" if _ else b"\0\0\x50\0\0") + b"x" * (1 << 16))
    reader.feed(framed(COMPLETE.SerializeToString()))
    assert merge_usage(None, reader.end()) == Usage(9, 4, 8)
    for _ in range(40):
        reader.feed(b"\0\0\x0f\xff\xff" + b"x" * ((1 << 16) - 5))
