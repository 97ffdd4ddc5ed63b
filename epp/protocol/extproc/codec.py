"""The codec of ext_proc: Envoy's messages from and to bytes.

This source uses protobuf's generated code; its extension, `codec.pyx`, reads and writes the bytes
itself, and calls generated code for rare or malformed messages.
"""

from epp.protocol.bodies.body_reader import BodyData
from epp.protocol.extproc import protobuf
from epp.protocol.extproc.messages import Chunk, Message, Reply


def decode(data: bytes) -> Message:
    """Return the `ProcessingRequest` that `data` holds. Raises `ProtocolError`."""
    return protobuf.decode(data)


def encode(reply: Reply) -> bytes:
    """Return the bytes of one `ProcessingResponse`."""
    return protobuf.encode(reply)


def encode_chunk(
    response: bool,  # noqa: FBT001
    body: BodyData,
    end_of_stream: bool,  # noqa: FBT001
) -> bytes | tuple[bytes, BodyData]:
    """Return the bytes of a `Chunk` with these fields; for a long body, what precedes it and it.

    The body is then the last part of the message, and need not be copied.
    """
    return encode(Chunk(response, body, end_of_stream))
