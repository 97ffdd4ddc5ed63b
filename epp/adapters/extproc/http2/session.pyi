from typing import Any

OPENED: int
MESSAGE: int
ENDED: int
FAULT: int
CLOSED: int
GROWN: int

class ConnectionFailure(Exception): ...

class Stream:
    id: int
    method: bytes
    path: bytes
    content_type: bytes
    queued: int
    closed: bool
    ending: bool
    answered: bool
    owner: Any

    def send(self, message: bytes, rest: bytes | memoryview = b"") -> None: ...
    def end(self, status: int, message: str = "") -> None: ...
    def refuse(self, status: int) -> None: ...
    def reset(self, code: int) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...

class Session:
    streams: dict[int, Stream]
    queued: int
    abuse_score: int
    pongs: int
    full: bool
    has_events: bool
    done: bool
    settings_received: bool
    unread: int

    def __init__(
        self,
        *,
        max_streams: int,
        stream_window: int,
        max_header_bytes: int,
        max_message_bytes: int,
        max_queued: int,
    ) -> None: ...
    def receive(self, data: bytes, start: int = 0) -> list[tuple[Stream, int, Any]]: ...
    def take_events(self) -> list[tuple[Stream, int, Any]]: ...
    def take(self, most: int) -> bytes: ...
    def has_work(self) -> bool: ...
    def ping(self) -> None: ...
    def announce_end(self) -> None: ...
    def go_away(self) -> None: ...
    def terminate(self, code: int) -> None: ...
    def abandon(self) -> list[Stream]: ...
