"""Decodes single KV events of vLLM and SGLang into changes of a cache.

An event is a map with its name under `type` (vLLM from 0.28 on, SGLang 0.5.23) or an array that
starts with its name and may leave out what comes last (before). Names, order and meaning of the
fields: vLLM 0.33 `vllm/distributed/kv_events.py`, SGLang 0.5.23
`sglang/srt/disaggregation/kv_events.py`.
Hashes are integers, signed (SGLang) or not (vLLM), or digests, whose last 8 bytes are the integer
that vLLM would have sent.

What one event says of many blocks is read as several changes, which together say the same.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from epp.model.kv_changes import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    Change,
    EngineHash,
    Medium,
)
from epp.protocol.kvevents.arrays import (
    MAX_NUMBERS,
    NotAnArray,
    array_head,
    is_of_pairs,
    read_uint32s,
)

_CHANGE_BLOCKS = 128
"""Blocks of one change."""

_UINT64 = (1 << 64) - 1
_FULL_KINDS = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""vLLM `KVCacheSpecKind` values whose hits need every block from the start; None if not sent."""

_MAP_BYTES = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})
"""First bytes of a map (msgpack spec: fixmap, map 16, map 32)."""

_MEDIA = {"gpu": Medium.GPU, "cpu": Medium.CPU, "cpu_pinned": Medium.CPU}

Hash = int | bytes
_Keys = Sequence[Any]
_Group = Annotated[int, Meta(ge=0, le=255)] | None
"""The index of a KV cache group; a model has no more of them than layers."""
_NONE, _EMPTY = msgspec.Raw(b"\xc0"), msgspec.Raw(b"\x90")
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, NotAnArray)
"""What decoding raises: the second of names that are not UTF-8, the third of arrays in arrays."""


class Event(msgspec.Struct, frozen=True):
    """One event: how many blocks it names, and the changes that it says, read as they are taken.

    Taking them may raise one of `UNREADABLE`: the rest of the event is unknown then.
    """

    blocks: int
    changes: Iterator[Change]


class _Stored(msgspec.Struct, gc=False):
    """`BlockStored` as a map. Salts are in `extra_keys` (vLLM) or in `cache_salt` (SGLang)."""

    block_hashes: msgspec.Raw
    """Integers, or bytes."""
    parent_block_hash: Hash | None = None
    """The block before them; nil at the start of a sequence."""
    token_ids: msgspec.Raw = _EMPTY
    """The tokens of all of them; with EAGLE SGLang sends each with the one after it."""
    block_size: int = 0
    """Tokens of a block."""
    medium: str | None = None
    """The tier that holds them; nil for the GPU."""
    lora_id: int | None = None
    """The engine's number of the adapter, from 1 on; some engines leave out its name."""
    lora_name: str | None = None
    """The name of the adapter."""
    cache_salt: str | None = None
    """SGLang's."""
    extra_keys: msgspec.Raw = _NONE
    """What else is hashed into each block."""
    group_idx: _Group = None
    """The KV cache group of a hybrid model."""
    kv_cache_spec_kind: str | None = None
    """The kind of attention of the group."""
    lookahead_token_ids: msgspec.Raw = _NONE
    """vLLM with EAGLE: the tokens after each block that are hashed into it as well."""


class _Salted(msgspec.Struct, gc=False):
    cache_salt: str | None = None


class _StoredArray(msgspec.Struct, array_like=True, gc=False):
    """`BlockStored` as an array; after `medium` SGLang sends a map with a salt, or nothing."""

    type: str
    block_hashes: msgspec.Raw
    parent_block_hash: Hash | None
    token_ids: msgspec.Raw
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | _Salted | None = None
    extra_keys: msgspec.Raw = _NONE
    group_idx: _Group = None
    kv_cache_spec_kind: str | None = None
    cache_salt: ClassVar[str | None] = None
    lookahead_token_ids: ClassVar[msgspec.Raw] = _NONE


class _Removed(msgspec.Struct, tag_field="type", tag="BlockRemoved", gc=False):
    block_hashes: msgspec.Raw
    medium: str | None = None
    group_idx: _Group = None


class _RemovedArray(_Removed, array_like=True):
    pass


class _Type(msgspec.Struct):
    type: str


class _TypeArray(_Type, array_like=True):
    pass


def read_event(event: msgspec.Raw, model: str) -> Event | None:
    """Decode one event; None for an unknown type. Raises one of `UNREADABLE`.

    `model` is the model of events without a LoRA adapter.
    """
    kind, decoders = _MAPS if memoryview(event)[0] in _MAP_BYTES else _ARRAYS
    decoder = decoders.get(kind.decode(event).type)
    if decoder is None:
        return None
    it: _Stored | _StoredArray | _Removed | _Type = decoder.decode(event)
    if isinstance(it, _Stored | _StoredArray):
        return _stored(it, model)
    if isinstance(it, _Removed):
        return Event(array_head(it.block_hashes)[0], _removed_parts(it))
    return Event(0, iter((BlocksCleared(),)))


