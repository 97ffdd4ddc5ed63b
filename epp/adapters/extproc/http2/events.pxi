"""The events of a session, and how it fails; a part of `session.pyx`."""

OPENED = 0
"""A request's headers are complete."""
MESSAGE = 1
"""A message has arrived: `value` is its bytes."""
ENDED = 2
"""The peer has ended its side of the stream."""
FAULT = 3
"""What arrived is not a message: `value` is the gRPC status to answer with."""
CLOSED = 4
"""The stream was closed before it ended on this side: `value` is HTTP/2's error code."""
GROWN = 5
"""An incomplete message takes more memory than before: `value` is its size in bytes."""

cdef object _OPENED = OPENED, _MESSAGE = MESSAGE, _ENDED = ENDED, _FAULT = FAULT, _CLOSED = CLOSED
cdef object _GROWN = GROWN
cdef object _MID_MESSAGE = 13  # gRPC's INTERNAL

# The work of a turn, in units of about 0.25 µs; then what a stream and an event cost the user.
cdef size_t _TURN = 1024
cdef size_t _PER_STREAM = 8
cdef size_t _PER_EVENT = 16
cdef size_t _SETTINGS_AT_ONCE = 32
cdef Py_ssize_t _MIN_PIECE = 1 << 12
cdef Py_ssize_t _MAX_PIECE = 1 << 14
cdef size_t _PER_ERROR = 10  # of `abuse_score`; a peer that keeps to the protocol causes none

cdef size_t _ENTRY_OVERHEAD = 32  # of a header, RFC 9113 section 6.5.2
cdef size_t _SHORT = 1024  # fewer bytes cost less to copy than to keep apart
cdef uint8_t[1 << 12] _scratch  # short output is gathered here: nothing else runs meanwhile
cdef size_t _SPARE = 512  # for frames that are not data, and the heads of those that are
cdef int32_t _CONNECTION_WINDOW = 0x7fffffff


class ConnectionFailure(Exception):
    """The peer broke the protocol in a way that no GOAWAY describes, or flooded the connection."""
