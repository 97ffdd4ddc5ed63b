"""The model event of a prompt that repeats a response, which the reader of prompts finds."""

from collections.abc import Sequence

import msgspec

from epp.model.prompts.hashing import BlockHash
from epp.model.request import RequestId


class ResponseRepeated(msgspec.Struct, frozen=True):
    """A prompt repeats the response to a request, whose generated blocks have these hashes.

    `anchor` is the last full block of that request's own prompt. `sizes` of the blocks are in
    tokens.
    """

    request_id: RequestId
    anchor: BlockHash
    hashes: Sequence[BlockHash]
    sizes: Sequence[int]
