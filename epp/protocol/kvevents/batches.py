"""Decodes the KV event batches of vLLM and SGLang into changes of a cache.

A payload is a msgpack array `[time, events, rank?]`. An event is a map with its name under `type`
(vLLM from 0.28 on) or an array that starts with its name and may leave out what comes last (vLLM
before, SGLang). Names, order and meaning of the fields: vLLM 0.32 `vllm/distributed/kv_events.py`,
SGLang 0.5 `sglang/srt/disaggregation/kv_events.py`. Hashes are integers, signed (SGLang) or not
(vLLM), or digests, whose last 8 bytes are the integer that vLLM would have sent.
"""

import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from epp.model.kv_changes import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    Change,
    EngineHash,
    Medium,
)

MAX_PAYLOAD_BYTES = 1 << 20
"""Larger payloads are not read: one step of an engine stores no more than its batch of tokens.

32,768 tokens in blocks of 16, with digests as hashes, are 300 KB.
"""
MAX_EVENTS = 1 << 15
"""Batches of more events are not read. SGLang with pages of one token sends one for each."""
MAX_BLOCKS = 1 << 15
"""Batches that name more blocks in all their events are not read: the bound on events, by which
one step of an engine stores no more tokens.
"""

_UINT64 = (1 << 64) - 1
_TOKEN_BYTES = 4
_FULL_KINDS = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""vLLM `KVCacheSpecKind` values whose hits need every block from the start; None if not sent."""

_MAP_BYTES = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})
"""First bytes of a map (msgpack spec: fixmap, map 16, map 32)."""

_MEDIA = {"gpu": Medium.GPU, "cpu": Medium.CPU, "cpu_pinned": Medium.CPU}


class Batch(msgspec.Struct, frozen=True):
    """One decoded payload. `time` is the engine's clock, in Unix seconds.

    `rank` is the data-parallel rank, None if not sent. `unknown` counts events of unknown types,
    which do not change the cache; `malformed` counts events of known types that could not be
    decoded, after which the cache's content may differ.
    """

    changes: Sequence[Change]
    time: float
    rank: int | None = None
    unknown: int = 0
    malformed: int = 0


class UnreadableBatch(msgspec.Struct, frozen=True):
    """A payload that is not a batch, and why."""

    reason: str


Hash = int | bytes
_Keys = Sequence[Any]
_Group = Annotated[int, Meta(ge=0, le=255)] | None
"""The index of a KV cache group; a model has no more of them than layers."""
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises: of names that are not UTF-8, and of arrays in arrays, the latter two."""


class _Batch(msgspec.Struct, array_like=True):
    time: float
    events: msgspec.Raw
    rank: int | None = None


class _Time(msgspec.Struct, array_like=True):
    time: float


class _Stored(msgspec.Struct, gc=False):
    """`BlockStored` as a map. Salts are in `extra_keys` (vLLM) or in `cache_salt` (SGLang)."""

    block_hashes: list[Hash]
    parent_block_hash: Hash | None = None
    token_ids: list[int] = []
    block_size: int = 0
    medium: str | None = None
    lora_name: str | None = None
    cache_salt: str | None = None
    extra_keys: list[_Keys | None] | None = None
    group_idx: _Group = None
    kv_cache_spec_kind: str | None = None


class _Salted(msgspec.Struct, gc=False):
    cache_salt: str | None = None


class _StoredArray(msgspec.Struct, array_like=True, gc=False):
    """`BlockStored` as an array; after `medium` SGLang sends a map with a salt, or nothing."""

    type: str
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | _Salted | None = None
    extra_keys: list[_Keys | None] | None = None
    group_idx: _Group = None
    kv_cache_spec_kind: str | None = None


class _Removed(msgspec.Struct, gc=False):
    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: _Group = None


class _RemovedArray(msgspec.Struct, array_like=True, gc=False):
    type: str
    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: _Group = None


class _Named(msgspec.Struct):
    type: str


class _NamedArray(msgspec.Struct, array_like=True):
    type: str


class Malformed(ValueError):
    """An event of a known type cannot be decoded."""


def read_batch(
    payload: bytes, model: str = "", most_bytes: int = MAX_PAYLOAD_BYTES
) -> Batch | UnreadableBatch:
    """Decode one payload; `model` is the model of events without a LoRA adapter. Never raises."""
    if len(payload) > most_bytes:
        return UnreadableBatch(f"{len(payload)} bytes, more than {most_bytes}")
    try:
        batch = _BATCH.decode(payload)
        count = _length(batch.events)
        if count > MAX_EVENTS:  # said before an object is made of each
            return UnreadableBatch(f"{count} events, more than {MAX_EVENTS}")
        events = _EVENTS.decode(batch.events)
    except _UNREADABLE as error:
        return UnreadableBatch(f"not a batch of events: {error}")
    return _read_events(events, model, batch)


def _read_events(
    events: Sequence[msgspec.Raw], model: str, batch: _Batch
) -> Batch | UnreadableBatch:
    changes: list[Change] = []
    unknown = malformed = blocks = 0
    for event in events:
        try:
            change = _read_event(event, model)
        except (*_UNREADABLE, Malformed):
            malformed += 1
            continue
        if change is None:
            unknown += 1
            continue
        blocks += 0 if isinstance(change, BlocksCleared) else len(change.hashes)
        if blocks > MAX_BLOCKS:
            return UnreadableBatch(f"more than {MAX_BLOCKS} blocks")
        changes.append(change)
    return Batch(changes, batch.time, batch.rank, unknown, malformed)


def _length(array: msgspec.Raw) -> int:
    """Return the length of an array (msgpack spec: array 16, array 32); 0 of a shorter one."""
    data = bytes(memoryview(array)[:5])
    size = {0xDC: 2, 0xDD: 4}.get(data[0], 0)
    return int.from_bytes(data[1 : 1 + size], "big")


