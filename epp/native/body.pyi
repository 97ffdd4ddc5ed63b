from typing import TypeAlias

Found: TypeAlias = tuple[
    bytes, bytes, bytes, bytes, bytes, bytes, bytes, list[tuple[bytes, bool, list[int]]]
]

class BodyReader:
    pieces: list[bytes]
    model: tuple[int, int] | None

    def __init__(self, api: str, longest: int) -> None: ...
    def feed(self, piece: bytes) -> None: ...
    def finish(self) -> Found | None: ...
