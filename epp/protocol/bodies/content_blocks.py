"""Content blocks of Anthropic's Messages API, as parts of prompts.

Only the parts of a block that an engine reads count: clients move `cache_control` from block to
block between the turns of a conversation, which does not affect the engine's cache.
"""

from collections.abc import Iterator
from itertools import islice

import msgspec
import xxhash

from epp.protocol.bodies.api_bodies import ABSENT
from epp.protocol.bodies.json_tokens import TOKEN

NOTHING = frozenset((b"", b"null", b"[]", b"{}"))
"""A field that is absent, or has nothing in it."""
MEDIUM_BYTES = 900
"""Bytes for an image or another medium: 225 tokens of 4 bytes, llm-d-router's default."""
_MEDIA = frozenset(("image", "document", "container_upload"))
BILLING_BYTES = 4096
"""Bytes of a system prompt in which its attribution is looked for."""
_BILLING = b'"x-anthropic-billing-header'
_NEWLINE = b"\\n"
NO_THINKING = b'"disabled"'
"""The one type of `thinking` that changes an engine's prompt."""
_MAX_TOKENS = 50_000
_IN_SOURCE = 3
"""Objects and arrays around `data` in the content of a tool's result: list, block, source."""


class Block(msgspec.Struct):
    """A block of content; the fields, in the order in which they are written."""

    type: str = "text"
    """The kind of block."""
    text: msgspec.Raw = ABSENT
    """In a block of type `text`."""
    source: msgspec.Raw = ABSENT
    """In an `image` or `document`."""
    thinking: msgspec.Raw = ABSENT
    """In a `thinking` block."""
    id: msgspec.Raw = ABSENT
    """The id of a `tool_use`."""
    name: msgspec.Raw = ABSENT
    """The tool of a `tool_use`."""
    input: msgspec.Raw = ABSENT
    """The arguments of a `tool_use`."""
    tool_use_id: msgspec.Raw = ABSENT
    """The `tool_use` that a `tool_result` answers."""
    content: msgspec.Raw = ABSENT
    """The content of a `tool_result`."""


_block = msgspec.json.Decoder(Block)


class Multimodal(bytes):
    """Bytes of a prompt that stand for a medium, or have such among them."""


def medium(raw: bytes, key: bytes = b"") -> bytes:
    """Return the bytes that represent a medium: its digest, repeated up to `MEDIUM_BYTES`.

    `key` is the part of it by which an engine knows it, if it has one.
    """
    digest = xxhash.xxh3_128_digest(raw if key in NOTHING else key)
    return Multimodal((digest * (MEDIUM_BYTES // len(digest) + 1))[:MEDIUM_BYTES])


def block_bytes(raw: bytes) -> bytes:
    """Return a block as bytes of a prompt. Raises what msgspec does."""
    block = _block.decode(raw)
    if block.type == "text":
        return bytes(block.text)
    if block.type in _MEDIA:
        return medium(raw, bytes(block.source))
    content = bytes(block.content)
    pieces = [
        *(bytes(each) for each in (block.thinking, block.id, block.name, block.input)),
        bytes(block.tool_use_id),
    ]
    at = 0
    for start, end in _data_spans(content):
        pieces += [content[at:start], medium(content[start:end])]
        at = end
    joined = b"".join([*pieces, content[at:]])
    return Multimodal(joined) if at else joined


def _data_spans(content: bytes) -> Iterator[tuple[int, int]]:
    """Find the texts under `data` in the sources of the blocks in a tool's result: its images."""
    depth = 0
    key = previous = b""
    for token in islice(TOKEN.finditer(content), _MAX_TOKENS):
        symbol = token[0]
        if symbol in (b"{", b"["):
            depth += 1
            key = b""
        elif symbol in (b"}", b"]"):
            depth -= 1
            key = b""
        elif symbol == b":":
            key = previous
        else:
            if key == b'"data"' and depth == _IN_SOURCE and _is_value(content, token.start()):
                yield token.span()
            key = b""
        previous = symbol


def _is_value(content: bytes, at: int) -> bool:
    """Whether the text there comes right behind its colon."""
    while content[at - 1] in b" \t\r\n":
        at -= 1
    return content[at - 1] == ord(":")


def billing_span(system: bytes) -> tuple[int, int] | None:
    """Find Claude Code's attribution in a system prompt: a text, or a list of them.

    vLLM leaves it out, a block of the Messages API (`entrypoints/anthropic/serving.py`) or the line
    that gateways make of it (`renderers/chat_utils.py`): it differs from request to request. None
    if there is none.
    """
    whole, system = len(system) <= BILLING_BYTES, system[:BILLING_BYTES]
    if system.startswith(_BILLING):
        line = system.find(_NEWLINE)
        end = len(system) if line < 0 else line + len(_NEWLINE)
        return (0, end) if whole or line >= 0 else None
    at = system.find(_BILLING) if system[:1] == b"[" else -1
    text = TOKEN.match(system, at) if at >= 0 else None
    if text is None:
        return None
    end = system.find(b"}", text.end())
    if b"{" in system[text.end() : end]:  # `cache_control`
        end = system.find(b"}", end + 1)
    if end < 0:
        return None
    rest = system[end + 1 :].lstrip().removeprefix(b",").lstrip()
    return max(0, system.rfind(b"{", 0, at)), len(system) - len(rest)
