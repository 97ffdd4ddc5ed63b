"""Finds how vLLM 0.32 turns requests of Anthropic's into chats for a template, by rendering it.

Mirrors vLLM `entrypoints/anthropic/serving.py`, `_detect_merge_inline_system` and
`_probe_disabled_thinking_effort`.
"""

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from epp.adapters.tokens.anthropic_chat import MessagesRules
from epp.adapters.tokens.fallback import TextFallback
from epp.adapters.tokens.local.template import ChatTemplate

_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_TURNS = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]


def rules_of(template: ChatTemplate) -> MessagesRules:
    """Return the rules for a template."""
    default = template.texts.get("default")
    chosen = {default, template.texts.get("tool_use", default)}
    return MessagesRules(
        merges=not all(map(_takes_inline_system, chosen)),
        disabled_effort=_disabled_effort(template),
    )


def _takes_inline_system(text: str | None) -> bool:
    """Return whether a template renders a system message that is not the first."""
    if not text:
        return False
    # vLLM's is this plain one: functions that only transformers gives to templates fail in it.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    try:
        environment.from_string(text).render(messages=_TURNS, add_generation_prompt=False)
    except Exception:  # noqa: BLE001 (a template runs code that may raise anything)
        return False
    return True


def _disabled_effort(template: ChatTemplate) -> str:
    """Return the effort of disabled thinking: "low" if the template refuses or ignores "none"."""
    off = _rendered(template, "none")
    ignored = off is None or any(_rendered(template, effort) == off for effort in _EFFORTS)
    return "low" if ignored else "none"


def _rendered(template: ChatTemplate, effort: str) -> str | None:
    messages = [{"role": "user", "content": "Hi"}]
    try:
        return template.render({"messages": messages, "reasoning_effort": effort})
    except TextFallback:
        return None
