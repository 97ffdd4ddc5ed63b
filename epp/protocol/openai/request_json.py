"""Parses bodies of inference APIs, for routing only.

Content is kept as the JSON bytes that the client sent (`msgspec.Raw`) and never decoded: a prompt
is only hashed. Two requests share a prefix of prompt bytes exactly where they share messages,
whatever the order of their keys and the white space between them.

`body_reader.py` does the same as a body arrives.
"""

import re
from collections.abc import Callable, Iterable
from itertools import accumulate, islice
from typing import Any

import msgspec

from epp.errors import MalformedRequest
from epp.model.request import Api, Prompt
from epp.protocol.openai.apis import NAMELESS
from epp.protocol.openai.content_blocks import Multimodal, billing_span, block_bytes, medium
from epp.protocol.openai.token_prompts import limit_of, packed, salt_of, with_media

_Piece = bytes | memoryview | msgspec.Raw
_PartBytes = Callable[[bytes], bytes]
_TEXT_PARTS = frozenset(("text", "input_text", "output_text"))
_RAW = msgspec.Raw(b"")
LONGEST_PROMPT = 4 << 20
"""Bytes of a body's prompts that are read: a million tokens, about the most engines accept."""
_MOST_PROMPTS = 64
_MOST_MESSAGES = 10_000
"""What follows these is not looked at: it goes where the first of them are cached."""
_SMALL_BYTES, _LONG_BYTES = 64 << 10, 5 << 20
_MOST_VALUES = 50_000
"""Values up to which an object is built for each: some 10 ms and 5 MB.

Of a body with more, or of more than `_LONG_BYTES`, only the fields outside of the prompts count.
"""
_VALUE_BEGINS = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[{,]', re.DOTALL)
LONGEST_MODEL = 1024
"""Characters of a model's name: what is learned of models is kept under their names."""


class Parsed(msgspec.Struct, frozen=True):
    """The fields of a body that routing reads; `multimodal` as of `InferenceRequest`."""

    model: str
    prompts: tuple[Prompt, ...]
    stream: bool
    max_tokens: int | None
    cache_salt: str
    user: str = ""
    multimodal: bool = False


class _Message(msgspec.Struct):
    """A message of a chat; `reasoning_content` is vLLM's."""

    role: str = ""
    content: msgspec.Raw = _RAW
    reasoning_content: msgspec.Raw = _RAW
    tool_calls: msgspec.Raw = _RAW
    tool_call_id: msgspec.Raw = _RAW


class _Part(msgspec.Struct):
    type: str = "text"
    text: msgspec.Raw = _RAW


class _Body(msgspec.Struct):
    """The fields that bodies of all APIs have; `cache_salt` is vLLM's."""

    model: str = ""
    stream: bool | None = None
    cache_salt: str | None = None
    user: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None


class _Chat(_Body):
    messages: list[_Message] | None = None
    tools: msgspec.Raw = _RAW


class _Completions(_Body):
    prompt: msgspec.Raw = _RAW


class _Embeddings(_Body):
    input: msgspec.Raw = _RAW
    messages: list[_Message] | None = None


class _Responses(_Body):
    input: msgspec.Raw = _RAW
    instructions: msgspec.Raw = _RAW
    tools: msgspec.Raw = _RAW


class _Nameless(_Body):
    """What the bodies have that may leave the model out."""

    model: str | None = None  # type: ignore[assignment]  # `null` is as good as none


class _Conversations(_Nameless):
    items: msgspec.Raw = _RAW


class _Messages(_Body):
    """Anthropic's Messages API."""

    messages: list[_Message] | None = None
    system: msgspec.Raw = _RAW
    tools: msgspec.Raw = _RAW


class _Generate(_Nameless):
    """vLLM's `/inference/v1/generate`."""

    token_ids: msgspec.Raw = _RAW
    sampling_params: msgspec.Raw = _RAW
    features: msgspec.Raw = _RAW


class _SglangGenerate(_Nameless):
    input_ids: msgspec.Raw = _RAW
    text: msgspec.Raw = _RAW
    cache_salt: Any = None  # means nothing here
    extra_key: msgspec.Raw = _RAW
    sampling_params: msgspec.Raw = _RAW


class _RawPredict(_Nameless):
    """Vertex AI's raw prediction: the body of a chat, of a response or of a completion."""

    messages: list[_Message] | None = None
    input: msgspec.Raw = _RAW
    prompt: msgspec.Raw = _RAW
    instructions: msgspec.Raw = _RAW
    tools: msgspec.Raw = _RAW


_raw_items = msgspec.json.Decoder(list[msgspec.Raw])
_token_ids = msgspec.json.Decoder(list[int])
_part = msgspec.json.Decoder(_Part)


def parse_request(api: Api, body: bytes) -> Parsed:
    """Parse a request body.

    Raises `MalformedRequest` with a message that names the field: for malformed JSON, wrong
    types, a missing model or prompt, and nesting that is too deep. Other fields and content (the
    text of a message, sampling parameters) are not validated; the model server does that.
    """
    decode, prompts_of = _READERS.get(api, _OUTLINE)
    if len(body) > _SMALL_BYTES and _is_excessive(body):
        decode, prompts_of = _OUTLINE
    try:
        parsed = decode(body)
        prompts = _shortened(prompts_of(parsed))
    except RecursionError:
        message = "the body is nested too deeply"
        raise MalformedRequest(message, reason="nested-too-deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, OverflowError) as error:
        raise MalformedRequest(_problem(body, error)) from None
    model = parsed.model or ""
    check_model(api, model)
    sampling = bytes(getattr(parsed, "sampling_params", _RAW))
    salt = parsed.cache_salt or ""
    if api is Api.SGLANG_GENERATE:
        salt = salt_of(bytes(getattr(parsed, "extra_key", _RAW)))
    # vLLM `ChatCompletionRequest`: `max_completion_tokens` before the deprecated `max_tokens`;
    # `max_output_tokens` is the Responses API's.
    limit = parsed.max_completion_tokens or parsed.max_tokens or parsed.max_output_tokens
    prompts = with_media(prompts, bytes(getattr(parsed, "features", _RAW)))
    return Parsed(
        model=model,
        prompts=prompts,
        stream=bool(parsed.stream),
        max_tokens=limit or limit_of(sampling),
        cache_salt=salt,
        user=parsed.user or "",
        multimodal=any(prompt.multimodal for prompt in prompts),
    )


def check_model(api: Api, name: str) -> None:
    """Raise `MalformedRequest` for a model without a name where it needs one, or too long a one."""
    if not name and api not in NAMELESS:
        raise MalformedRequest("`model` is missing from the body", reason="missing-model")
    if len(name) > LONGEST_MODEL:
        raise MalformedRequest(f"`model` has more than {LONGEST_MODEL} characters")


def _is_excessive(body: bytes) -> bool:
    """Whether a body takes too much time or memory to be read in one piece."""
    if len(body) > _LONG_BYTES:
        return True
    begins = _VALUE_BEGINS.finditer(body)
    return next(islice(begins, 2 * _MOST_VALUES, None), None) is not None


def _problem(body: bytes, error: Exception) -> str:
    if not body.strip():
        return "the body is empty; JSON is expected"
    if isinstance(error, msgspec.ValidationError):
        return f"the body does not fit its path: {error}"
    return f"the body is not valid JSON: {error}"


def _chat_prompts(body: _Chat) -> tuple[Prompt, ...]:
    if not body.messages:
        raise MalformedRequest("`messages` is missing or empty", reason="missing-prompt")
    return (_conversation(body.messages, bytes(body.tools)),)


def _message_prompts(body: _Messages) -> tuple[Prompt, ...]:
    if not body.messages:
        raise MalformedRequest("`messages` is missing or empty", reason="missing-prompt")
    system = bytes(body.system)
    if (billing := billing_span(system)) is not None:
        system = system[: billing[0]] + system[billing[1] :]
    return (_conversation(body.messages, bytes(body.tools) + system, block_bytes),)


def _conversation(
    messages: Iterable[_Message], head: bytes, part_bytes: _PartBytes | None = None
) -> Prompt:
    """Return messages as a prompt; a longer conversation starts with the bytes of a shorter one."""
    pieces: list[_Piece] = [head]
    size, marks = len(head), [len(head)] if head else []
    for message in islice(messages, _MOST_MESSAGES):
        parts = _parts(message, part_bytes or _part_bytes)
        pieces += parts
        size += sum([memoryview(part).nbytes for part in parts])
        marks.append(size)
    return Prompt(b"".join(pieces), marks=marks, multimodal=_multimodal(pieces))


def _multimodal(pieces: Iterable[_Piece]) -> bool:
    return any(isinstance(piece, Multimodal) for piece in pieces)


def _shortened(prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
    """Cut prompts where they have `LONGEST_PROMPT` bytes together."""
    if sum([len(prompt.data) for prompt in prompts]) <= LONGEST_PROMPT:
        return prompts
    left, kept = LONGEST_PROMPT, []
    for prompt in prompts:
        marks = [mark for mark in prompt.marks if mark <= left]
        kept.append(Prompt(prompt.data[:left], prompt.exact, marks or (), prompt.multimodal))
        left -= len(kept[-1].data)
    return tuple(kept)


def _parts(message: _Message, part_bytes: _PartBytes) -> tuple[_Piece, ...]:
    content = memoryview(message.content)
    is_list = content[:1].tobytes() == b"["
    parts = [part_bytes(bytes(each)) for each in _raw_items.decode(content)] if is_list else ()
    return (
        f"\n<{message.role}>".encode(),
        *(parts if is_list else (content,)),
        message.reasoning_content,
        message.tool_calls,
        message.tool_call_id,
    )


def _part_bytes(raw: bytes) -> bytes:
    """Return a part of a content as bytes."""
    part = _part.decode(raw)
    return bytes(part.text) if part.type in _TEXT_PARTS else medium(raw)


def _completion_prompts(body: _Completions) -> tuple[Prompt, ...]:
    return _prompts(bytes(body.prompt), "prompt")


def _embedding_prompts(body: _Embeddings) -> tuple[Prompt, ...]:
    if body.messages:
        return (_conversation(body.messages, b""),)
    return _prompts(bytes(body.input), "input")


def _prompts(raw: bytes, field: str) -> tuple[Prompt, ...]:
    """Return the prompts of a `str | [str] | [int] | [[int]]`, the forms of OpenAI's API."""
    if raw[:1] == b'"':
        # Without the closing quote: a longer text then starts with the bytes of a shorter one.
        return (Prompt(raw[:-1]),)
    if raw[:1] != b"[":
        raise MalformedRequest(
            f"`{field}` must be a string, a list of strings or a list of token ids",
            reason="missing-prompt",
        )
    items = _raw_items.decode(raw)
    if not items:
        raise MalformedRequest(f"`{field}` is empty", reason="missing-prompt")
    if bytes(items[0])[:1] not in b'"[':
        return (_exact(_token_ids.decode(raw), field),)
    return tuple(_prompt_item(bytes(item), field) for item in items[:_MOST_PROMPTS])


def _prompt_item(raw: bytes, field: str) -> Prompt:
    if raw[:1] == b"[":
        return _exact(_token_ids.decode(raw), field)
    if raw[:1] != b'"':
        raise MalformedRequest(f"`{field}` holds something that is neither text nor token ids")
    return Prompt(raw[:-1])


def _exact(tokens: list[int], field: str) -> Prompt:
    try:
        return Prompt(packed(tokens), exact=True)
    except OverflowError:
        raise MalformedRequest(f"`{field}` holds a token id outside 0..2^32-1") from None


def _response_prompts(body: _Responses | _RawPredict) -> tuple[Prompt, ...]:
    return _item_prompts(bytes(body.input), "input", bytes(body.tools) + bytes(body.instructions))


def _item_prompts(raw: bytes, field: str, head: bytes) -> tuple[Prompt, ...]:
    if not raw:
        raise MalformedRequest(f"`{field}` is missing", reason="missing-prompt")
    if raw[:1] != b"[":
        return (Prompt(head + b"\n<user>" + raw),)
    items = _raw_items.decode(raw)[:_MOST_MESSAGES]
    pieces = [head, *(_response_item(bytes(item)) for item in items)]
    marks = list(accumulate(map(len, pieces)))
    marks = marks if head else marks[1:]
    return (Prompt(b"".join(pieces), marks=marks, multimodal=_multimodal(pieces)),)


def _response_item(raw: bytes) -> bytes:
    """Return an input item: a message as in a chat, any other (tool calls, ...) unchanged."""
    try:
        message = msgspec.json.decode(raw, type=_Message)
    except msgspec.ValidationError:
        return raw
    if not message.role:
        return raw
    parts = _parts(message, _part_bytes)
    joined = b"".join(parts)
    return Multimodal(joined) if _multimodal(parts) else joined


def _conversation_items(body: _Conversations) -> tuple[Prompt, ...]:
    return _item_prompts(bytes(body.items), "items", b"")


def _generate_prompts(body: _Generate) -> tuple[Prompt, ...]:
    return _prompts(bytes(body.token_ids), "token_ids")


def _sglang_prompts(body: _SglangGenerate) -> tuple[Prompt, ...]:
    if bytes(body.input_ids) not in {b"", b"null"}:
        return _prompts(bytes(body.input_ids), "input_ids")
    return _prompts(bytes(body.text), "text")


def _raw_predict_prompts(body: _RawPredict) -> tuple[Prompt, ...]:
    if body.messages:
        head = bytes(body.tools) + bytes(body.instructions)
        return (_conversation(body.messages, head),)
    if bytes(body.input):
        return _response_prompts(body)
    return _prompts(bytes(body.prompt), "prompt") if bytes(body.prompt) else ()


def _no_prompts(_: _Body) -> tuple[Prompt, ...]:
    return ()


_Reader = tuple[Callable[[bytes], Any], Callable[[Any], tuple[Prompt, ...]]]
_OUTLINE: _Reader = (msgspec.json.Decoder(_Body).decode, _no_prompts)
"""Reads no prompt: an engine computes none to render or to count one."""
_READERS: dict[Api, _Reader] = {
    Api.CHAT: (msgspec.json.Decoder(_Chat).decode, _chat_prompts),
    Api.COMPLETIONS: (msgspec.json.Decoder(_Completions).decode, _completion_prompts),
    Api.EMBEDDINGS: (msgspec.json.Decoder(_Embeddings).decode, _embedding_prompts),
    Api.RESPONSES: (msgspec.json.Decoder(_Responses).decode, _response_prompts),
    Api.CONVERSATIONS: (msgspec.json.Decoder(_Conversations).decode, _conversation_items),
    Api.IMAGES: (msgspec.json.Decoder(_Completions).decode, _completion_prompts),
    Api.MESSAGES: (msgspec.json.Decoder(_Messages).decode, _message_prompts),
    Api.GENERATE: (msgspec.json.Decoder(_Generate).decode, _generate_prompts),
    Api.SGLANG_GENERATE: (msgspec.json.Decoder(_SglangGenerate).decode, _sglang_prompts),
    Api.RAW_PREDICT: (msgspec.json.Decoder(_RawPredict).decode, _raw_predict_prompts),
}
