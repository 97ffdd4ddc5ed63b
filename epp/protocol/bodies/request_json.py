"""Parses bodies of inference APIs, for routing only.

Content is kept as the JSON bytes that the client sent (`msgspec.Raw`) and never decoded, since a
prompt is only hashed. Two requests share a prefix of prompt bytes exactly as far as they share
messages, whatever the order of keys and the white space between them.

`body_reader.py` does the same as a body arrives.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import accumulate, islice
from typing import Any, TypeVar

import msgspec
from xxhash import xxh3_128_digest

from epp.errors import MalformedRequest
from epp.model.request import Api, Prompt
from epp.protocol.bodies.api_bodies import (
    ABSENT,
    AnyBody,
    ChatBody,
    ChatMessage,
    CompletionsBody,
    ContentPart,
    ConversationsBody,
    EmbeddingsBody,
    GenerateBody,
    MessagesBody,
    RawPredictBody,
    ResponsesBody,
    SglangGenerateBody,
)
from epp.protocol.bodies.apis import NAMELESS
from epp.protocol.bodies.coercion import (
    LONGEST_VALUE,
    UNREADABLE,
    flag_of,
    limit_of,
    model_of,
    n_of,
    salt_of,
    skips_reading,
)
from epp.protocol.bodies.content_blocks import (
    NO_THINKING,
    NOTHING,
    Multimodal,
    billing_span,
    block_bytes,
    medium,
)
from epp.protocol.bodies.json_tokens import TEXT, member
from epp.protocol.bodies.parsed import Parsed
from epp.protocol.bodies.token_prompts import Features, Sampling, packed, with_media

_Piece = bytes | memoryview | msgspec.Raw
_PartBytes = Callable[[bytes], bytes]
_TEXT_PARTS = frozenset(("text", "input_text", "output_text"))
_OBJECTS = re.compile(rb"\[\s*(\[\s*)?\{")
"""Of lists of objects, or of lists of them (1), how they begin."""
_CUT_OFF, _END = "Input data was truncated", 32
"""msgspec's error for a body that ends too early, or with half of a surrogate pair; and how many
bytes of the end can tell which."""
_LONE_SURROGATE = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}(?:[^\\]|\\[^u])")
LONGEST_PROMPT = 4 << 20
"""Bytes of a body's prompts that are read: a million tokens, about the most engines accept."""
_MAX_PROMPTS = 64
_MAX_MESSAGES = 10_000
"""Those after them are not read: the request goes where the first ones are cached."""
_SMALL_BYTES, _LONG_BYTES = 64 << 10, 5 << 20
_MAX_VALUES = 50_000
"""Objects that a body may need when it is read: some 10 ms and 5 MB.

If a body has more values, or more than `_LONG_BYTES`, its prompts are not read.
"""
_VALUE_BEGINS = re.compile(TEXT + rb"|[\[{,]", re.DOTALL)
# vLLM `ChatCompletionRequest` has the first two, and prefers the first, as the second is
# deprecated; the third is the Responses API's.
LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
T = TypeVar("T")


_raw_items = msgspec.json.Decoder(list[msgspec.Raw])
_token_ids = msgspec.json.Decoder(list[int], strict=False)
_part = msgspec.json.Decoder(ContentPart)
_messages = msgspec.json.Decoder(list[ChatMessage] | None)
_sampling, _NO_SAMPLING = msgspec.json.Decoder(Sampling), Sampling()
_features, _NO_FEATURES = msgspec.json.Decoder(Features), Features()


