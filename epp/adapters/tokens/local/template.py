"""Renders chat templates as transformers and vLLM do.

Mirrors transformers 5 `utils/chat_template_utils.py` (the sandbox, its extensions, filters and
globals; `continue_final_message`) and vLLM 0.32 `ChatCompletionRequest.build_chat_params`
(which fields of a request reach the template).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from epp.adapters.tokens.fallback import FallbackCause, TextFallback
from epp.adapters.tokens.local.chat_messages import (
    Message,
    conversation,
    tools_of,
    variables_of,
    without_developers,
    without_unset,
)
from epp.adapters.tokens.local.content_format import content_format
from epp.errors import ConfigError

_MARK = "WARMPICK_CONTINUES_HERE "
"""Marks where a final message is continued; its blank shows whether the template trims text."""
_DEFAULT, _WITH_TOOLS = "default", "tool_use"
_RESERVED = frozenset(
    (
        "chat_template",
        "conversation",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "truncation",
    )
)
"""Names in `chat_template_kwargs` that are not variables of the template."""


class _Generation(Extension):
    """`{% generation %}`, which marks the model's own text and renders as its content."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render_caller"), [], [], body).set_lineno(line)

    def _render_caller(self, caller: Callable[[], str]) -> str:
        return caller()


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 (templates pass it as they like)
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Return JSON without escapes for HTML, which Jinja's own filter makes."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(layout: str) -> str:
    return datetime.now().strftime(layout)  # noqa: DTZ005 (as the server: its own local time)


class _Source:
    """One compiled template, with the content format and the roles that it knows."""

    def __init__(self, text: str) -> None:
        environment = _environment()
        self.compiled = environment.from_string(text)
        self.content_format = content_format(environment.parse(text))
        self.knows_developers = '"developer"' in text or "'developer'" in text


class ChatTemplate:
    """A model's chat template.

    `texts` are its sources by name (`default`, `tool_use`); `special` the special tokens that
    templates refer to (`bos_token`, ...); `defaults` the variables that the server sets unless a
    client does (vLLM's `--default-chat-template-kwargs`). Raises `ConfigError` for a malformed
    template.
    """

    def __init__(
        self,
        texts: Mapping[str, str],
        special: Mapping[str, str],
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.texts = texts
        self._special = dict(special)
        self._defaults = dict(defaults or {})
        try:
            self._sources = {name: _Source(text) for name, text in texts.items()}
        except (TemplateError, RecursionError) as error:
            raise ConfigError(f"the chat template is malformed: {error}") from error

    def render(self, body: Mapping[str, Any]) -> str:
        """Return a chat request's body as text. Raises `TextFallback` if it cannot be rendered."""
        tools = tools_of(body)
        source = self._chosen(tools)
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise TextFallback(FallbackCause.MALFORMED, "`messages` is missing or empty")
        converted = conversation(messages, source.content_format)
        if not source.knows_developers:
            converted = without_developers(converted)
        variables = self._variables(body, tools)
        continued = variables.pop("continue_final_message", False)
        if continued and variables.get("add_generation_prompt"):
            raise TextFallback(FallbackCause.MALFORMED, "a message continued and one begun")
        try:
            if continued:
                return _render_continued(source, converted, variables)
            return source.compiled.render(messages=converted, **variables)
        except TextFallback:
            raise
        except Exception as error:  # a template runs code that may raise anything
            raise TextFallback(FallbackCause.TEMPLATE, type(error).__name__) from error

    def _chosen(self, tools: Sequence[Message] | None) -> _Source:
        if tools is not None and _WITH_TOOLS in self._sources:
            return self._sources[_WITH_TOOLS]
        if _DEFAULT in self._sources:
            return self._sources[_DEFAULT]
        raise TextFallback(FallbackCause.TEMPLATE, "there is no default template")

    def _variables(
        self, body: Mapping[str, Any], tools: Sequence[Message] | None
    ) -> dict[str, Any]:
        """Return the variables of a template; the client's override the server's."""
        own = variables_of(body)
        if not own.keys().isdisjoint(_RESERVED):
            raise TextFallback(FallbackCause.FIELD, "chat_template_kwargs")
        requested = {
            "add_generation_prompt": body.get("add_generation_prompt", True),
            "continue_final_message": body.get("continue_final_message", False),
        }
        server = {"tools": tools, "documents": None, "add_generation_prompt": False}
        return self._special | server | self._defaults | own | without_unset(requested)


def _render_continued(source: _Source, messages: list[Message], variables: dict[str, Any]) -> str:
    """Render up to the end of the last message's text, without what would close it."""
    final, text = _marked(messages[-1])
    rendered = source.compiled.render(messages=[*messages[:-1], final], **variables)
    if text.strip() not in rendered or _MARK.strip() not in rendered:
        raise TextFallback(FallbackCause.TEMPLATE, "the final message cannot be continued")
    where = rendered.rindex(_MARK.strip())
    kept = rendered[:where]
    return kept if rendered.startswith(_MARK, where) else kept.rstrip()


def _marked(message: Message) -> tuple[Message, str]:
    """Return a copy of the message with `_MARK` after its last text, and that text."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + _MARK}, content
    for position in reversed(range(len(content))):
        if "text" in content[position]:
            text: str = content[position]["text"]
            part = {**content[position], "text": text + _MARK}
            return {
                **message,
                "content": [*content[:position], part, *content[position + 1 :]],
            }, text
    raise TextFallback(FallbackCause.TEMPLATE, "the final message has no text")
