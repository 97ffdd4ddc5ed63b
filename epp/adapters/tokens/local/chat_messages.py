"""Converts the messages of a chat request to the form that vLLM passes to a chat template.

Mirrors vLLM 0.32 `vllm/renderers/chat_utils.py` (`_parse_chat_message_content`,
`_postprocess_messages`) and the key order of the request models of its OpenAI server, as templates
print tool calls and tools as JSON. A message that vLLM refuses is `MALFORMED` here.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from epp.adapters.tokens.fallback import FallbackCause, TextFallback

Message = dict[str, Any]


class ContentFormat(Enum):
    """The form of `content` that a template expects: one string, or a list of typed parts."""

    STRING = "string"
    PARTS = "openai"


_TEXT_FIELD = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_TEXT_OF = {"text": "text", "tool_reference": "name"}
_SKIPPED_WHEN_NULL = {"text", "refusal"}
_NOT_EXTRA = frozenset(
    (
        "audio_embeds",
        "audio_url",
        "closed",
        "data",
        "detail",
        "file",
        "image_embeds",
        "image_pil",
        "image_url",
        "input_audio",
        "name",
        "prompt_cache_breakpoint",
        "refusal",
        "text",
        "thinking",
        "type",
        "uuid",
        "video_embeds",
        "video_url",
    )
)
"""Fields of content parts that vLLM does not pass to templates; all others are passed."""
BILLING = "x-anthropic-billing-header"
"""What Claude Code's attribution begins with; vLLM leaves it out."""
_UNSET = (None, "auto")
_CALL_ORDER = ("id", "function", "type")
_FUNCTION_ORDER = ("arguments", "name")
_TOOL_ORDER = ("function", "type")
_DEFINITION_ORDER = ("name", "description", "parameters", "strict")


def conversation(messages: Sequence[Any], content_format: ContentFormat) -> list[Message]:
    """Return the `messages` of a template. Raises `TextFallback` if they cannot be converted."""
    if not all(isinstance(message, dict) for message in messages):
        raise TextFallback(FallbackCause.MALFORMED, "a message is not an object")
    return [_message(message, content_format) for message in messages]


def _message(message: Mapping[str, Any], content_format: ContentFormat) -> Message:
    role = message.get("role")
    if not isinstance(role, str):
        raise TextFallback(FallbackCause.MALFORMED, "a message has no role")
    parts = _parts(message.get("content"))
    if role == "system":
        parts = list(_without_billing(parts))
    visible = [part for part in map(_part, parts) if part is not None]
    converted: Message = {"role": role, "content": visible}
    if content_format is ContentFormat.STRING:
        converted["content"] = "\n".join(
            filter(None, (part[_TEXT_OF[part["type"]]] for part in visible))
        )
    if role == "assistant":
        _assistant(converted, message)
    elif role == "tool":
        _tool(converted, message)
    converted |= {
        key: message[key] for key in ("name", "task") if isinstance(message.get(key), str)
    }
    if role == "developer":
        converted["tools"] = _developer_tools(message.get("tools"))
    return converted


def _parts(content: object) -> list[Any]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list):
        return content
    raise TextFallback(FallbackCause.MALFORMED, "content is neither text nor a list")


def _without_billing(parts: Iterable[Any]) -> Iterable[Any]:
    """Yield the parts without the billing line that one client puts into each system prompt."""
    # vLLM 0.32 `_strip_claude_code_billing_header`: the line differs in every request, and a
    # prompt that keeps it misses the prefix cache.
    for part in parts:
        text = part if isinstance(part, str) else part.get("text") if _is_text(part) else None
        if not (isinstance(text, str) and text.startswith(BILLING)):
            yield part
        elif rest := text.partition("\n")[2]:
            yield rest if isinstance(part, str) else {**part, "text": rest}


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "text"


def _part(part: object) -> Message | None:
    """Return a content part as templates see it; None for one that vLLM skips."""
    if isinstance(part, str):
        part = {"type": "text", "text": part}
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise TextFallback(FallbackCause.MALFORMED, "a content part has no type")
    kind: str = part["type"]
    if kind == "tool_reference" and isinstance(part.get("name"), str):
        return {"type": kind, "name": part["name"]}
    if kind not in _TEXT_FIELD or part.get("uuid") is not None:
        raise TextFallback(FallbackCause.MEDIA)
    text = part.get(_TEXT_FIELD[kind])
    if text is None and kind in _SKIPPED_WHEN_NULL:
        return None
    if not isinstance(text, str):
        raise TextFallback(FallbackCause.MALFORMED, "a content part has no text")
    extra = {key: value for key, value in part.items() if key not in _NOT_EXTRA}
    return {"type": "text", "text": text} | extra


