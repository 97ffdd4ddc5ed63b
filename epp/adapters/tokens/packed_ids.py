"""Token ids packed as bytes, the form in which a `Prompt` holds them."""

import sys
from array import array
from collections.abc import Sequence

from epp.model.request import TOKEN_BYTES

Ids = bytes
"""Token ids, `TOKEN_BYTES` little-endian bytes each."""

_CODE = next(code for code in "IL" if array(code).itemsize == TOKEN_BYTES)


def packed(ids: Sequence[int]) -> Ids:
    """Return ids as bytes. Raises `OverflowError` for an id outside 0..2^32-1."""
    ids_array = array(_CODE, ids)
    if sys.byteorder == "big":
        ids_array.byteswap()
    return ids_array.tobytes()
