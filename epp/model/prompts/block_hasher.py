"""The hasher of prompts: block by block, each block with all that precedes it.

The ends of blocks do not depend on what follows, so equal prefixes have equal blocks.

Token ids are cut as the engine cuts them, every `token_block` tokens. Text is cut at the ends of
the conversation's messages, and on a grid in between: 128 bytes apart at the start, growing with
the position, with sixteen cuts per doubling. A prompt of any length has some hundred blocks. Two
prompts that differ within a message lose at most a sixteenth of their shared prefix; if they differ
between messages they lose nothing.

One hash function serves all blocks; its root is keyed by a secret of the deployment, so that
outsiders cannot make two prompts collide.
"""

from hashlib import blake2b
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from epp.model.learning.bounded import make_room
from epp.model.prompts.chain import Chain
from epp.model.prompts.hashing import extend, text_chain
from epp.model.request import TOKEN_BYTES, Prompt

TOKEN_BLOCK: Final = 16
"""Tokens of a block if no engine has reported it: vLLM's default on GPUs."""

_ROOTS: Final = 1024
"""Roots that are cached, at most."""
_LONGEST_NAME: Final = 256
"""Characters of model name and salt up to which a root is cached."""


def digest(data: bytes, start: int, end: int, unit: int = 1) -> int:
    """Return a hash of the part of a prompt from `start` to `end`, in units of `unit` bytes."""
    return xxh3_64_intdigest(memoryview(data)[start * unit : end * unit])


class BlockHasher:
    """Hashes the blocks of prompts. Replicas that must agree share `secret` (up to 64 bytes).

    `token_block` is the length of blocks of token ids, in tokens: the one that is `configured`, or
    one that fits the engines.
    """

    def __init__(self, secret: bytes, token_block: int | None = None) -> None:
        self._secret = secret
        self.token_block = token_block or TOKEN_BLOCK
        self.configured = token_block is not None
        self._roots: dict[tuple[str, str, bool], int] = {}
        self._first_names: dict[str, str] = {}

    def share_names(self, first_names: dict[str, str]) -> None:
        """From here on hash these names of models as others, whose cache they share."""
        self._first_names = first_names
        self._roots.clear()

    def chain(
        self,
        prompt: Prompt,
        model: str,
        cache_salt: str,
        *,
        skip_reading_prefix_cache: bool = False,
    ) -> Chain:
        """Cut and hash a prompt; the model's name separates LoRA adapters."""
        data, marks = prompt.data, tuple(prompt.marks)
        root = self.root(model, cache_salt, exact=prompt.exact)
        if not prompt.exact:
            hashes, ends = text_chain(root, data, marks)
            size, last = len(data), ends[-1] if ends else 0
            rest = digest(data, last, size) if last < size else 0
            lookup = 0 if skip_reading_prefix_cache else len(ends)
            return Chain(hashes, ends, size, lookup, marks=marks, rest_digest=rest)
        # vLLM kv_cache_manager.py `get_computed_blocks`: at most `num_tokens - 1` tokens hit.
        size, block = len(data) // TOKEN_BYTES, self.token_block
        ends = range(block, size + 1, block)
        hashes = extend(root, data, ends, TOKEN_BYTES)
        lookup = 0 if skip_reading_prefix_cache else max(0, size - 1) // block
        rest = digest(data, size - size % block, size, TOKEN_BYTES) if size % block else 0
        return Chain(
            hashes,
            ends,
            size,
            lookup,
            exact=True,
            marks=marks,
            rest_digest=rest,
            multimodal=prompt.multimodal,
        )

    def response_key(self, response_id: str) -> int:
        """Return a keyed hash of a response's id: no client can choose two ids alike."""
        name = response_id.encode(errors="surrogatepass")
        digest = blake2b(name, digest_size=8, key=self._secret, person=b"response id")
        return int.from_bytes(digest.digest(), "little")

    def root(self, model: str, cache_salt: str, *, exact: bool) -> int:
        """Return the seed of a chain's first block: a keyed hash of model, salt and kind."""
        name = (model, cache_salt, exact)
        known = self._roots.get(name)
        if known is not None:
            return known
        hashed = (self._first_names.get(model, model), cache_salt, exact)
        digest = blake2b(msgspec.msgpack.encode(hashed), digest_size=8, key=self._secret)
        root = int.from_bytes(digest.digest(), "little")
        if len(model) + len(cache_salt) <= _LONGEST_NAME:
            make_room(self._roots, _ROOTS)
            self._roots[name] = root
        return root
