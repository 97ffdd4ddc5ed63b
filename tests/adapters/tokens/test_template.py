"""Templates render as transformers renders them, and never raise anything but one error."""

from datetime import datetime

import pytest

from epp.adapters.tokens.fallback import FallbackCause, TextFallback
from epp.adapters.tokens.local.chat_messages import ContentFormat
from epp.adapters.tokens.local.content_format import content_format
from epp.adapters.tokens.local.template import ChatTemplate, _environment
from epp.errors import ConfigError
from tests.adapters.tokens.folders import CHATML

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def render(text, *said, special=SPECIAL, defaults=None, **fields):
    messages = [{"role": role, "content": content} for role, content in said]
    template = ChatTemplate({"default": text}, special, defaults)
    return template.render({"messages": messages or [{"role": "user", "content": "x"}], **fields})


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({}, "<|im_start|>assistant\n"),
        ({"add_generation_prompt": False}, ""),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "<|im_start|>assistant\n"),
    ],
)
def test_chatml(fields, end):
    said = [("system", "s"), ("user", "u")]
    want = "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n" + end
    assert render(CHATML, *said, **fields) == want


@pytest.mark.parametrize(
    ("text", "fields", "want"),
    [
        ("{{ bos_token }}{{ eos_token }}{{ pad_token }}", {}, "<s></s>"),
        ("{{ eos_token }}", {"chat_template_kwargs": {"eos_token": "E"}}, "E"),
        ("  {%- if 1 %}\n  a\n  {% endif %}b", {}, "  a\nb"),
        ("{{ {'b': 'ü<>', 'a': 1} | tojson }}", {}, '{"b": "ü<>", "a": 1}'),
        (
            "{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, indent=1) }}",
            {},
            '{\n "a": 2,\n "b": 1\n}',
        ),
        ("{{ ['ü'] | tojson(ensure_ascii=True, separators=(',', ':')) }}", {}, '["\\u00fc"]'),
        (
            "{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            {},
            "1",
        ),
        ("{% generation %}{% set x = 1 %}a{% endgeneration %}{{ x }}", {}, "a"),
        ("{{ tools }}{{ documents }}", {}, "NoneNone"),
        ("{{ documents }}", {"documents": [1]}, "[1]"),
        ("{{ documents }}", {"chat_template_kwargs": {"documents": 2}, "documents": [1]}, "[1]"),
        ("{{ reasoning_effort }}{{ enable_thinking }}", {"reasoning_effort": "none"}, "noneFalse"),
        ("{{ reasoning_effort }}{{ enable_thinking }}", {"reasoning_effort": "low"}, "lowTrue"),
        ("{{ reasoning_effort }}{{ enable_thinking }}", {}, ""),
        ("{{ custom }}", {"chat_template_kwargs": {"custom": "auto"}}, ""),
        ("{{ custom }}", {"chat_template_kwargs": {"custom": 1}}, "1"),
    ],
)
def test_variables_of_a_template(text, fields, want):
    assert render(text, **fields) == want


def test_the_clients_variables_go_before_the_servers():
    text = "{{ a }}{{ b }}"
    own = {"chat_template_kwargs": {"b": 3}}
    assert render(text, defaults={"a": 1, "b": 2}, **own) == "13"
    assert render(text, defaults={"a": 1, "b": 2}, chat_template_kwargs={"b": None}) == "12"


@pytest.mark.parametrize("seen", ["'developer'", '"developer"', "'system'"])
def test_developers_are_systems_unless_the_template_knows_them(seen):
    text = "{% set role = messages[0].role %}{{ role == " + seen + " }}"
    assert render(text, ("developer", "d"), ("user", "u")) == "True"


def test_today_is_today():
    year = datetime.now().strftime("%Y")  # noqa: DTZ005 (as the template)
    assert render("{{ strftime_now('%Y') }}") == year