def parse_request(api: Api, body: bytes) -> Parsed:
    """Parse a request body.

    Raises `MalformedRequest` with a message that names the field: for malformed JSON, wrong
    types, a missing prompt, and nesting that is too deep. Other fields and content (the text of a
    message, sampling parameters) are not validated; the model server does that.
    """
    decode, prompts_of = _READERS.get(api, _OUTLINE)
    if len(body) > _SMALL_BYTES and _is_excessive(body):
        decode, prompts_of = _OUTLINE
    try:
        parsed = decode(body)
        model = model_of(_value(parsed, "model"))
        prompts = _shortened(prompts_of(parsed))
    except RecursionError:
        message = "the body is nested too deeply"
        raise MalformedRequest(message, reason="nested-too-deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, OverflowError) as error:
        raise MalformedRequest(_problem(body, error)) from None
    salt = "extra_key" if api is Api.SGLANG_GENERATE else "cache_salt"
    sampling = _within(parsed, "sampling_params", _sampling, _NO_SAMPLING)
    features = _within(parsed, "features", _features, _NO_FEATURES)
    prompts = with_media(prompts, bytes(features.mm_hashes), bytes(features.mm_placeholders))
    return Parsed(
        model=model,
        prompts=prompts,
        stream=flag_of(_value(parsed, "stream")),
        max_tokens=limit_of(
            *(_value(parsed, name) for name in LIMITS),
            *(_value(sampling, name) for name in ("max_tokens", "max_new_tokens")),
        ),
        n=n_of(_value(parsed, "n"), _value(sampling, "n")),
        cache_salt=salt_of(_value(parsed, salt)),
        multimodal=any(prompt.multimodal for prompt in prompts),
        skip_reading_prefix_cache=skips_reading(
            api,
            _value(parsed, "prompt_logprobs"),
            _value(parsed, "echo"),
            _value(parsed, "top_logprobs" if api is Api.CHAT else "logprobs"),
            _value(sampling, "prompt_logprobs"),
            _value(sampling, "skip_reading_prefix_cache"),
        ),
    )


def _value(parsed: msgspec.Struct, name: str) -> bytes:
    """Return the JSON of a field, cut one byte after the longest that is used; empty without it."""
    return bytes(memoryview(getattr(parsed, name, ABSENT))[: LONGEST_VALUE + 1])


def _within(body: AnyBody, name: str, decoder: msgspec.json.Decoder[T], otherwise: T) -> T:
    """Return a field of the body, decoded; `otherwise` if that is not possible."""
    with suppress(*UNREADABLE):
        return decoder.decode(getattr(body, name, ABSENT))
    return otherwise


def check_without_model(api: Api) -> None:
    """Raise `MalformedRequest` for a body without a model, if its API demands one."""
    if api not in NAMELESS:
        raise MalformedRequest("`model` is missing from the body", reason="missing-model")


def _is_excessive(body: bytes) -> bool:
    """Return whether a body takes too much time or memory to be read as a whole."""
    if len(body) > _LONG_BYTES:
        return True
    begins = _VALUE_BEGINS.finditer(body)
    return next(islice(begins, 2 * _MAX_VALUES, None), None) is not None


def _problem(body: bytes, error: Exception) -> str:
    if not body.strip():
        return "the body is empty; JSON is expected"
    if isinstance(error, msgspec.ValidationError):
        return f"the body does not fit its path: {error}"
    if str(error) == _CUT_OFF and _LONE_SURROGATE.search(body[-_END:]):
        return "the body is not valid JSON: its last string ends with half of a surrogate pair"
    return f"the body is not valid JSON: {error}"


def _chat_prompts(body: ChatBody | MessagesBody | RawPredictBody) -> tuple[Prompt, ...]:
    if not body.messages:
        raise MalformedRequest("`messages` is missing or empty", reason="missing-prompt")
    part_bytes = block_bytes if isinstance(body, MessagesBody) else _part_bytes
    return (_conversation(body.messages, _head(body), part_bytes),)


def _head(body: AnyBody) -> bytes:
    """Return the part of a prompt before all messages."""
    systems = (_unattributed(_given(body, name)) for name in ("system", "instructions"))
    tools, documents = _given(body, "tools"), _given(body, "documents")
    return b"".join((_template_digests(body), tools, *systems, documents))


def _unattributed(system: bytes) -> bytes:
    """Return a system prompt without a client's attribution."""
    start, end = billing_span(system) or (0, 0)
    return system[:start] + system[end:]


def _template_digests(body: AnyBody) -> bytes:
    """Return what stands for fields that say how a prompt is written, but not in its own words.

    vLLM `build_chat_params`: a template knows `reasoning_effort`, and gpt-oss has it at the start
    of the prompt. The Messages API (vLLM anthropic/serving.py) and the Responses API have it in an
    object, whose other members do not reach the prompt; without thinking there is none.
    """
    thinking = member(_value(body, "thinking"), b"type")
    template, effort = _given(body, "chat_template"), _given(body, "reasoning_effort")
    if thinking == NO_THINKING:
        template = thinking
    else:
        for name in ("output_config", "reasoning"):
            effort = effort or member(_value(body, name), b"effort")
    fields = (template, _given(body, "chat_template_kwargs"), effort)
    return b"".join([xxh3_128_digest(field) for field in fields if field not in NOTHING])


def _given(body: AnyBody, name: str) -> bytes:
    """Return the JSON of a field; empty if the body does not have it, or nothing in it."""
    raw = bytes(getattr(body, name, ABSENT))
    return b"" if raw in NOTHING else raw


def _conversation(messages: Iterable[ChatMessage], head: bytes, part_bytes: _PartBytes) -> Prompt:
    """Return messages as a prompt; a longer conversation starts with the bytes of a shorter one."""
    pieces: list[_Piece] = [head]
    size, marks = len(head), [len(head)] if head else []
    for message in islice(messages, _MAX_MESSAGES):
        parts = _parts(message, part_bytes)
        pieces += parts
        size += sum([memoryview(part).nbytes for part in parts])
        marks.append(size)
    return Prompt(b"".join(pieces), marks=marks, multimodal=_multimodal(pieces))


def _multimodal(pieces: Iterable[_Piece]) -> bool:
    return any(isinstance(piece, Multimodal) for piece in pieces)


def _shortened(prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
    """Cut prompts if they have `LONGEST_PROMPT` bytes together."""
    if sum([len(prompt.data) for prompt in prompts]) <= LONGEST_PROMPT:
        return prompts
    left, kept = LONGEST_PROMPT, []
    for prompt in prompts:
        marks = [mark for mark in prompt.marks if mark <= left]
        kept.append(Prompt(prompt.data[:left], prompt.exact, marks or (), prompt.multimodal))
        left -= len(kept[-1].data)
    return tuple(kept)


def _parts(message: ChatMessage, part_bytes: _PartBytes) -> tuple[_Piece, ...]:
    content = memoryview(message.content)
    is_list = content[:1].tobytes() == b"["
    items = _raw_items.decode(content) if is_list else ()
    parts = [part for each in items if (part := _part_or_raw(bytes(each), part_bytes))]
    parts = parts if is_list else [bytes(content)]
    if parts and message.role == "system" and not isinstance(parts[0], Multimodal):
        parts[0] = _unattributed(parts[0])
    return (
        f"\n<{message.role}>".encode(),
        *parts,
        message.reasoning or message.reasoning_content,
        message.tool_calls,
        message.tool_call_id,
    )


def _part_or_raw(raw: bytes, part_bytes: _PartBytes) -> bytes:
    """Return a part of a content as bytes; anything else, such as vLLM's bare strings, as it is."""
    try:
        return part_bytes(raw)
    except msgspec.ValidationError:
        return raw


def _part_bytes(raw: bytes) -> bytes:
    """Return a part of a content as bytes. Raises what msgspec does."""
    part = _part.decode(raw)
    return bytes(part.text) if part.type in _TEXT_PARTS else medium(raw, bytes(part.uuid))


def _completion_prompts(body: CompletionsBody) -> tuple[Prompt, ...]:
    if bytes(body.prompt) in NOTHING and bytes(body.prompt_embeds) not in NOTHING:
        return ()
    return _prompts(bytes(body.prompt), "prompt")


def _embedding_prompts(body: EmbeddingsBody) -> tuple[Prompt, ...]:
    messages, raw = bytes(body.messages) or b"[]", bytes(body.input)
    for batch in (messages, raw):
        if (found := _OBJECTS.match(batch)) and found[1]:
            chats = _raw_items.decode(batch)[:_MAX_PROMPTS]
            return tuple(
                _conversation(_messages.decode(chat) or (), b"", _part_bytes) for chat in chats
            )
    if chat := _messages.decode(messages):
        return (_conversation(chat, b"", _part_bytes),)
    if _OBJECTS.match(raw):  # messages for vLLM, texts with images for SGLang
        return _item_prompts(raw, "input", b"")
    return _prompts(raw, "input")


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
        return (_exact(raw, field),)
    return tuple(_prompt_item(bytes(item), field) for item in items[:_MAX_PROMPTS])


def _prompt_item(raw: bytes, field: str) -> Prompt:
    if raw[:1] == b"[":
        return _exact(raw, field)
    if raw[:1] != b'"':
        raise MalformedRequest(f"`{field}` holds something that is neither text nor token ids")
    return Prompt(raw[:-1])


def _exact(raw: bytes, field: str) -> Prompt:
    try:
        return Prompt(packed(_token_ids.decode(raw)), exact=True)
    except OverflowError:
        raise MalformedRequest(f"`{field}` holds a token id outside 0..2^32-1") from None


def _response_prompts(body: ResponsesBody | RawPredictBody) -> tuple[Prompt, ...]:
    return _item_prompts(bytes(body.input), "input", _head(body))


def _item_prompts(raw: bytes, field: str, head: bytes) -> tuple[Prompt, ...]:
    if not raw:
        raise MalformedRequest(f"`{field}` is missing", reason="missing-prompt")
    if raw[:1] != b"[":
        return (Prompt(head + b"\n<user>" + raw),)
    items = _raw_items.decode(raw)[:_MAX_MESSAGES]
    pieces = [head, *(_response_item(bytes(item)) for item in items)]
    marks = list(accumulate(map(len, pieces)))
    marks = marks if head else marks[1:]
    return (Prompt(b"".join(pieces), marks=marks, multimodal=_multimodal(pieces)),)


def _response_item(raw: bytes) -> bytes:
    """Return an input item: a message as in a chat, any other (tool calls, ...) unchanged."""
    try:
        message = msgspec.json.decode(raw, type=ChatMessage)
    except msgspec.ValidationError:
        return raw
    if not message.role:
        return raw
    parts = _parts(message, _part_bytes)
    joined = b"".join(parts)
    return Multimodal(joined) if _multimodal(parts) else joined


def _sglang_prompts(body: SglangGenerateBody) -> tuple[Prompt, ...]:
    if bytes(body.input_ids) not in NOTHING:
        return _prompts(bytes(body.input_ids), "input_ids")
    if bytes(body.text) in NOTHING and bytes(body.input_embeds) not in NOTHING:
        return ()
    return _prompts(bytes(body.text), "text")


def _raw_predict_prompts(body: RawPredictBody) -> tuple[Prompt, ...]:
    if body.messages:
        return _chat_prompts(body)
    if bytes(body.input) not in NOTHING:
        return _response_prompts(body)
    return () if bytes(body.prompt) in NOTHING else _prompts(bytes(body.prompt), "prompt")


_Reader = tuple[Callable[[bytes], Any], Callable[[Any], tuple[Prompt, ...]]]
_OUTLINE: _Reader = (msgspec.json.Decoder(AnyBody).decode, lambda _: ())
"""Reads no prompt: engines that only render or count a prompt compute nothing."""
_READERS: dict[Api, _Reader] = {
    Api.CHAT: (msgspec.json.Decoder(ChatBody).decode, _chat_prompts),
    Api.COMPLETIONS: (msgspec.json.Decoder(CompletionsBody).decode, _completion_prompts),
    Api.EMBEDDINGS: (msgspec.json.Decoder(EmbeddingsBody).decode, _embedding_prompts),
    Api.RESPONSES: (msgspec.json.Decoder(ResponsesBody).decode, _response_prompts),
    Api.CONVERSATIONS: (
        msgspec.json.Decoder(ConversationsBody).decode,
        lambda body: _item_prompts(bytes(body.items), "items", b""),
    ),
    Api.IMAGES: (msgspec.json.Decoder(CompletionsBody).decode, _completion_prompts),
    Api.MESSAGES: (msgspec.json.Decoder(MessagesBody).decode, _chat_prompts),
    Api.GENERATE: (
        msgspec.json.Decoder(GenerateBody).decode,
        lambda body: _prompts(bytes(body.token_ids), "token_ids"),
    ),
    Api.SGLANG_GENERATE: (msgspec.json.Decoder(SglangGenerateBody).decode, _sglang_prompts),
    Api.RAW_PREDICT: (msgspec.json.Decoder(RawPredictBody).decode, _raw_predict_prompts),
}
