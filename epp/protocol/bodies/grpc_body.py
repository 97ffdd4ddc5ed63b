"""Bodies of inference APIs over gRPC: vLLM's engine, and Vertex AI's prediction service.

A message travels in a frame: a byte that says whether it is compressed, its length in four bytes,
and the message (gRPC over HTTP2, "Length-Prefixed-Message"). Compressed messages are not read.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from epp._pb import engine_api_pb2 as pb
from epp.errors import MalformedRequest
from epp.model.request import Api, Prompt
from epp.protocol.bodies.coercion import MAX_TOKENS
from epp.protocol.bodies.model_rewrite import looked_at, replace_first, replace_in_events
from epp.protocol.bodies.parsed import Parsed
from epp.protocol.bodies.request_json import LONGEST_PROMPT
from epp.protocol.bodies.token_prompts import MAX_MEDIA, packed, with_hashes
from epp.protocol.bodies.usage_reader import openai_usage

_HEAD: Final = 5
_LONGEST: Final = 4 << 20
"""Bytes of a message that is read: decoding one takes 40 ms at most, and a few times its memory."""
_LONGEST_ANSWER: Final = 1 << 20
_MAX_IDS: Final = 1 << 19
"""Token ids of a prompt that are read: making numbers of a million takes some 40 ms."""
_LONGEST_MEDIA: Final = 256 << 10
"""The longest description of a prompt's media, in bytes; media in longer ones are ignored."""
VERTEX: Final = (Api.VERTEX_CHAT, Api.VERTEX_RAW)
"""The APIs whose messages contain the JSON of other APIs."""


def message_of(body: bytes) -> bytes | None:
    """Return the message of a request with one frame; None if it is not read.

    Raises `MalformedRequest` if the body is not a frame.
    """
    if len(body) < _HEAD:
        raise MalformedRequest("the body is shorter than the head of a gRPC frame")
    size = int.from_bytes(body[1:_HEAD], "big")
    if len(body) < _HEAD + size:
        raise MalformedRequest(f"the gRPC frame announces {size} bytes, and some are missing")
    return None if body[0] or size > _LONGEST else body[_HEAD : _HEAD + size]


def framed(message: bytes) -> bytes:
    """Return a message in a frame of its own."""
    return bytes(1) + len(message).to_bytes(4, "big") + message


def parse_generate(message: bytes) -> Parsed:
    """Read a message of vLLM's `Generate` or `Embed`. Raises `MalformedRequest`."""
    try:
        read = pb.GenerateRequest.FromString(message)
    except DecodeError:
        raise MalformedRequest("the gRPC message does not fit its method") from None
    kind = read.WhichOneof("input")
    if kind is None:
        raise MalformedRequest("the message has no input", reason="missing-prompt")
    prompt = Prompt(read.text.encode()[:LONGEST_PROMPT])
    if kind == "tokenized":
        prompt = _exact(read)
    limit = read.sampling_params
    return Parsed(
        prompts=(prompt,),
        stream=read.stream,
        max_tokens=min(limit.max_tokens, MAX_TOKENS) or None,
        multimodal=prompt.multimodal,
    )


def _exact(read: pb.GenerateRequest) -> Prompt:
    """Return the token ids; those that stand for media as the media's hashes, if they fit."""
    ids = packed(read.tokenized.input_ids[:_MAX_IDS])
    if 0 < len(read.mm_inputs) <= _LONGEST_MEDIA:
        with suppress(DecodeError, ValueError):
            found = pb.Multimodal.FromString(read.mm_inputs)
            pairs = zip(found.mm_placeholders, found.mm_hashes, strict=True)
            media = [(place.offset, place.length, name) for place, name in pairs]
            if media:
                return Prompt(with_hashes(ids, media, MAX_MEDIA), exact=True, multimodal=True)
    return Prompt(ids, exact=True)


def json_of(message: bytes) -> bytes:
    """Return the JSON in a message to Vertex AI. Raises `MalformedRequest`."""
    try:
        read = pb.Predict.FromString(message)
    except DecodeError:
        raise MalformedRequest("the gRPC message does not fit its method") from None
    return read.http_body.data


