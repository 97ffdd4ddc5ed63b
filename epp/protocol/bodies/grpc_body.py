"""Bodies of inference APIs over gRPC: vLLM's engine, and Vertex AI's prediction service.

A message travels in a frame: a byte that says whether it is compressed, its length in four bytes,
and the message (gRPC over HTTP2, "Length-Prefixed-Message"). Compressed messages are not read.
"""

from collections.abc import Iterator
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


class Frames:
    """Takes the messages out of a body, which comes in any pieces."""

    __slots__ = ("_held", "_skipping")

    def __init__(self) -> None:
        self._held = b""
        self._skipping = 0

    def feed(self, chunk: bytes) -> Iterator[tuple[bytes, bool]]:
        """Take the next bytes; yield the messages whose frames end with them, each with True.

        What comes of a frame that is not read is yielded as it is, with False.
        """
        skipped = chunk[: self._skipping]
        if skipped:
            self._skipping -= len(skipped)
            yield skipped, False
        data, at = self._held + chunk[len(skipped) :], 0
        while len(data) - at >= _HEAD:
            end = at + _HEAD + int.from_bytes(data[at + 1 : at + _HEAD], "big")
            unread = data[at] or end - at > _LONGEST_ANSWER
            if not unread and end > len(data):
                break
            yield data[at if unread else at + _HEAD : end], not unread
            self._skipping = max(0, end - len(data))
            at = end
        self._held = data[at:]

    def rest(self) -> bytes:
        """Return, once, the beginning of a frame whose end did not come."""
        rest, self._held = self._held, b""
        return rest


class FrameRestorer:
    """Restores the client's model name in answers of Vertex AI's (`Restorer`).

    A frame that is compressed, or longer than a megabyte, passes on as it is.
    """

    __slots__ = ("_frames", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._frames = Frames()

    def feed(self, chunk: bytes, *, last: bool) -> bytes:
        """Return the frames that are complete with `chunk`; with `last` the rest too."""
        left = looked_at()
        done = [
            framed(self._restored(part, left)) if is_message else part
            for part, is_message in self._frames.feed(chunk)
        ]
        return b"".join(done) + (self._frames.rest() if last else b"")

    def _restored(self, message: bytes, left: Iterator[int]) -> bytes:
        data = answer_of(message)
        if b'"model"' not in data:
            return message
        if data.lstrip()[:1] == b"{":
            data = replace_first(data, self._name, left)
        else:
            data = replace_in_events(data, self._name, left)
        read = pb.HttpBody.FromString(message)
        read.data = data
        return read.SerializeToString()


def usage_of(api: Api, message: bytes) -> bytes | None:
    """Return the usage in a message of vLLM's engine as JSON; None without one."""
    try:
        return _embedded(message) if api is Api.GRPC_EMBED else _generated(message)
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