def time_of(payload: bytes) -> float | None:
    """Return the time of a batch (Unix seconds); None if the payload is not a batch."""
    try:
        return _TIME.decode(payload).time
    except _UNREADABLE:
        return None


def rank_of(payload: bytes) -> int | None:
    """Return the data-parallel rank of a batch; None if it has none, or is not a batch."""
    try:
        return _BATCH.decode(payload).rank
    except _UNREADABLE:
        return None


def _read_event(event: msgspec.Raw, model: str) -> Change | None:
    """Decode one event; None for an unknown type."""
    forms = _MAPS if memoryview(event)[0] in _MAP_BYTES else _ARRAYS
    reader = forms.readers.get(forms.name.decode(event).type)
    return reader(event, model) if reader else None


def _stored(event: msgspec.Raw, model: str) -> BlocksStored:
    it = _STORED.decode(event)
    return _stored_of(it, it.lora_name, it.cache_salt, model)


def _stored_array(event: msgspec.Raw, model: str) -> BlocksStored:
    it = _STORED_ARRAY.decode(event)
    if isinstance(it.lora_name, _Salted):
        return _stored_of(it, None, it.lora_name.cache_salt, model)
    return _stored_of(it, it.lora_name, None, model)


def _stored_of(
    it: _Stored | _StoredArray, adapter: str | None, salt: str | None, model: str
) -> BlocksStored:
    size, hashes = it.block_size, _hashes(it.block_hashes)
    full = it.kv_cache_spec_kind in _FULL_KINDS
    tokens = _tokens(it.token_ids)
    # vLLM: a group of sliding-window layers leaves out blocks outside of the window.
    if size < 0 or (full and tokens and len(tokens) != len(hashes) * size * _TOKEN_BYTES):
        raise Malformed("the number of tokens is not that of the blocks")
    salts, content = _extra(it.extra_keys, adapter)
    if content and len(content) != len(hashes):
        raise Malformed("the number of extra keys is not that of the blocks")
    parent = it.parent_block_hash
    return BlocksStored(
        hashes=hashes,
        parent=None if parent is None else _hash(parent),
        tokens=tokens,
        size=size,
        model=adapter or model,
        salt=salt or salts,
        content=content,
        medium=_medium(it.medium),
        group=it.group_idx,
        full=full,
    )


def _removed(event: msgspec.Raw, _: str) -> BlocksRemoved:
    it = _REMOVED.decode(event)
    return BlocksRemoved(_hashes(it.block_hashes), _medium(it.medium), it.group_idx)


def _removed_array(event: msgspec.Raw, _: str) -> BlocksRemoved:
    it = _REMOVED_ARRAY.decode(event)
    return BlocksRemoved(_hashes(it.block_hashes), _medium(it.medium), it.group_idx)


def _cleared(_: msgspec.Raw, __: str) -> BlocksCleared:
    return BlocksCleared()


def _hash(value: Hash) -> EngineHash:
    # vLLM `v1/core/kv_cache_utils.py` `maybe_convert_block_hash`: an integer is the lower 64 bits.
    if isinstance(value, bytes):
        value = int.from_bytes(value[-8:], "big")
    return EngineHash(value & _UINT64)


def _hashes(values: list[Hash]) -> Sequence[EngineHash]:
    return [_hash(value) for value in values]


def _tokens(ids: list[int]) -> bytes:
    try:
        packed = array("I", ids)
    except OverflowError as error:
        raise Malformed("a token id of more than 32 bits, or below 0") from error
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _medium(name: str | None) -> Medium:
    return Medium.GPU if name is None else _MEDIA.get(name.lower(), Medium.OTHER)


def _extra(keys: list[_Keys | None] | None, adapter: str | None) -> tuple[str, Sequence[bytes]]:
    """Return the salt and the extra content of each block.

    vLLM 0.32 `BlockStored.extra_keys`: per block the LoRA name, (medium, offset) pairs, the salt
    (of the first block) and digests of embeddings, in this order and without tags.
    """
    if not keys or not any(keys):
        return "", ()
    salt, content, pack = "", [], msgspec.msgpack.encode
    for block in keys:
        others = list(block or ())
        if adapter and others and others[0] == adapter:
            del others[0]
        texts = [key for key in others if isinstance(key, str)]
        salt = salt or "".join(texts)
        media = [key for key in others if not isinstance(key, str)]
        content.append(pack(media) if media else b"")
    return salt, content if any(content) else ()


class _Forms(msgspec.Struct, frozen=True):
    """Decoders of one wire form: of the event's type, and of the rest by type."""

    name: msgspec.msgpack.Decoder[_Named] | msgspec.msgpack.Decoder[_NamedArray]
    readers: dict[str, Callable[[msgspec.Raw, str], Change]]


_BATCH = msgspec.msgpack.Decoder(_Batch)
_EVENTS = msgspec.msgpack.Decoder(list[msgspec.Raw])
_TIME = msgspec.msgpack.Decoder(_Time)
_STORED = msgspec.msgpack.Decoder(_Stored)
_STORED_ARRAY = msgspec.msgpack.Decoder(_StoredArray)
_REMOVED = msgspec.msgpack.Decoder(_Removed)
_REMOVED_ARRAY = msgspec.msgpack.Decoder(_RemovedArray)
_MAPS = _Forms(
    msgspec.msgpack.Decoder(_Named),
    {"BlockStored": _stored, "BlockRemoved": _removed, "AllBlocksCleared": _cleared},
)
_ARRAYS = _Forms(
    msgspec.msgpack.Decoder(_NamedArray),
    {"BlockStored": _stored_array, "BlockRemoved": _removed_array, "AllBlocksCleared": _cleared},
)
