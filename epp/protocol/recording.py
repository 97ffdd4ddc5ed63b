"""The format of recordings: one JSON object a line, in gzip members, in parts of bounded size.

A part begins with a `RecordingHeader`; the other lines are in the order in which they were written,
requests in the order in which they ended. Each part stands alone. A member is written whole, so a
crash cuts off the last member at most.

No line has text, or a hash by which text could be looked up: block hashes and clients' names are
keyed with a secret of this recording, which is never stored (`Pseudonyms`). Two recordings have no
hash in common.
"""

from array import array
from binascii import a2b_base64, b2a_base64
from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b
from itertools import islice, pairwise

import msgspec

from epp.model.prompts.chain import Chain

VERSION = 1
SUFFIX = ".jsonl.gz"
KEY_BYTES = 48

_CIPHER_KEY_BYTES = 16
_HASH_BYTES = 8
_WORD_BYTES = 8
_HEADER = "header"


class RecordingHeader(msgspec.Struct, frozen=True, kw_only=True, tag=_HEADER, tag_field="kind"):
    """The first line of a part. Times of the others are in seconds from `started` (RFC 3339).

    `salt` names the recording's secret: only hashes of one salt can be compared. `part` counts
    from 1. `configuration` is the policy's name or the file's, `base_model` the model that the
    configuration says the servers run, if it does.
    """

    version: int
    salt: str
    part: int
    started: str
    pool: str
    configuration: str = ""
    base_model: str = ""


class RecordedEndpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One endpoint: `namespace/name`, and its cache's size and block in tokens, as believed."""

    id: str
    kv_tokens: int
    block_tokens: int
    role: str = ""


class RecordedPool(msgspec.Struct, frozen=True, kw_only=True, tag="endpoints", tag_field="kind"):
    """All endpoints, as they were from `at` on."""

    at: float
    endpoints: tuple[RecordedEndpoint, ...]


class RecordedLoss(msgspec.Struct, frozen=True, kw_only=True, tag="lost", tag_field="kind"):
    """Requests since the previous line that were not written: they came faster than the disk."""

    at: float
    requests: int


class RecordedPrompt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One prompt as blocks; lengths are in tokens if `exact`, else in bytes of text."""

    number: int
    """Its number in the part."""
    size: int
    """Its length."""
    tokens: int
    """Its length in tokens, estimated."""
    exact: bool = False
    """Whether it was seen as tokens."""
    like: int = 0
    """The number of a prompt in the same part that it begins like."""
    shared: int = 0
    """With how many of that prompt's blocks it begins."""
    hashes: str = ""
    """The hashes of its further full blocks, packed (`unpacked`)."""
    lengths: tuple[int, ...] = ()
    """Their lengths, of which the last goes for all that follow."""
    rest: int = 0
    """A hash of the whole prompt if something follows its last full block; 0 if nothing does.

    0 too if no block is full."""
    marks: tuple[int, ...] = ()
    """Ends of messages behind the shared blocks, from the prompt's start."""


class RecordedRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="request", tag_field="kind"
):
    """One request, from its first bytes to its end; times but `at` are in seconds from it."""

    n: int
    """Its number."""
    at: float
    """When its first bytes came."""
    outcome: str
    """One of `epp.protocol.extproc.record.Outcome`."""
    api: str = ""
    """The API that it asked."""
    model: str = ""
    """The model's name, as the client gave it."""
    target_model: str = ""
    """What the server was asked for, if that differs.

    A target that is not the base model is an adapter."""
    tenant: str = ""
    """The keyed fairness id; empty if it names none."""
    priority: int = 0
    """Its priority."""
    stream: bool = False
    """Whether it asked for a stream."""
    max_tokens: int | None = None
    """The client's limit on generated tokens; None if it gave none."""
    prompts: tuple[RecordedPrompt, ...] = ()
    """Its prompts."""
    endpoint: str = ""
    """The endpoint that was picked; empty if none was."""
    prefill: str = ""
    """The endpoint that computed the prompt, if that was another one."""
    served: str = ""
    """The target that served it by the proxy's report, if that is not the endpoint's."""
    profile: str = ""
    """The profile that decided."""
    predicted_cached_tokens: int | None = None
    """The decision's, for `endpoint`, or for `prefill` if there is one."""
    predicted_ttft: float | None = None
    """Likewise."""
    decided: float | None = None
    """When it was decided on; None if that was not seen."""
    first: float | None = None
    """When the first byte of the response's body came; None if that was not seen."""
    end: float | None = None
    """When it ended; None if that was not seen."""
    chunks: int = 0
    """Pieces of the response's body."""
    status: int | None = None
    """The HTTP status."""
    reason: str = ""
    """Why the picker rejected it."""
    prompt_tokens: int | None = None
    """The prompts' length, as the server reported it; None if it did not."""
    cached_tokens: int | None = None
    """What of them was cached, likewise."""
    generated_tokens: int | None = None
    """The response's length, likewise."""


RecordedLine = RecordingHeader | RecordedPool | RecordedLoss | RecordedRequest

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[RecordedLine] = msgspec.json.Decoder(RecordedLine)


def encode_line(line: RecordedLine) -> bytes:
    """Return a line, with its line break."""
    return _encoder.encode(line) + b"\n"


