"""Reads a request's body as it arrives, as far as that can be done.

This source keeps the bytes and reads nothing; its extension, `body_reader.pyx`, reads every piece
as it comes. What `finish` declines is read in one piece at the end (`request_json.py`).
"""

Prompts = list[tuple[bytes, bool, list[int]]]
"""For each prompt: its bytes, whether they are exact, and where its messages end (in bytes)."""

_Values = tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes]
Found = tuple[*_Values, bytes, bytes, bytes, bytes, bytes, tuple[bytes, ...], Prompts]
"""The JSON of `model`, `stream`, `cache_salt` (SGLang: `extra_key`), `user`, `max_tokens`,
`max_completion_tokens`, `max_output_tokens`, `n`, of `max_tokens`, `max_new_tokens` and `n` in
`sampling_params`, and of `mm_hashes` and `mm_placeholders` in `features`, each empty if the body
lacks it or its API has none; what `skips_reading` takes but the API, nothing if the body lacks all
that alone may make it true; and the prompts. Of a value that is longer than is read, it is as much
as is read and a byte."""

BodyData = bytes | memoryview
"""Bytes of a body; of a long message a view, so that they are not copied out of it."""

_SMALL_PIECE = 1 << 10
_JOINED_PIECES = 64
_JOINED_BYTES = 1 << 16


def add_piece(pieces: list[BodyData], piece: BodyData) -> None:
    """Add a piece to a body; many small ones are joined, as each takes 40 bytes besides its own."""
    pieces.append(piece)
    if len(piece) < _SMALL_PIECE and not len(pieces) % _JOINED_PIECES:
        last = pieces[-_JOINED_PIECES:]
        if sum(map(len, last)) <= _JOINED_BYTES:
            pieces[-_JOINED_PIECES:] = [b"".join(last)]


class BodyReader:
    """One body of an API, given by the value of its `Api`; that of no known API is only kept.

    Prompts end after `longest` bytes, over all of them. `nameless`: the body may leave the model
    out. Nothing that is fed raises. `pieces` is what was fed, in order. `model` and `priority` are
    where the last values of these keys lie in all of the body: start and end in bytes, quotes
    included; (-1, -1) in a body without the key, None if that is not known. `unread` is how many
    bytes `read_on` has left to read. `multimodal`: a message that was read has an image, a video or
    a sound. `broken_at` is the offset in bytes of the first byte that
    makes no JSON, or of an end that comes too early, -1 if that is not known. `enough`: more of
    the body changes nothing in the prompts, and the model is known if there must be one.
    """

    def __init__(self, api: str, longest: int, nameless: bool = False) -> None:  # noqa: FBT001, FBT002 (as compiled)
        self.pieces: list[BodyData] = []
        self.model: tuple[int, int] | None = None
        self.priority: tuple[int, int] | None = None
        self.unread = 0
        self.multimodal = False
        self.broken_at = -1
        self.enough = False

    def feed(self, piece: BodyData) -> None:
        """Take the next bytes, and read them; `read_on` reads what is long."""
        add_piece(self.pieces, piece)

    def read_on(self) -> None:
        """Read about a megabyte of what is `unread`: some 10 ms of work at most."""

    def finish(self, whole: bool = True) -> Found | None:  # noqa: FBT001, FBT002 (as compiled)
        """Return what was found; None leaves the body to be read at the end.

        Of a body that is not `whole`, the prompts are what has come of them.
        """
        return None

    def outline(self) -> Found | None:
        """Return what was found but the prompts; None if that is not known."""
        return None
