"""Chat requests and templates of every shape that a tokenizer has to get right."""

from typing import Any

from hypothesis import strategies as st

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS = """{%- set ns = namespace(last_user=-1) -%}
{%- if tools %}{{ '<|im_start|>system\\n' }}
{%- for tool in tools %}{{ tool | tojson }}{{ tool.function | tojson(indent=1) }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endif %}
{%- for message in messages[::-1] %}
    {%- if ns.last_user < 0 and message.role == 'user' %}
        {%- set ns.last_user = messages | length - loop.index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {{- '<|im_start|>' ~ message.role ~ ('(' ~ message.name ~ ')' if message.name) ~ '\\n' }}
    {%- if message.reasoning_content is string and loop.index0 > ns.last_user %}
        {{- '<think>' ~ message.reasoning_content.strip('\\n') ~ '</think>\\n' }}
    {%- endif %}
    {{- message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- call | tojson }}{{ call.function.name }}({{ call.function.arguments | tojson }})
    {%- endfor %}
    {{- message.tool_call_id }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}
{%- endif %}"""
PARTS = """{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}{% if part.type == 'text' %}[{{ part.text | trim }}]
{%- endif %}{{ part.cache_control | tojson if part.cache_control is defined }}
{%- endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
EVERYTHING = (
    "{{ messages | tojson }}{{ tools | tojson if tools }}{{ documents | tojson if documents }}"
    "{{ reasoning_effort }}|{{ enable_thinking }}|{{ custom }}|{{ bos_token }}|{{ eos_token }}"
    "{% if add_generation_prompt %}GEN{% endif %}"
)
PICKY = (
    "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('no ' ~ m.role) }}{% endif %}"
    "{% generation %}{% set x = m.content | trim %}<|im_start|>{{ x }}{% endgeneration %}{{ x }}"
    "{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}{{ strftime_now('%Y') }}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)
DEVELOPER = (
    "{% for m in messages %}{% if m.role == 'developer' %}{{ m.tools | tojson }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "tools": TOOLS,
    "parts": PARTS,
    "everything": EVERYTHING,
    "picky": PICKY,
    "developer": DEVELOPER,
}

_WORDS = ["the", "keeper", " ", "  ", "\n", "\n\n", "\t", "für", "東京", "🙂", "1729", " 12"]
_WORDS += ["'ll", "def f(x):\n    ", "<think>", "<|im_end|>", "<|im_start|>", '{"a": 1}']
TEXT = st.lists(st.sampled_from(_WORDS), max_size=10).map("".join)


def _shuffled(item: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Give the keys another order: what is printed must not depend on the client's."""
    return st.permutations(list(item.items())).map(dict)


def _built(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional).flatmap(_shuffled)


_TEXT_PART = _built(
    {"type": st.just("text"), "text": TEXT},
    {"cache_control": st.just({"type": "ephemeral"})},
)
_PART = _TEXT_PART | st.fixed_dictionaries({"type": st.just("refusal"), "refusal": TEXT})
_CONTENT = TEXT | st.lists(_TEXT_PART, max_size=3)
_ARGUMENTS = st.sampled_from(
    ('{"b": 1, "a": [1.5, null, "ü"]}', "", "{}", "[]", "not json", '{"x": {"z": 1, "y": 2}}')
)
_CALL = _built(
    {
        "id": st.just("call_1"),
        "type": st.just("function"),
        "function": _built({"name": st.just("f"), "arguments": _ARGUMENTS}, {}),
    },
    {"index": st.just(0)},
)
_DEFINITION = _built(
    {"name": st.sampled_from("fg")},
    {
        "description": TEXT,
        "parameters": st.just({"type": "object", "properties": {"z": {}, "a": {"default": 0.1}}}),
        "strict": st.booleans(),
        "extra": st.just(1),
    },
)
_TOOL = _built(
    {"type": st.just("function"), "function": _DEFINITION}, {"defer_loading": st.just(True)}
)
_NAME = {"name": st.just("bob")}
_USER = _built({"role": st.just("user"), "content": _CONTENT}, _NAME)
_SYSTEM = _built(
    {
        "role": st.sampled_from(("system", "system", "developer")),
        "content": TEXT | TEXT.map("x-anthropic-billing-header: cch=1\n".__add__),
    },
    {},
)
_ASSISTANT = _built(
    {"role": st.just("assistant"), "content": TEXT | st.lists(_PART, min_size=1, max_size=2)},
    _NAME
    | {
        "tool_calls": st.lists(_CALL, max_size=2),
        "reasoning_content": TEXT,
    },
)
_TOOL_RESULT = _built(
    {"role": st.just("tool"), "content": _CONTENT, "tool_call_id": st.just("call_1")}, {}
)
_MESSAGES = st.lists(
    st.one_of(_USER, _USER, _ASSISTANT, _ASSISTANT, _SYSTEM, _TOOL_RESULT), min_size=1, max_size=6
)
_KWARGS = st.dictionaries(
    st.sampled_from(("enable_thinking", "custom", "add_generation_prompt", "eos_token")),
    st.sampled_from((True, False, None, "auto", "x")),
    max_size=2,
)
_ENDING = st.sampled_from(
    (
        {},
        {},
        {"add_generation_prompt": False},
        {"add_generation_prompt": False, "continue_final_message": True},
    )
)
_FIELDS = _built(
    {"model": st.just("tiny"), "messages": _MESSAGES},
    {
        "tools": st.lists(_TOOL, min_size=1, max_size=2),
        "reasoning_effort": st.sampled_from(("low", "none", None)),
        "chat_template_kwargs": _KWARGS,
        "add_special_tokens": st.booleans(),
        "documents": st.just([{"title": "t", "text": "x"}]),
    },
)


def _whole(parts: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    """Put an ending to a body; tools are refused where nothing says how to choose among them."""
    body, ending = parts
    return body | ending | ({"tool_choice": "none"} if "tools" in body else {})


BODIES = st.tuples(_FIELDS, _ENDING).map(_whole)
"""Bodies of chat requests, some of which a template or the server refuses."""