def decode_line(text: bytes) -> RecordedLine:
    """Read a line. Raises `msgspec.DecodeError`."""
    return _decoder.decode(text)


def decode_header(text: bytes) -> RecordingHeader:
    """Read the first line of a part. Raises `ValueError` that says what the line is instead."""
    try:
        head = msgspec.json.decode(text, type=_Versioned)
        if head.kind != _HEADER:
            raise ValueError("the file does not begin with the header of a recording")
        if head.version != VERSION:
            raise ValueError(f"it is of version {head.version}; this reads version {VERSION}")
        return msgspec.json.decode(text, type=RecordingHeader)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"the file is not a recording: {error}") from None


class _Versioned(msgspec.Struct):
    """The fields that headers of all versions have."""

    kind: str = ""
    version: int = 0


class Pseudonyms:
    """Replaces hashes and clients' names by keyed hashes for one recording; `key` has `KEY_BYTES`.

    Without the key one can tell what is equal, and nothing else.
    """

    def __init__(self, key: bytes) -> None:
        # Imported here: it is slow, and needed for nothing but to write.
        from cryptography.hazmat.primitives.ciphers import Cipher  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers.algorithms import AES  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers.modes import ECB  # noqa: PLC0415

        # One hash is one block of the cipher: a keyed permutation, cut to the length of a hash.
        mode = ECB()  # noqa: S305 (no message is encrypted)
        self._cipher = Cipher(AES(key[:_CIPHER_KEY_BYTES]), mode).encryptor()
        self._word_key = key[_CIPHER_KEY_BYTES:]

    def hashes(self, hashes: Sequence[int]) -> "array[int]":
        """Return the recorded form of each hash."""
        padded = array("Q", bytes(2 * _HASH_BYTES * len(hashes)))
        padded[::2] = array("Q", hashes)
        return array("Q", self._cipher.update(padded.tobytes()))[::2]

    def word(self, text: str) -> str:
        """Return the recorded form of a client's name."""
        return blake2b(text.encode(), digest_size=_WORD_BYTES, key=self._word_key).hexdigest()


class PromptWriter:
    """Writes the prompts of one part: blocks that an earlier prompt began with, by reference.

    It remembers at most `room` blocks, some 100 bytes each; if there are more it forgets those
    of all prompts but the last.
    """

    def __init__(self, pseudonyms: Pseudonyms, room: int = 1 << 17) -> None:
        self._pseudonyms = pseudonyms
        self._room = room
        self._prompts = 0
        self._seen: dict[int, int] = {}

    def written(self, chain: Chain, tokens: int) -> RecordedPrompt:
        """Return a prompt's blocks, without those that are known."""
        hashes = self._pseudonyms.hashes(chain.hashes)
        rest = chain.rest_digest ^ chain.hashes[-1] if chain.hashes and chain.rest_digest else 0
        # Of a known block all before it are known.
        shared = bisect_left(hashes, x=True, key=lambda each: each not in self._seen)
        like = self._seen[hashes[shared - 1]] if shared else 0
        own = hashes[shared:]
        self._prompts += 1
        if len(self._seen) + len(own) > self._room:
            self._seen = dict.fromkeys(hashes[: self._room], self._prompts)
        else:
            self._seen.update(dict.fromkeys(own, self._prompts))
        start = chain.ends[shared - 1] if shared else 0
        return RecordedPrompt(
            number=self._prompts,
            size=chain.size,
            tokens=tokens,
            exact=chain.exact,
            like=like,
            shared=shared,
            hashes=b2a_base64(own, newline=False).decode(),
            lengths=_lengths(chain, shared, start),
            rest=self._pseudonyms.hashes([rest])[0] if rest else 0,
            marks=tuple(mark for mark in chain.marks if mark > start),
        )


def _lengths(chain: Chain, shared: int, start: int) -> tuple[int, ...]:
    """Return the lengths of the blocks after the shared ones, without repeats at the end."""
    ends = chain.ends
    if shared == len(ends):
        return ()
    if isinstance(ends, range):
        return (ends.step,)
    lengths = [after - before for before, after in pairwise((start, *islice(ends, shared, None)))]
    while len(lengths) > 1 and lengths[-1] == lengths[-2]:
        lengths.pop()
    return tuple(lengths)


def unpacked(prompt: RecordedPrompt) -> tuple[Sequence[int], Sequence[int]]:
    """Return the hashes and the lengths of a prompt's own blocks.

    Raises `ValueError` if they cannot be those of blocks.
    """
    packed = a2b_base64(prompt.hashes.encode(), strict_mode=True)
    if len(packed) % _HASH_BYTES:
        raise ValueError("its hashes are cut off")
    hashes = array("Q", packed)
    if len(prompt.lengths) > len(hashes) or (len(hashes) and not prompt.lengths):
        raise ValueError(f"it has {len(hashes)} hashes and {len(prompt.lengths)} lengths")
    if any(length < 1 for length in prompt.lengths):
        raise ValueError("a block is empty")
    missing = len(hashes) - len(prompt.lengths)
    return hashes, (*prompt.lengths, *prompt.lengths[-1:] * missing)