def test_tools_choose_their_template():
    template = ChatTemplate({"default": "plain", "tool_use": "tools"}, {})
    messages = [{"role": "user", "content": "x"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert template.render({"messages": messages}) == "plain"
    assert template.render({"messages": messages, "tools": tools}) == "tools"
    with pytest.raises(TextFallback):
        ChatTemplate({"rag": "x"}, {}).render({"messages": messages})


PARTS = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
CONTINUED = {"continue_final_message": True, "add_generation_prompt": False}


@pytest.mark.parametrize(
    ("text", "final", "want"),
    [
        (CHATML, "one ", "<|im_start|>user\none "),
        (CHATML, "", "<|im_start|>user\n"),
        ("{{ messages[-1].content | trim }}END", "  one  ", "one"),
        (PARTS, "one", "[one"),
    ],
)
def test_a_message_is_continued(text, final, want):
    assert render(text, ("user", final), **CONTINUED) == want


def test_of_several_parts_the_last_text_is_continued():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render(PARTS, ("user", parts), **CONTINUED) == "[a][b"
    with pytest.raises(TextFallback) as refused:
        render(PARTS, ("user", []), **CONTINUED)
    assert refused.value.cause is FallbackCause.TEMPLATE


def test_a_template_that_drops_the_message_cannot_continue_it():
    with pytest.raises(TextFallback) as refused:
        render("nothing", ("user", "x"), **CONTINUED)
    assert refused.value.cause is FallbackCause.TEMPLATE


@pytest.mark.parametrize(
    ("text", "fields", "cause"),
    [
        ("{{ raise_exception('roles!') }}", {}, FallbackCause.TEMPLATE),
        ("{{ 1 / 0 }}", {}, FallbackCause.TEMPLATE),
        ("{{ messages.append(1) }}", {}, FallbackCause.TEMPLATE),
        ("{{ ''.__class__.__mro__ }}", {}, FallbackCause.TEMPLATE),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", {}, FallbackCause.TEMPLATE),
        ("", {"messages": []}, FallbackCause.MALFORMED),
        ("", {"messages": "hi"}, FallbackCause.MALFORMED),
        ("", {"continue_final_message": True}, FallbackCause.MALFORMED),
        ("", {"chat_template_kwargs": [1]}, FallbackCause.FIELD),
        ("", {"chat_template_kwargs": {"chat_template": "x"}}, FallbackCause.FIELD),
        ("", {"chat_template_kwargs": {"messages": []}}, FallbackCause.FIELD),
    ],
)
def test_failures_have_a_cause(text, fields, cause):
    body = {"messages": [{"role": "user", "content": "x"}]} | fields
    with pytest.raises(TextFallback) as refused:
        ChatTemplate({"default": text}, {}).render(body)
    assert refused.value.cause is cause


@pytest.mark.parametrize("text", ["{% for %}", "{{", "{% unknown %}", "{{ x | nofilter }}"])
def test_a_text_that_is_no_template(text):
    with pytest.raises(ConfigError, match="chat template"):
        ChatTemplate({"default": text}, {})


LOOP = "{{% for m in messages %}}{}{{% endfor %}}"


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (CHATML, ContentFormat.STRING),
        (LOOP.format("{% for p in m.content %}{% endfor %}"), ContentFormat.PARTS),
        (LOOP.format("{% for p in m['content'] | list %}{% endfor %}"), ContentFormat.PARTS),
        (LOOP.format("{% for p in m.content[1:] %}{% endfor %}"), ContentFormat.PARTS),
        (LOOP.format("{% for p in m['other'] %}{% endfor %}"), ContentFormat.STRING),
        (LOOP.format("{% for p in n.content %}{% endfor %}"), ContentFormat.STRING),
        (
            LOOP.format("{% set content = m.content %}{% for p in content %}{% endfor %}"),
            ContentFormat.PARTS,
        ),
        (
            "{% set some = messages[1:] %}"
            + LOOP.format("{% for p in m.content %}{% endfor %}").replace("messages", "some"),
            ContentFormat.PARTS,
        ),
        (
            "{% set first, some = tools %}{% set some = tools[1:] %}"
            + LOOP.format("{% for p in m.content %}{% endfor %}").replace("messages", "some"),
            ContentFormat.STRING,
        ),
        (
            "{% macro show(c) %}{% for p in c %}{% endfor %}{% endmacro %}"
            + LOOP.format("{{ show(m.content) }}"),
            ContentFormat.PARTS,
        ),
        (
            "{% macro show(a, c) %}{% for p in c %}{% endfor %}{% endmacro %}"
            + LOOP.format("{{ show(1, c=m['content']) }}"),
            ContentFormat.PARTS,
        ),
        (
            "{% macro show(content) %}{% for p in content %}{% endfor %}{% endmacro %}"
            + LOOP.format("{{ show(m.tools) }}{{ show(content=m.tools) }}")
            + LOOP.format("{{ log(m.content, content=m.content) }}"),
            ContentFormat.STRING,
        ),
    ],
)
def test_the_shape_that_a_template_expects(text, shape):
    assert content_format(_environment().parse(text)) is shape
