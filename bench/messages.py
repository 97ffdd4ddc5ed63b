"""What Envoy tells of a request and its response in full duplex, as encoded ext_proc messages."""

from collections.abc import Iterator, Mapping, Sequence

from bench.extproc.workload import Shape, requests
from epp._pb import ext_proc_pb2 as pb

_PIECE = 65_536
"""As much of a body as Envoy sends at once."""
_HEADERS = {
    ":method": "POST",
    ":path": "/v1/chat/completions",
    ":authority": "bench",
    ":scheme": "http",
    "user-agent": "warmpick-bench",
    "accept": "*/*",
    "content-type": "application/json",
    "x-forwarded-proto": "http",
    "x-request-id": "0f0e0d0c-0b0a-4908-8706-050403020100",
}


def bodies(shape: Shape, salt: str) -> Iterator[bytes]:
    """Chat completions of a shape without end, as the benchmark `extproc` sends them."""
    for buffers in requests(shape, host="bench", salt=salt):
        yield b"".join(buffers).partition(b"\r\n\r\n")[2]


def request_messages(body: bytes) -> list[bytes]:
    """What is told of a request with this body."""
    modes = pb.ProtocolConfiguration(
        request_body_mode="FULL_DUPLEX_STREAMED", response_body_mode="FULL_DUPLEX_STREAMED"
    )
    head = _encoded(request_headers=_headers(_HEADERS), protocol_config=modes)
    pieces = [body[start : start + _PIECE] for start in range(0, len(body), _PIECE)]
    return [head, *_bodies("request_body", pieces)]


def response_messages(kind: str, pieces: Sequence[bytes]) -> list[bytes]:
    """What is told of a response of this content type, whose body comes in pieces."""
    head = _encoded(response_headers=_headers({":status": "200", "content-type": kind}))
    return [head, *_bodies("response_body", pieces)]


def _bodies(part: str, pieces: Sequence[bytes]) -> Iterator[bytes]:
    for number, piece in enumerate(pieces, 1):
        yield _encoded(**{part: pb.HttpBody(body=piece, end_of_stream=number == len(pieces))})


def _headers(values: Mapping[str, str]) -> pb.HttpHeaders:
    listed = [pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in values.items()]
    return pb.HttpHeaders(headers=pb.HeaderMap(headers=listed))


def _encoded(**parts: object) -> bytes:
    return pb.ProcessingRequest(**parts).SerializeToString()  # type: ignore[arg-type]  # one part of the oneof
