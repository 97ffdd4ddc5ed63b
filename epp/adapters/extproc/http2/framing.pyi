RESOURCE_EXHAUSTED: int
UNIMPLEMENTED: int

class Deframer:
    fault: int
    limit: int
    within: bool

    def __init__(self, limit: int) -> None: ...
    def feed(self, data: bytes) -> list[bytes]: ...
