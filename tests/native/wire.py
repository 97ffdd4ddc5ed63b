"""HTTP/2 frames and gRPC messages as bytes, well-formed or not: what a peer may send.

Headers are literals without indexing or Huffman coding, so that a test says every byte. Before all
of it a client may say hello to TLS.
"""

import ssl
import struct
from contextlib import suppress
from enum import IntEnum, IntFlag

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PATH = b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"
MAX_FRAME = 1 << 14


class Kind(IntEnum):
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag(IntFlag):
    NONE = 0
    END_STREAM = 1
    ACK = 1
    END_HEADERS = 4
    PADDED = 8
    PRIORITY = 0x20


class Code(IntEnum):
    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


def frame(kind, stream=0, payload=b"", flags=0):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def settings(**values):
    numbers = {"header_table": 1, "push": 2, "streams": 3, "window": 4, "frame": 5, "headers": 6}
    payload = b"".join(struct.pack(">HI", numbers[key], value) for key, value in values.items())
    return frame(Kind.SETTINGS, payload=payload)


def acknowledged():
    return frame(Kind.SETTINGS, flags=Flag.ACK)


def greeting(**values):
    return PREFACE + settings(**values)


def header(name, value):
    return b"\x00" + _text(name) + _text(value)


def _text(data):
    """A string literal: its length in seven bits, more bytes where that is not enough."""
    length = len(data)
    if length < 127:
        return bytes([length]) + data
    head, rest = b"\x7f", length - 127
    while rest >= 128:
        head, rest = head + bytes([rest % 128 + 128]), rest // 128
    return head + bytes([rest]) + data


def request(method=b"POST", path=PATH, content_type=b"application/grpc", more=()):
    pairs = [
        *((b":method", method), (b":scheme", b"http"), (b":path", path), (b":authority", b"epp")),
        *((b"content-type", content_type), (b"te", b"trailers")),
        *more,
    ]
    return b"".join(header(name, value) for name, value in pairs if value is not None)


def remembered():
    """A request's headers for the peer's table, and the same ones from it: a byte each."""
    pairs = [(b":path", PATH), (b":authority", b"epp"), (b"content-type", b"application/grpc")]
    kept = b"".join(b"\x40" + _text(name) + _text(value) for name, value in pairs)
    # RFC 7541, appendix A: POST and http are 3 and 6; the last that was kept is 62.
    return b"\x83\x86" + kept, b"\x83\x86\xc0\xbf\xbe"


def headers(stream, block=None, *, end=False):
    flags = Flag.END_HEADERS | (Flag.END_STREAM if end else 0)
    return frame(Kind.HEADERS, stream, request() if block is None else block, flags)


def data(stream, payload, *, end=False):
    """DATA frames of at most 16 KiB."""
    pieces = [payload[at : at + MAX_FRAME] for at in range(0, len(payload), MAX_FRAME)] or [b""]
    return b"".join(
        frame(Kind.DATA, stream, piece, Flag.END_STREAM if end and number == len(pieces) else 0)
        for number, piece in enumerate(pieces, 1)
    )


def message(payload, flag=0):
    return struct.pack(">BI", flag, len(payload)) + payload


def reset(stream, code=Code.CANCEL):
    return frame(Kind.RST_STREAM, stream, struct.pack(">I", code))


def ping(payload=b"12345678"):
    return frame(Kind.PING, payload=payload)


def window_update(stream, increment):
    return frame(Kind.WINDOW_UPDATE, stream, struct.pack(">I", increment))


def goaway(last=0, code=Code.NO_ERROR):
    return frame(Kind.GOAWAY, payload=struct.pack(">II", last, code))


def parse(stream):
    """Cut bytes into (kind, flags, stream, payload); what is left over comes second."""
    frames = []
    while len(stream) >= 9:
        length = int.from_bytes(stream[:3], "big")
        if len(stream) < 9 + length:
            break
        kind, flags, number = struct.unpack(">BBI", stream[3:9])
        frames.append((Kind(kind), flags, number, stream[9 : 9 + length]))
        stream = stream[9 + length :]
    return frames, stream


def client_hello():
    """What a client of TLS says first."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    unread, said = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(unread, said).do_handshake()
    return said.read()