def _stored(it: _Stored | _StoredArray, model: str) -> Event:
    name = it.lora_name
    adapter = None if isinstance(name, _Salted) else name
    salt = name.cache_salt if isinstance(name, _Salted) else it.cache_salt
    count, _ = array_head(it.block_hashes)
    length, _ = array_head(it.token_ids)
    full = it.kv_cache_spec_kind in _FULL_KINDS
    # vLLM: a group of sliding-window layers leaves out blocks outside of the window.
    if full and length and length != count * it.block_size:
        raise NotAnArray("the number of tokens is not that of the blocks")
    if not 0 <= it.block_size <= MAX_NUMBERS:
        raise NotAnArray(f"a block of {it.block_size} tokens")
    parent = it.parent_block_hash
    first = BlocksStored(
        hashes=(),
        # llm-d-inference-sim's arrays have 0 where others have nil.
        parent=None if parent is None else _hash(parent) or None,
        tokens=b"",
        size=it.block_size,
        model=adapter or (f"{model}\0{it.lora_id}" if it.lora_id else model),
        salt=salt or "",
        medium=_medium(it.medium),
        group=it.group_idx,
        full=full,
    )
    return Event(count, _stored_parts(it, first, adapter, tokens=full and length > 0))


def _stored_parts(
    it: _Stored | _StoredArray, first: BlocksStored, adapter: str | None, *, tokens: bool
) -> Iterator[Change]:
    """Yield the blocks that an engine stored, some at a time; each follows the one before it."""
    hashes, keys = _HASHES.decode(it.block_hashes), _extra_keys(it)
    most = max(1, min(_CHANGE_BLOCKS, MAX_NUMBERS // max(1, first.size)))
    packed = read_uint32s(it.token_ids, most * first.size) if tokens else iter(())
    parent, salt = first.parent, first.salt
    ahead = it.lookahead_token_ids != _NONE or is_of_pairs(it.token_ids)
    for start in range(0, max(1, len(hashes)), most):
        some = _hashes(hashes[start : start + most])
        salts, content = _extra(keys[start : start + most], adapter)
        salt = salt or salts
        if ahead and not content:
            content = [b""] * len(some)  # as several blocks may have the same tokens
        yield replace(
            first, hashes=some, parent=parent, tokens=next(packed, b""), salt=salt, content=content
        )
        parent = some[-1] if some else parent


def _removed_parts(it: _Removed) -> Iterator[Change]:
    hashes, medium = _HASHES.decode(it.block_hashes), _medium(it.medium)
    for start in range(0, max(1, len(hashes)), _CHANGE_BLOCKS):
        yield BlocksRemoved(_hashes(hashes[start : start + _CHANGE_BLOCKS]), medium, it.group_idx)


def _hash(value: Hash) -> EngineHash:
    # vLLM `v1/core/kv_cache_utils.py` `maybe_convert_block_hash`: an integer is the lower 64 bits.
    if isinstance(value, bytes):
        value = int.from_bytes(value[-8:], "big")
    return EngineHash(value & _UINT64)


def _hashes(values: list[Hash]) -> Sequence[EngineHash]:
    return [_hash(value) for value in values]


def _medium(name: str | None) -> Medium:
    return Medium.GPU if name is None else _MEDIA.get(name.lower(), Medium.OTHER)


def _extra_keys(it: _Stored | _StoredArray) -> Sequence[msgspec.Raw]:
    """Return the extra keys of each block, not read yet; empty if no block has any."""
    if it.extra_keys == _NONE:
        return ()
    length, start = array_head(it.extra_keys)
    nothing = b"\xc0\x90"  # nil and empty arrays
    if not bytes(memoryview(it.extra_keys)[start:]).strip(nothing):
        return ()
    if length != array_head(it.block_hashes)[0]:
        raise NotAnArray("the number of extra keys is not that of the blocks")
    return _RAWS.decode(it.extra_keys)


def _extra(keys: Sequence[msgspec.Raw], adapter: str | None) -> tuple[str, Sequence[bytes]]:
    """Return the salt and the extra content of each block.

    vLLM 0.32 `BlockStored.extra_keys`: per block the LoRA name, (medium, offset) pairs, the salt
    (of the first block) and digests of embeddings, in this order and without tags.
    """
    salt, content, pack = "", [], msgspec.msgpack.encode
    for block in keys:
        others = list(_KEYS.decode(block) or ())
        if adapter and others and others[0] == adapter:
            del others[0]
        texts = [key for key in others if isinstance(key, str)]
        salt = salt or "".join(texts)
        media = [key for key in others if not isinstance(key, str)]
        content.append(pack(media) if media else b"")
    return salt, content if any(content) else ()


_Decoders = tuple[msgspec.msgpack.Decoder[Any], dict[str, msgspec.msgpack.Decoder[Any]]]
"""Of one wire form: of an event's type, and of events by their type."""
_HASHES = msgspec.msgpack.Decoder(list[Hash])
_RAWS = msgspec.msgpack.Decoder(list[msgspec.Raw])
_KEYS = msgspec.msgpack.Decoder(_Keys | None)
_MAPS: _Decoders = (
    msgspec.msgpack.Decoder(_Type),
    {
        "BlockStored": msgspec.msgpack.Decoder(_Stored),
        "BlockRemoved": msgspec.msgpack.Decoder(_Removed),
        "AllBlocksCleared": msgspec.msgpack.Decoder(_Type),
    },
)
_ARRAYS: _Decoders = (
    msgspec.msgpack.Decoder(_TypeArray),
    {
        "BlockStored": msgspec.msgpack.Decoder(_StoredArray),
        "BlockRemoved": msgspec.msgpack.Decoder(_RemovedArray),
        "AllBlocksCleared": msgspec.msgpack.Decoder(_TypeArray),
    },
)
