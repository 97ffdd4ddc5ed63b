"""Turns requests of Anthropic's Messages API into the chats that vLLM makes of them.

Mirrors vLLM `entrypoints/anthropic/serving.py`, `to_chat_completion_request`: what a chat template
sees of such a request is the chat.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from epp.adapters.tokens.fallback import FallbackCause, TextFallback, fields_of
from epp.adapters.tokens.local.chat_messages import BILLING
from epp.model.request import Api, InferenceRequest
from epp.values import replaced


class MessagesRules(msgspec.Struct, frozen=True):
    """How a server turns a request into a chat; by default as a vLLM without `/v1/messages/render`.

    `merges`: later system messages are joined to the first. `disabled_effort` is the
    `reasoning_effort` of `thinking` that is disabled; None: neither efforts nor the options of
    tools are passed on.
    """

    merges: bool = True
    disabled_effort: str | None = None


_OLDER = MessagesRules()


def as_chat(request: InferenceRequest) -> InferenceRequest:
    """Return a request of Anthropic's as the chat of an older vLLM; any other as it is.

    Raises `TextFallback` for a body that does not fit.
    """
    if request.api is not Api.MESSAGES:
        return request
    chat = chat_of(fields_of(request.body))
    return replaced(request, api=Api.CHAT, body=msgspec.json.encode(chat))


def chat_of(body: Mapping[str, Any], rules: MessagesRules = _OLDER) -> dict[str, Any]:
    """Return the chat of a body. Raises `TextFallback` for one that does not fit."""
    try:
        return _chat(body, rules) | _effort(body, rules.disabled_effort)
    except (AttributeError, KeyError, TypeError) as error:
        raise TextFallback(FallbackCause.MALFORMED, type(error).__name__) from error


def _effort(body: Mapping[str, Any], disabled: str | None) -> dict[str, Any]:
    effort = (body.get("output_config") or {}).get("effort")
    if (body.get("thinking") or {}).get("type") == "disabled":
        effort = disabled
    return {} if None in {disabled, effort} else {"reasoning_effort": effort}


def _chat(body: Mapping[str, Any], rules: MessagesRules) -> dict[str, Any]:
    turns = body["messages"]
    told = "".join(_system_texts(body.get("system")))
    if rules.merges:
        told += "".join(_inline_system(turn) for turn in turns if turn["role"] == "system")
    messages = [{"role": "system", "content": told}] if told else []
    for turn in turns:
        if turn["role"] != "system":
            messages += _messages(turn)
        elif not rules.merges and (text := _inline_system(turn)):
            messages.append({"role": "system", "content": text})
    chat: dict[str, Any] = {"model": body.get("model", ""), "messages": messages}
    older = rules.disabled_effort is None
    # An older server is sent the chat, which it refuses with an empty list of tools.
    tools = body.get("tools") or None if older else _tools_at_end(body)
    if tools is not None:
        chat["tools"] = [_tool(each, rules) for each in tools]
    if body.get("chat_template_kwargs") is not None:
        chat["chat_template_kwargs"] = body["chat_template_kwargs"]
    return chat


def _system_texts(content: Any) -> Iterator[str]:  # noqa: ANN401 (JSON)
    if isinstance(content, str):
        yield content
    for block in content if isinstance(content, list) else ():
        text = block.get("text") if block["type"] == "text" else None
        if text and not text.startswith(BILLING):
            yield text


def _inline_system(turn: Mapping[str, Any]) -> str:
    content = turn["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return "".join(_system_texts(blocks))


def _tools_at_end(body: Mapping[str, Any]) -> list[Any] | None:
    """Return the tools with what system messages add to them and remove; None without any."""
    contents = [turn["content"] for turn in body["messages"] if turn["role"] == "system"]
    blocks = [block for content in contents if not isinstance(content, str) for block in content]
    changes = [each for each in blocks if each["type"] in {"tool_addition", "tool_removal"}]
    if not changes:
        return body.get("tools")
    tools = {tool["name"]: tool for tool in body.get("tools") or []}
    removed = set()
    for change in changes:
        tool = change["tool"].get("definition")
        name = (tool or change["tool"])["name"]
        tools[name] = tool or tools[name]
        if change["type"] == "tool_removal":
            removed.add(name)
            continue
        removed.discard(name)
        if tool is None:
            tools[name] = tools[name] | {"defer_loading": None}
    return [tool for name, tool in tools.items() if name not in removed]


def _tool(tool: Mapping[str, Any], rules: MessagesRules) -> dict[str, Any]:
    schema = {**tool["input_schema"]}
    schema.setdefault("type", "object")
    options = ("strict", "defer_loading") if rules.disabled_effort is not None else ()
    told = {key: tool[key] for key in ("description", *options) if tool.get(key) is not None}
    return {"type": "function", "function": {"name": tool["name"], "parameters": schema, **told}}


class _Turn:
    """What the blocks of a turn add up to; a kind of block that is not known adds nothing."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.results: list[dict[str, Any]] = []
        self.parts: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.thoughts: list[str] = []

    def add(self, block: Mapping[str, Any]) -> None:
        match block["type"]:
            case "text":
                self._say(block.get("text"))
            case "image":
                self.parts.append(_image(block["source"]))
            case "thinking" if block.get("thinking") is not None:
                self.thoughts.append(block["thinking"])
            case "tool_use":
                self.calls.append(_call(block))
            case "tool_result" if self.role == "user":
                self.results += _result(block)
            case "tool_result":
                self._say(f"Tool result: {block.get('content') or ''}")
            case _:
                pass  # as vLLM passes over what it does not know

    def _say(self, text: str | None) -> None:
        if text:
            self.parts.append({"type": "text", "text": text})

    def messages(self) -> list[dict[str, Any]]:
        """Return the results of tools, and then what else it says."""
        said: dict[str, Any] = {"role": self.role}
        if self.thoughts:
            said["reasoning"] = "".join(self.thoughts)
        if self.calls:
            said["tool_calls"] = self.calls
        if self.parts:
            alone = len(self.parts) == 1 and self.parts[0]["type"] == "text"
            said["content"] = self.parts[0]["text"] if alone else self.parts
        silent = self.role == "user" and not self.parts
        return self.results if silent else [*self.results, said]


def _messages(turn: Mapping[str, Any]) -> list[dict[str, Any]]:
    role, content = turn["role"], turn["content"]
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    made = _Turn(role)
    for block in content:
        made.add(block)
    return made.messages()


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": block.get("name") or "", "arguments": json.dumps(block.get("input") or {})}
    return {"id": block["id"], "type": "function", "function": function}


def _result(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the message of a tool's result, and one of its images."""
    content = block.get("content")
    items = [each for each in content if "type" in each] if isinstance(content, list) else []
    texts = [each.get("text", "") for each in items if each["type"] == "text"]
    told = content if isinstance(content, str) else "\n".join(texts)
    name = block.get("tool_use_id") or ""
    yield {"role": "tool", "tool_call_id": name, "content": told}
    images = [_image(each["source"]) for each in items if each["type"] == "image"]
    if images:
        yield {"role": "user", "content": images}
    known = [each.get("tool_name") or each.get("name") for each in items]
    references = [
        {"type": "tool_reference", "name": tool}
        for tool, each in zip(known, items, strict=True)
        if each["type"] == "tool_reference" and tool
    ]
    if references:
        yield {"role": "tool", "tool_call_id": name, "content": references}


def _image(source: Mapping[str, Any]) -> dict[str, Any]:
    url = source.get("url", "")
    if source.get("type") != "url":
        kind = source.get("media_type", "image/jpeg")
        url = f"data:{kind};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}
