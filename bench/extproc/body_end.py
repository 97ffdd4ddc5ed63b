"""Where the body of an HTTP/1.1 message ends, found with next to no work."""

END_OF_HEAD = b"\r\n\r\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_LENGTH = b"content-length:"


class BodyEnd:
    """The end of one body, by its message's head in lower case: its length, or its last chunk."""

    __slots__ = ("_missing", "_tail")

    def __init__(self, head: bytes) -> None:
        _, named, after = head.partition(_LENGTH)
        self._missing = int(after.split(b"\r\n", 1)[0]) if named else None
        self._tail = b"\r\n"

    def reached(self, data: bytes) -> bool:
        """Take the next bytes of the body; return whether they are its last."""
        if self._missing is not None:
            self._missing -= len(data)
            return self._missing <= 0
        self._tail = (self._tail + data[-len(_LAST_CHUNK) :])[-len(_LAST_CHUNK) :]
        return self._tail == _LAST_CHUNK
