"""Reads a request's body as it arrives, as far as that can be done.

This source keeps the bytes and reads nothing; its extension, `body_reader.pyx`, reads every piece
as it comes. What `finish` declines is read in one piece at the end (`request_json.py`).
"""

Prompts = list[tuple[bytes, bool, list[int]]]
"""Of each prompt: its bytes, whether they are exact, and where its messages end (in bytes)."""

Found = tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes, Prompts]
"""The JSON of `model`, `stream`, `cache_salt`, `user`, `max_tokens`, `max_completion_tokens` and
`max_output_tokens`, each empty where the body lacks it; and the prompts."""


class BodyReader:
    """One body of an API, given by the value of its `Api`; that of no known API is only kept.

    Prompts end after `longest` bytes. Nothing that is fed raises. `pieces` is what was fed, in
    order. `model` is where the model's name lies in it once all is fed, quotes included: start
    and end in bytes, None where that is not known.
    """

    def __init__(self, api: str, longest: int) -> None:
        self.pieces: list[bytes] = []
        self.model: tuple[int, int] | None = None

    def feed(self, piece: bytes) -> None:
        """Take the next bytes."""
        self.pieces.append(piece)

    def finish(self) -> Found | None:
        """Return what was found once all is fed; None leaves the body to be read at the end."""
        return None