def _assistant(converted: Message, message: Mapping[str, Any]) -> None:
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise TextFallback(FallbackCause.MALFORMED, "`tool_calls` is not a list")
    if calls:
        converted["tool_calls"] = [_tool_call(call) for call in calls]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        converted["reasoning"] = converted["reasoning_content"] = reasoning


def _tool(converted: Message, message: Mapping[str, Any]) -> None:
    if "tool_call_id" in message:
        converted["tool_call_id"] = message["tool_call_id"]
    parts = converted["content"]
    if isinstance(parts, list) and all(part["type"] == "text" for part in parts):
        converted["content"] = "\n".join(part["text"] for part in parts)


def _developer_tools(tools: object) -> list[Message] | None:
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise TextFallback(FallbackCause.MALFORMED, "a developer's `tools` is not a list")
    return [_developer_tool(tool) for tool in tools]


def _with_function(item: object, problem: str) -> tuple[Message, Message]:
    """Return a tool or a call, and its function. Raises `TextFallback` if it has none."""
    function = item.get("function") if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(function, dict):
        raise TextFallback(FallbackCause.MALFORMED, problem)
    return item, function


def _developer_tool(tool: object) -> Message:
    tool, function = _with_function(tool, "a developer's tool is not a function")
    return _in_order({**tool, "function": _in_order(function, _DEFINITION_ORDER)}, _TOOL_ORDER)


def _tool_call(call: object) -> Message:
    """Return a tool call with its arguments decoded, as templates print them as an object."""
    call, function = _with_function(call, "a tool call has no function")
    if call.get("type") != "function" or not isinstance(function.get("arguments"), str):
        raise TextFallback(FallbackCause.MALFORMED, "a tool call is of another type")
    function = _in_order(function, _FUNCTION_ORDER)
    function["arguments"] = _arguments(function["arguments"])
    return _in_order({**call, "function": function}, _CALL_ORDER)


def _arguments(text: str) -> Message:
    """Return decoded arguments; an empty object for what is not a JSON object, as in vLLM."""
    try:
        decoded = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _in_order(item: Mapping[str, Any], first: Sequence[str]) -> Message:
    """Return an item with known keys first, as the typed models of vLLM's server order them."""
    return {key: item[key] for key in first if key in item} | dict(item)


def tools_of(body: Mapping[str, Any]) -> list[Message] | None:
    """Return the tools as vLLM's models write them, absent ones null. Raises `TextFallback`."""
    tools = body.get("tools")
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise TextFallback(FallbackCause.MALFORMED, "`tools` is not a list")
    return [_tool_definition(tool) for tool in tools]


def _tool_definition(tool: object) -> Message:
    tool, function = _with_function(tool, "a tool is not a function")
    if "name" not in function:
        raise TextFallback(FallbackCause.MALFORMED, "a tool is not a function")
    converted = {key: function.get(key) for key in ("name", "description", "parameters")}
    deferred = tool.get("defer_loading")
    optional = {"strict": function.get("strict")}
    optional["defer_loading"] = function.get("defer_loading", deferred)
    converted |= {key: value for key, value in optional.items() if value is not None}
    outer = {"type": tool.get("type", "function"), "function": converted}
    return outer if deferred is None else outer | {"defer_loading": deferred}


def without_developers(messages: list[Message]) -> list[Message]:
    """Return messages with those of developers merged into one system message, the first.

    For templates without the role `developer`.

    Mirrors vLLM 0.32 `vllm/renderers/hf.py` (`_convert_developer_to_system`,
    `_consolidate_system_messages`).
    """
    if all(message["role"] != "developer" for message in messages):
        return messages
    turned = [_as_system(message) for message in messages]
    system = [message for message in turned if message["role"] == "system"]
    if len(system) == 1 and turned[0] is system[0]:
        return turned
    texts = [text for text in (_text(message["content"]) for message in system) if text]
    others = [message for message in turned if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _as_system(message: Message) -> Message:
    if message["role"] != "developer":
        return message
    kept = {key: value for key, value in message.items() if key != "tools"}
    return kept | {"role": "system"}


def _text(content: str | list[Message]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)


def variables_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of a template that a chat sets, by their names or by fields of its own.

    Raises `TextFallback` if they are not an object.
    """
    own = body.get("chat_template_kwargs") or {}
    if not isinstance(own, dict):
        raise TextFallback(FallbackCause.FIELD, "chat_template_kwargs")
    effort = body.get("reasoning_effort")
    fields = {"documents": body.get("documents"), "reasoning_effort": effort}
    if effort is not None and "enable_thinking" not in own:
        fields["enable_thinking"] = effort != "none"
    return without_unset(own) | without_unset(fields)


def without_unset(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of a template that have a value."""
    return {name: value for name, value in variables.items() if value not in _UNSET}
