"""Reads a request's body as it arrives, as far as possible.

This source only keeps the bytes; its extension, `body_reader.pyx`, reads every piece as it comes. A
body that `finish` declines is read as a whole at the end (`request_json.py`).
"""

Prompts = list[tuple[bytes, bool, list[int]]]
"""For each prompt: its bytes, whether they are exact, and where its messages end (in bytes)."""

_Values = tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes]
Found = tuple[*_Values, bytes, bytes, bytes, bytes, bytes, tuple[bytes, ...], Prompts]
"""The JSON of `model`, `stream`, `cache_salt` (SGLang: `extra_key`), `max_tokens`,
`max_completion_tokens`, `max_output_tokens`, `n`, of `max_tokens`, `max_new_tokens` and `n` in
`sampling_params`, and of `mm_hashes` and `mm_placeholders` in `features`, each empty if the body or
the API does not have it; the arguments of `skips_reading` except the API, or nothing if the body
has none that could make it true; and the prompts. Values that are too long are cut one byte after
the longest that is used."""

BodyData = bytes | memoryview
"""Bytes of a body; of a long message a view, so that they are not copied out of it."""

_SMALL_PIECE = 1 << 10
_JOINED_PIECES = 64
_JOINED_BYTES = 1 << 16


def add_piece(pieces: list[BodyData], piece: BodyData) -> None:
    """Add a piece to a body; join many small ones, as each takes 40 bytes more than its own."""
    pieces.append(piece)
    if len(piece) < _SMALL_PIECE and not len(pieces) % _JOINED_PIECES:
        last = pieces[-_JOINED_PIECES:]
        if sum(map(len, last)) <= _JOINED_BYTES:
            pieces[-_JOINED_PIECES:] = [b"".join(last)]


class BodyReader:
    """One body of an API, which is the value of its `Api`; a body of an unknown API is only kept.

    Prompts together are cut after `longest` bytes. `nameless`: the body may omit the model. No
    input raises. `pieces` are those that were fed, in order. `places` are the positions of the last
    values of `model` and `priority` in the body: start and end in bytes, with quotes; (-1, -1) if
    the body does not have the key. They are None if that is not known. `unread` is the number of
    bytes that `read_on` must still read. `multimodal`: a message has an image, a video or a sound.
    `broken_at` is the offset in bytes of the first byte that is not valid JSON, or of an early end,
    -1 if that is not known. `enough`: the rest of the body cannot change the prompts, and the model
    is known if there must be one.
    """

    def __init__(self, api: str, longest: int, nameless: bool = False) -> None:  # noqa: FBT001, FBT002 (as compiled)
        self.pieces: list[BodyData] = []
        self.places: tuple[tuple[int, int], tuple[int, int]] | None = None
        self.unread = 0
        self.multimodal = False
        self.broken_at = -1
        self.enough = False

    def feed(self, piece: BodyData) -> None:
        """Take the next bytes and read them, or leave a long piece to `read_on`."""
        add_piece(self.pieces, piece)

    def read_on(self) -> None:
        """Read about a megabyte of what is `unread`: some 10 ms of work at most."""

    def finish(self, whole: bool = True) -> Found | None:  # noqa: FBT001, FBT002 (as compiled)
        """Return the fields found; None if the body must be read at the end.

        If the body is not `whole`, the prompts are as far as they have arrived.
        """
        return None

    def outline(self) -> Found | None:
        """Return the fields found without the prompts; None if they are not known."""
        return None