def with_json(message: bytes, data: bytes) -> bytes:
    """Return a message to Vertex AI with other JSON; everything else is as it was."""
    read = pb.Predict.FromString(message)
    read.http_body.data = data
    return read.SerializeToString()


def _frames(data: bytes) -> Iterator[tuple[int, int, bool]]:
    """Yield where each frame begins and ends, which may be behind `data`, and if it is not read."""
    start = 0
    while len(data) - start >= _HEAD:
        end = start + _HEAD + int.from_bytes(data[start + 1 : start + _HEAD], "big")
        yield start, end, bool(data[start]) or end - start > _LONGEST_ANSWER
        start = end


class Frames:
    """Fed with bytes in any pieces, it gives the messages of all frames but those not read."""

    __slots__ = ("_held", "_skipping")

    def __init__(self) -> None:
        self._held = b""
        self._skipping = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Take the next bytes; give the messages that end with them."""
        skipped = min(self._skipping, len(chunk))
        self._skipping -= skipped
        data = self._held + chunk[skipped:]
        at = 0
        for start, end, unread in _frames(data):
            if unread:
                self._skipping = max(0, end - len(data))
            elif end <= len(data):
                yield data[start + _HEAD : end]
            else:
                break
            at = end
        self._held = data[at:]


class FrameRestorer:
    """Restores the client's model name in answers of Vertex AI's (`Restorer`).

    A frame that is compressed, or longer than a megabyte, passes on as it is.
    """

    __slots__ = ("_held", "_name", "_passing")

    def __init__(self, name: str) -> None:
        self._name = name
        self._held = b""
        self._passing = 0

    def feed(self, chunk: bytes, *, last: bool) -> bytes:
        """Return the frames that are complete with `chunk`; with `last` the rest too."""
        passed = chunk[: self._passing]
        self._passing -= len(passed)
        data, done, at = self._held + chunk[len(passed) :], [passed], 0
        left = looked_at()
        for start, end, unread in _frames(data):
            if not unread and end > len(data):
                break
            frame = data[start:end]
            done.append(frame if unread else self._restored(frame, left))
            self._passing = max(0, end - len(data))
            at = end
        self._held = b"" if last else data[at:]
        return b"".join([*done, data[at:]] if last else done)

    def _restored(self, frame: bytes, left: Iterator[int]) -> bytes:
        data = answer_of(frame[_HEAD:])
        if b'"model"' not in data:
            return frame
        if data.lstrip()[:1] == b"{":
            data = replace_first(data, self._name, left)
        else:
            data = replace_in_events(data, self._name, left)
        read = pb.HttpBody.FromString(frame[_HEAD:])
        read.data = data
        return framed(read.SerializeToString())


def usage_of(api: Api, message: bytes) -> bytes | None:
    """Return the usage in a message of vLLM's engine as JSON; None without one."""
    try:
        return _USAGE[api](message)
    except DecodeError:
        return None


def is_last(api: Api, message: bytes) -> bool:
    """Whether a message of vLLM's engine ends its answer."""
    try:
        return api is Api.GRPC_EMBED or pb.GenerateResponse.FromString(message).HasField("complete")
    except DecodeError:
        return False


def _generated(message: bytes) -> bytes | None:
    read = pb.GenerateResponse.FromString(message)
    kind = read.WhichOneof("response")
    if kind is None:
        return None
    part = read.chunk if kind == "chunk" else read.complete
    if not (part.prompt_tokens or part.completion_tokens):
        return None
    return openai_usage(part)


def _embedded(message: bytes) -> bytes | None:
    tokens = pb.EmbedResponse.FromString(message).prompt_tokens
    return msgspec.json.encode({"prompt_tokens": tokens}) if tokens else None


def answer_of(message: bytes) -> bytes:
    """Return the data in a message of Vertex AI's answer; empty if it cannot be decoded."""
    try:
        return pb.HttpBody.FromString(message).data
    except DecodeError:
        return b""


_USAGE: Final[dict[Api, Callable[[bytes], bytes | None]]] = {
    Api.GRPC_GENERATE: _generated,
    Api.GRPC_EMBED: _embedded,
}
