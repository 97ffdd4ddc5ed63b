"""Changes of a cache in parts that take a millisecond or a few each, whatever one batch says."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from epp.model.kv_changes import BlocksCleared, BlocksRemoved, BlocksStored, Change

_MOST = 256
"""Changes, and blocks in them, of one part."""
_TOKEN_BYTES = 4


def parts(changes: Sequence[Change], most: int = _MOST) -> Iterator[list[Change]]:
    """Yield the changes in order, of `most` changes and blocks at a time; none is empty.

    A change of more blocks becomes several, which together say the same.
    """
    part: list[Change] = []
    size = 0
    for change in changes:
        for piece in _pieces(change, most):
            weight = 1 if isinstance(piece, BlocksCleared) else max(1, len(piece.hashes))
            if part and size + weight > most:
                yield part
                part, size = [], 0
            part.append(piece)
            size += weight
    if part:
        yield part


def _pieces(change: Change, most: int) -> Iterator[Change]:
    if isinstance(change, BlocksCleared) or len(change.hashes) <= most:
        yield change
        return
    for start in range(0, len(change.hashes), most):
        some = slice(start, start + most)
        if isinstance(change, BlocksRemoved):
            yield replace(change, hashes=change.hashes[some])
        else:
            yield _stored(change, some)


def _stored(change: BlocksStored, some: slice) -> BlocksStored:
    """Return some of the blocks that an engine stored; each follows the one before it."""
    width = change.size * _TOKEN_BYTES
    return replace(
        change,
        hashes=change.hashes[some],
        parent=change.hashes[some.start - 1] if some.start else change.parent,
        tokens=change.tokens[some.start * width : some.stop * width],
        content=change.content[some],
    )
